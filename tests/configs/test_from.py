"""`--from FILE` on the real command: what it plans, what wins, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from actplan.cli.main import run

AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
sample_packing: true
attn_implementation: flash_attention_2
gradient_checkpointing: true
optimizer: adamw_torch_fused
datasets: [{path: some/data}]
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
bf16: true
"""
TRAINER = """\
model_name_or_path: NousResearch/Meta-Llama-3-8B
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
max_length: 2048
output_dir: out
dtype: bfloat16
bf16: true
loss_type: nll
"""
ZERO3 = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": "auto"},
    "gradient_accumulation_steps": "auto",
}
MEGATRON = """\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 \\
  --group-query-attention --num-query-groups 4 --ffn-hidden-size 4096 --seq-length 2048 --micro-batch-size 1 \\
  --global-batch-size 32 --swiglu --normalization RMSNorm --disable-bias-linear --bf16 --use-distributed-optimizer \\
  --position-embedding-type rope --tensor-model-parallel-size 2 --sequence-parallel --hidden-dropout 0 \\
  --attention-dropout 0 --untie-embeddings-and-output-weights --recompute-granularity full --recompute-method uniform \\
  --recompute-num-layers 1 --lr 1e-4 --train-iters 10 --vocab-size 32000 --tokenizer-type NullTokenizer
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "axolotl.yml").write_text(AXOLOTL, encoding="utf-8")
    (tmp_path / "trainer.yaml").write_text(TRAINER, encoding="utf-8")
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO3), encoding="utf-8")
    (tmp_path / "megatron.sh").write_text(MEGATRON, encoding="utf-8")
    return tmp_path


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def actplan(*arguments: str, cwd: Path | None = None) -> Done:
    """Run the command in this process, its streams apart."""
    out, err, before = StringIO(), StringIO(), Path.cwd()
    try:
        os.chdir(cwd or before)
        with redirect_stdout(out), redirect_stderr(err):
            code = run(list(arguments))
    finally:
        os.chdir(before)
    return Done(code, out.getvalue(), err.getvalue())


def refused(*arguments: str, cwd: Path | None = None) -> str:
    done = actplan(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("actplan: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def answer(folder: Path, *arguments: str) -> Any:
    done = actplan(*arguments, "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_file_is_the_options_that_it_says(folder: Path) -> None:
    own = answer(folder, "estimate", "--from", "axolotl.yml", "--gpus", "8")
    hand = answer(
        folder,
        *("estimate", "--preset", "llama-3-8b", "--seq", "4096", "--batch", "2", "--microbatches", "4"),
        *("--attention", "flash2", "--checkpoint", "layer", "--recipe", "fsdp-bf16", "--dp", "8"),
        *("--optimizer", "adamw-fused"),
    )
    assert own == hand
    assert own["budget"]["total_bytes"] > 0


def test_what_was_read_is_said_on_stderr_as_a_command_that_says_the_same(folder: Path) -> None:
    done = actplan("estimate", "--from", "axolotl.yml", "--gpus", "8", "--get", "budget.total_bytes", cwd=folder)
    first, *rest = done.stderr.splitlines()
    assert first.startswith("actplan: axolotl.yml as axolotl: --preset llama-3-8b ")
    assert any("not in the local cache: planned as the preset llama-3-8b" in line for line in rest)
    options = first.partition("axolotl: ")[2].split()
    again = actplan("estimate", *options, "--get", "budget.total_bytes", cwd=folder)
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, "")


def test_the_command_line_wins_over_the_file(folder: Path) -> None:
    own = answer(folder, "estimate", "--from", "axolotl.yml", "--seq", "8192", "--checkpoint", "none", "--gpus", "8")
    assert (own["run"]["sequence_length"], own["run"]["checkpoint"]) == (8192, "none")
    assert own["run"]["micro_batch_size"] == 2
    own = answer(folder, "estimate", "--from", "axolotl.yml", "--preset", "llama-3.2-1b")
    assert own["model"]["name"] == "llama-3.2-1b"


def test_a_later_file_wins_and_the_launcher_completes_the_trainer(folder: Path) -> None:
    (folder / "longer.yaml").write_text("per_device_train_batch_size: 4\nmax_length: 4096\n", encoding="utf-8")
    both = answer(folder, "show", "--from", "trainer.yaml", "--from", "longer.yaml")
    assert (both["read"]["sequence_length"], both["read"]["micro_batch_size"]) == (4096, 4)
    assert both["read"]["microbatches"] == 2
    assert any("micro_batch_size: 1 in trainer.yaml, 4 in longer.yaml" in one for one in both["contradictions"])
    for order in (("trainer.yaml", "zero3.json"), ("zero3.json", "trainer.yaml")):
        read = answer(folder, "show", "--from", order[0], "--from", order[1])["read"]
        assert (read["sharding"], read["offload"], read["precision"]) == ("zero-3", ["optimizer"], "bf16 + fp32 master")
        assert (read["sequence_length"], read["checkpoint"]) == (2048, "layer")


def test_a_file_that_another_names_is_read_with_it(folder: Path) -> None:
    plain = AXOLOTL.partition("fsdp_version")[0]
    (folder / "named.yaml").write_text(plain + "deepspeed: deepspeed_configs/zero2.json\n", encoding="utf-8")
    shown = answer(folder, "show", "--from", "named.yaml")  # Axolotl ships it, and it offloads
    assert (shown["read"]["sharding"], shown["read"]["offload"]) == ("zero-2", ["optimizer"])
    assert any("zero2.json is not there: read as the file of that name" in one for one in shown["assumed"])
    (folder / "named.yaml").write_text(TRAINER + "deepspeed: configs/mine.json\n", encoding="utf-8")
    assert "named.yaml: deepspeed: names configs/mine.json, which is not there" in refused(
        "estimate", "--from", "named.yaml", cwd=folder
    )
    (folder / "configs").mkdir()
    (folder / "configs" / "mine.json").write_text(json.dumps(ZERO3), encoding="utf-8")
    assert answer(folder, "show", "--from", "named.yaml")["read"]["offload"] == ["optimizer"]


def test_a_shell_line_sets_model_and_mesh(folder: Path) -> None:
    own = answer(folder, "estimate", "--from", "megatron.sh")
    assert own["model"]["num_layers"] == 4
    assert own["run"]["checkpoint"] == "layer"
    shown = answer(folder, "show", "--from", "megatron.sh")
    assert (shown["options"]["dp"], shown["options"]["tp"], shown["options"]["microbatches"]) == ("4", "2", "8")
    assert answer(folder, "show", "--from", "megatron.sh", "--gpus", "16")["options"]["dp"] == "8"


@pytest.mark.parametrize("name", ["axolotl.yml", "megatron.sh"])
def test_every_command_takes_it(folder: Path, name: str) -> None:
    swept = answer(folder, "sweep", "--from", name, "--seq", "1k,2k", "--gpus", "8")
    assert [row["sequence_length"] for row in swept["rows"]] == [1024, 2048]
    assert answer(folder, "ledger", "--from", name, "--layer", "1", "--checkpoint", "none")["ledger"]
    assert answer(folder, "plan", "--from", name, "--limit", "60GiB")["plan"]["feasible"]


def test_what_changes_memory_and_is_not_planned_is_an_error_unless_it_is_ignored(folder: Path) -> None:
    (folder / "odd.yml").write_text(AXOLOTL + "torch_compile: true\ntiled_mlp: true\n", encoding="utf-8")
    message = refused("estimate", "--from", "odd.yml", cwd=folder)
    assert "tiled_mlp: an MLP in tiles" in message
    assert "torch.compile" in message
    assert "--ignore" in message
    done = actplan("estimate", "--from", "odd.yml", "--ignore", "--get", "budget.total_bytes", cwd=folder)
    assert done.returncode == 0
    assert "left out (--ignore): tiled_mlp: an MLP in tiles" in done.stderr
    shown = answer(folder, "show", "--from", "odd.yml")
    assert any("tiled_mlp" in one for one in shown["problems"])


def test_a_misspelt_key_is_named_with_the_nearest(folder: Path) -> None:
    (folder / "typo.yml").write_text(AXOLOTL.replace("sequence_len:", "sequence_length:"), encoding="utf-8")
    message = refused("estimate", "--from", "typo.yml", cwd=folder)
    assert "sequence_length: is no key that is known of axolotl; did you mean 'sequence_len'?" in message


def test_a_key_that_stands_twice_counts_as_it_stands_last(folder: Path) -> None:
    (folder / "twice.yml").write_text(AXOLOTL + "sequence_len: 1024\n", encoding="utf-8")
    shown = answer(folder, "show", "--from", "twice.yml")
    assert shown["read"]["sequence_length"] == 1024
    assert shown["contradictions"] == ["sequence_len stands twice in twice.yml: the last one counts"]


def test_the_framework_can_be_named(folder: Path) -> None:
    (folder / "short.yaml").write_text("learning_rate: 1.0e-5\n", encoding="utf-8")
    assert answer(folder, "show", "--from", "axolotl:short.yaml")["tool"] == "axolotl"
    (folder / "nothing.yaml").write_text("colour: blue\n", encoding="utf-8")
    assert "the keys tell no framework" in refused("show", "--from", "nothing.yaml", cwd=folder)


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("", "empty.yaml", "is empty"),
        ("[1, 2]", "list.json", "holds no settings"),
        ('{"train_batch_size": 8, "train_batch_size": 9}', "twice.json", "duplicate key"),
        ('{"zero_optimization": {"stage": 7}}', "stage.json", "7 is no stage"),
        ("base_model: x\nmicro_batch_size: many\n", "word.yml", "many is no number"),
        ("base_model: x\nmicro_batch_size: -4\n", "negative.yml", "-4 is no number"),
        ("base_model: x\ngradient_checkpointing: [1\n", "broken.yml", "is not valid YAML"),
        ("training = 1\n", "flat.toml", "training: 1 is not a mapping"),
        ("[training\n", "broken.toml", "is not valid TOML"),
        ("echo hello\n", "none.sh", "starts no training that is known"),
        ("A='open\n", "open.sh", "a quote is never closed"),
        ("a: 1\n", "x.cfg", "a file that ends in '.cfg' is not read"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, name: str, said: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert said in refused("show", "--from", name, cwd=tmp_path)


def test_the_installed_command_keeps_words_on_stderr(folder: Path) -> None:
    line = [sys.executable, "-m", "actplan", "estimate", "--from", "axolotl.yml", "--gpus", "8", "--limit", "20GiB"]
    done = subprocess.run([*line, "--get", "fit.fits"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "false\n")
    assert done.stderr.startswith("actplan: axolotl.yml as axolotl: ")


def test_options_about_files_need_one(tmp_path: Path) -> None:
    assert "--ignore: no file has settings to ignore" in refused("estimate", "--ignore")
    assert "no file to show" in refused("show")
    assert "no such file" in refused("estimate", "--from", "nowhere.yml", cwd=tmp_path)
