"""`actplan export`: what is written reads back to the same plan; an edited file differs in the needed lines alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from test_from import AXOLOTL, MEGATRON, Done, actplan, answer, refused

from actplan.configs.files import load
from actplan.configs.readers import reader
from actplan.configs.writing.editing import edited
from actplan.configs.writing.text import plain, scalar, toml

NUMBER = ("--get", "budget.total_bytes")
RUNS = {
    "trl": ("--recipe", "bf16", "--checkpoint", "layer", "--attention", "flash2", "--batch", "2", "--seq", "2048"),
    "trl-lora": ("--recipe", "lora", "--precision", "autocast", "--lora-rank", "8", "--lora-targets", "q_proj,v_proj"),
    "trl-qlora": (
        *("--recipe", "qlora", "--precision", "autocast", "--lora-rank", "32", "--lora-targets", "all-linear"),
        *("--quantise", "nf4", "--lora-dropout", "0.1", "--checkpoint", "layer", "--optimizer", "paged-adamw8bit"),
    ),
    "trl-liger": ("--recipe", "autocast", "--kernels", "liger", "--loss", "fused", "--microbatches", "4"),
    "trl-zero": ("--recipe", "zero-3", "--offload", "parameters,optimizer", "--checkpoint", "layer"),
    "trl-fsdp": ("--recipe", "fsdp", "--checkpoint", "layer", "--loss", "trl", "--optimizer", "adamw-fused"),
    "axolotl": ("--recipe", "fsdp-bf16", "--optimizer", "adamw-fused", "--checkpoint", "layer", "--seq", "4096"),
    "axolotl-fsdp1": ("--recipe", "fsdp", "--optimizer", "adamw-fused", "--offload", "parameters,optimizer"),
    "axolotl-lora": (
        *("--recipe", "lora", "--precision", "autocast", "--lora-rank", "16", "--lora-targets", "all-linear"),
        *("--kernels", "liger", "--loss", "fused", "--checkpoint", "layer"),
    ),
    "llamafactory": ("--recipe", "zero-3", "--checkpoint", "layer", "--attention", "flash2", "--microbatches", "2"),
    "llamafactory-pure": ("--recipe", "bf16", "--checkpoint", "none", "--kernels", "liger", "--loss", "fused"),
    "llamafactory-qlora": (
        *("--recipe", "qlora", "--precision", "autocast", "--lora-rank", "8", "--lora-targets", "all-linear"),
        *("--quantise", "nf4-double", "--checkpoint", "layer", "--optimizer", "paged-adamw"),
    ),
    "deepspeed": ("--recipe", "zero-2", "--offload", "optimizer", "--microbatches", "2", "--batch", "4"),
    "accelerate": ("--recipe", "fsdp", "--checkpoint", "layer"),
    "accelerate-hsdp": ("--recipe", "fsdp", "--dp", "8", "--replicas", "2", "--tp", "2"),
    "torchtitan": ("--recipe", "fsdp", "--optimizer", "adamw-fused", "--checkpoint", "layer", "--tp", "2", "--sp",
                   "--loss", "parallel", "--reshard", "default"),
}  # fmt: skip
ENDINGS = {"deepspeed": ".json", "torchtitan": ".toml"}
OTHERS = {"deepspeed": ("--seq", "1024"), "accelerate": ("--seq", "1024", "--batch", "1")}
"""What such a file does not hold, said again."""


@pytest.mark.parametrize("name", RUNS)
def test_an_exported_run_reads_back_to_the_same_number(name: str, tmp_path: Path) -> None:
    tool, options = name.partition("-")[0], RUNS[name]
    given = ("--preset", "llama-3.2-1b", *options)
    given = given if "--seq" in given else (*given, "--seq", "1024")
    ranks = () if "--dp" in given else ("--dp", "2")
    file = f"made{ENDINGS.get(tool, '.yaml')}"
    made = actplan("export", "--to", tool, *given, *ranks, "-o", file, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    wanted = actplan("estimate", *given, *ranks, *NUMBER, cwd=tmp_path)
    assert wanted.returncode == 0, wanted.stderr
    gpus = () if tool == "accelerate" else ("--gpus", "4" if "--tp" in given else "2")
    again = actplan(
        *("estimate", "--from", f"{tool}:{file}", "--preset", "llama-3.2-1b", *gpus),
        *OTHERS.get(tool, ()), *NUMBER, cwd=tmp_path,
    )  # fmt: skip
    assert again == Done(0, wanted.stdout, again.stderr), again.stderr


def test_megatron_s_arguments_read_back(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(MEGATRON, encoding="utf-8")
    made = actplan("export", "--to", "megatron", "--from", "run.sh", "--checkpoint", "every:2", cwd=tmp_path)
    assert "--recompute-granularity full" in made.stdout
    assert "--recompute-num-layers 2" in made.stdout
    assert "--global-batch-size 32" in made.stdout


def test_an_edited_file_differs_in_the_needed_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(COMMENTED, encoding="utf-8")
    done = actplan(
        "export", "--to", "axolotl", "--edit", "mine.yml", "--checkpoint", "layer", "--seq", "8k", cwd=tmp_path
    )
    before, after = COMMENTED.splitlines(), done.stdout.splitlines()
    assert [(a, b) for a, b in zip(before, after, strict=True) if a != b] == [
        ("sequence_len: 4096   # tokens", "sequence_len: 8192   # tokens"),
        ("gradient_checkpointing: false # for now", "gradient_checkpointing: true # for now"),
    ]


def test_a_verdict_and_an_edited_file_in_two_commands(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(COMMENTED, encoding="utf-8")
    verdict = ("estimate", "--from", "mine.yml", "--gpus", "8", "--limit", "60GiB", "--get", "fit.fits")
    assert actplan(*verdict, cwd=tmp_path)[:2] == (1, "false\n")
    done = actplan("export", "--to", "axolotl", "--edit", "mine.yml", "--plan", "40GiB", "-o", "mine.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert actplan(*verdict, cwd=tmp_path)[:2] == (0, "true\n")


def test_a_deepspeed_file_and_a_config_json(tmp_path: Path) -> None:
    """All that a user may have: a verdict, and the file back with what makes it fit."""
    config = {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    zero = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}
    (tmp_path / "ds.json").write_text(json.dumps(zero, indent=4), encoding="utf-8")
    ask = ("--model", "config.json", "--seq", "2048", "--gpus", "8")
    assert answer(tmp_path, "estimate", "--from", "ds.json", *ask)["budget"]["total_bytes"] > 0
    done = actplan("export", "--to", "deepspeed", "--edit", "ds.json", *ask, "--offload", "optimizer", cwd=tmp_path)
    assert json.loads(done.stdout) == {
        **zero,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    assert '\n    "bf16"' in done.stdout


def test_what_a_tool_cannot_express_is_refused_with_the_nearest_and_its_cost(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(AXOLOTL, encoding="utf-8")
    done = actplan("export", "--from", "mine.yml", "--to", "trl", "--checkpoint", "every:2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (message,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "trl cannot express --checkpoint every:2; allowed: none, layer" in message
    assert "layer peaks at 13.99 GiB with 23.4% more FLOPs" in message
    assert "unknown framework 'axolotle'; did you mean 'axolotl'?" in refused("export", "--to", "axolotle")
    assert "no tool to write for" in refused("export")
    assert "cannot express --pp 2" in refused("export", "--to", "trl", "--pp", "2", "--recipe", "bf16")


@pytest.mark.parametrize(
    ("text", "changes", "wanted"),
    [
        ("a: 1 # one\nb: 2\n", {("a",): 3}, "a: 3 # one\nb: 2\n"),
        ("a: 1\nb: 2\n", {("a",): None}, "b: 2\n"),
        ("a: 1\n", {("b",): True}, "a: 1\nb: true\n"),
        ("a: 1", {("b",): "no"}, 'a: 1\nb: "no"\n'),
        ("f: {x: 1}\n", {("f", "y"): False}, "f: {x: 1, y: false}\n"),
        ("f:\n  x: 1 # c\n\n# end\n", {("f", "y"): 2}, "f:\n  x: 1 # c\n  y: 2\n\n# end\n"),
        ("f:\n  fsdp_offload_params: false\n", {("f", "offload_params"): True}, "f:\n  fsdp_offload_params: true\n"),
        ("f:\ng: 1\n", {("f",): [1, 2]}, "f: [1, 2]\ng: 1\n"),
        ("f:\n  - a\n  - b\n# c\ng: 1\n", {("f",): ["z"]}, "f: [z]\n# c\ng: 1\n"),
        ("a: 1\n", {("f", "g"): 1}, "a: 1\nf: {g: 1}\n"),
        ("a: 1\n", {("zz",): None}, "a: 1\n"),
    ],
)  # fmt: skip
def test_yaml_is_edited_in_place(text: str, changes: dict[tuple[str, ...], object], wanted: str) -> None:
    assert edited(text, ".yaml", changes, "x.yaml") == wanted


@given(
    st.dictionaries(
        st.text("abcde_", min_size=1, max_size=4),
        st.one_of(st.integers(), st.booleans(), st.text(max_size=8)),
        max_size=5,
    ),
    st.data(),
)
@settings(deadline=None)
def test_whatever_is_edited_reads_back(values: dict[str, object], data: st.DataObject) -> None:
    text = "".join(f"{plain(key)}: {scalar(value)}  # {i}\n" for i, (key, value) in enumerate(values.items()))
    key = data.draw(st.sampled_from(["a", "new", *values]))
    value = data.draw(
        st.one_of(st.integers(), st.booleans(), st.text(max_size=12), st.lists(st.text(max_size=3), max_size=3))
    )
    made = edited(text, ".yaml", {(key,): value}, "x.yaml")
    assert yaml.safe_load(made) == {**values, key: value}
    assert [line for line in made.splitlines() if "#" in line and not line.startswith(plain(key) + ":")] == [
        line for line in text.splitlines() if not line.startswith(plain(key) + ":")
    ]


def test_toml_and_shell_are_edited_in_place(tmp_path: Path) -> None:
    text = '[training]\nseq_len = 8192  # long\n\n[activation_checkpoint]\nmode = "none"\n'
    changes = {("training", "seq_len"): 4096, ("activation_checkpoint", "mode"): "full", ("compile", "enable"): False}
    assert edited(text, ".toml", changes, "x.toml") == (
        '[training]\nseq_len = 4096  # long\n\n[activation_checkpoint]\nmode = "full"\n\n[compile]\nenable = false\n'
    )
    script = "python pretrain_gpt.py \\\n  --seq-length 2048 \\\n  --swiglu \\\n  --recompute-granularity full\n"
    made = edited(script, ".sh", {("seq-length",): 4096, ("recompute-granularity",): None, ("bf16",): True}, "x.sh")
    assert made == "python pretrain_gpt.py \\\n  --bf16 --seq-length 4096 \\\n  --swiglu \\\n"


@pytest.mark.parametrize("name", ["trl", "axolotl", "llamafactory"])
def test_the_file_is_what_its_reader_knows(name: str, tmp_path: Path) -> None:
    """No key is written that the framework's reader does not know."""
    made = actplan("export", "--to", name, "--preset", "llama-3.2-1b", *RUNS[name], cwd=tmp_path)
    (tmp_path / "made.yaml").write_text(made.stdout, encoding="utf-8")
    source = load(tmp_path / "made.yaml")
    reading = reader(name)(source.values, source)
    assert [one.field for one in reading.with_outcome("unknown", "unplanned")] == []


def test_values_of_toml() -> None:
    assert [toml(one) for one in (True, 3, "a b", ["x"])] == ["true", "3", '"a b"', '["x"]']


COMMENTED = """\
# my run
base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 4096   # tokens
micro_batch_size: 2

gradient_accumulation_steps: 4
sample_packing: true
attn_implementation: flash_attention_2
gradient_checkpointing: false # for now
optimizer: adamw_torch_fused
datasets:
  - path: some/data   # mine
    type: alpaca
fsdp_version: 2
fsdp_config:
  reshard_after_forward: true
bf16: true
"""
