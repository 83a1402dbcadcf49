"""Wrong input: one clear line on stderr, nothing on stdout, exit 2."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_harness import CLEAN, actplan, refused

SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["estimat"], "unknown command 'estimat'; did you mean 'estimate'?"),
        (["estimate", "--seqs", "4"], "did you mean '--seq'?"),
        (["estimate", "--seq"], "requires an argument"),
        (["estimate", "extra"], "unexpected extra argument"),
        (["presets", "sho"], "did you mean 'show'?"),
        (["presets", "show"], "missing argument 'NAME'"),
        (["presets", "show", "qwen27b"], "did you mean 'qwen-27b'?"),
        (["estimate", "--preset", "qwen27b"], "did you mean 'qwen-27b'?"),
        (["estimate", "--preset", "../../etc/passwd"], "unknown preset"),
        (["estimate", "--preset", "qwen-27b", "--model", "x"], "both name a model"),
        (["estimate", "--model", "nowhere/at/all.yaml"], "no such file"),
        (["estimate", "--model", ""], "names no model"),
        (["estimate", "--seq", "-8192"], "-8192' is not positive"),
        (["estimate", "--seq", "0"], "'0' is not positive"),
        (["estimate", "--seq", "0.5"], "not a whole number"),
        (["estimate", "--seq", "nan"], "not a whole number"),
        (["estimate", "--seq", ""], "not a whole number"),
        (["estimate", "--seq", str(2**40 + 1)], "too large"),
        (["estimate", "--seq", "1e30"], "too large"),
        (["estimate", "--seq", "1" + "0" * 30], "too large"),
        (["estimate", "--batch", "0"], "--batch"),
        (["estimate", "--seq", "8k..64k"], "`actplan sweep`"),
        (["estimate", "--batch", "1,2"], "`actplan sweep`"),
        (["estimate", "--checkpoint", "none,layer"], "`actplan sweep`"),
        (["estimate", "--dtype", "bf61"], "did you mean 'bf16'?"),
        (["estimate", "--attention", "flas"], "did you mean 'flash'?"),
        (["estimate", "--linear-attention", "fl"], "did you mean 'fla'?"),
        (["estimate", "--kernels", "ligr"], "did you mean 'liger'?"),
        (["estimate", "--loss", "naiv"], "did you mean 'naive'?"),
        (["estimate", "--checkpoint", "layers"], "did you mean 'layer'?"),
        (["estimate", "--checkpoint", "every:0"], "every:N"),
        (["estimate", "--checkpoint", "segments:3-1"], "increasing"),
        (["estimate", "--checkpoint", "segments:0-64"], "layers 0 to 63"),
        (["estimate", "--checkpoint-dtype", "fp8"], "--checkpoint-dtype"),
        (["estimate", "--memory-budget", "0.5"], "planned without an activation_memory_budget"),
        (["plan", "--activation-memory-budget", "0.5"], "planned without an activation_memory_budget"),
        (["estimate", "--checkpoint", "selective:core_attn"], "--checkpoint modules:core_attn runs"),
        (["estimate", "--checkpoint", "selective:linear_attn"], "no output of 'linear_attn' in qwen-27b can be kept"),
        (["estimate", "--checkpoint", "modules:self_attn,o_proj"], "o_proj is a part of self_attn"),
        (["estimate", "--checkpoint", "modules:mlp", "--checkpoint-dtype", "fp32"], "keep their inputs as they are"),
        (
            ["estimate", "--checkpoint", "modules:mlp", "--recipe", "fsdp", "--offload", "activations"],
            "the inputs of parts of a layer are not moved",
        ),
        (
            ["estimate", "--ledger", "tests/reference/ledger_llama_3_2_1b.yaml", "--checkpoint", "selective:attention"],
            "a ledger holds whole layers",
        ),
        (["estimate", "--format", "jsn"], "did you mean 'json'?"),
        (["estimate", "--get", "estimates.autograd.saved"], "did you mean 'saved_bytes'?"),
        (["estimate", "--get", "segmentations.99.policy"], "no element '99'"),
        (["estimate", "--set", "hidden_sise=64"], "did you mean 'hidden_size'?"),
        (["estimate", "--set", "attention.num_key_value_heads=5"], "num_key_value_heads"),
        (["estimate", "--set", "num_layers=0"], "num_layers"),
        (["estimate", "--set", "hidden_size"], "--set"),
        (["ledger", "--layer", "64"], "0 to 63"),
        (["ledger", "--layer", "-1"], "0 to 63"),
        (["ledger", "--layer", "x"], "--layer"),
        (["ledger", "--kind", "full_atention"], "did you mean 'full_attention'?"),
        (["ledger", "--layer", "3", "--at-peak"], "one of them"),
        (["sweep", "--set", "hidden_size"], "--set"),
        (["sweep", "--set", "hidden_sise=1,2"], "did you mean 'hidden_size'?"),
        (["sweep", "--seq", "64k..8k"], "runs backwards"),
        (["sweep", "--seq", "1..1m:+1"], "points"),
        (["sweep", "--seq", "1..64k:+1", "--batch", "1..64k:+1"], "points"),
        (["estimate", "-o", "/nowhere/at/all"], "cannot write"),
        (["estimate", "-o", "/"], "cannot write"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_options(arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", '{"model_type": "llama", "hidden', "config.json"),
        ("config.json", json.dumps({**SMALL, "model_type": "mamba9"}), "mamba9"),
        ("config.json", json.dumps({**SMALL, "num_attention_heads": 5}), "5 heads"),
        ("config.json", "", "config.json"),
        ("spec.yaml", "hidden_size: 64\nhidden_size: 65\n", "hidden_size"),
        ("spec.yaml", "layers: 3 x full_attention\nnum_layers: 4\n", "spec.yaml"),
        ("spec.yaml", "\t:\n- ]", "spec.yaml"),
        ("spec.yaml", "\x00", "spec.yaml"),
    ],
)
def test_files(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    assert said in refused("estimate", "--model", name, cwd=tmp_path)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "no config.json" in refused("estimate", "--model", str(tmp_path))


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    assert "evil\\n\\x1b[31m" in refused("estimate", "--preset", "evil\n\x1b[31m")


def test_a_number_of_five_thousand_digits() -> None:
    assert "--seq" in refused("estimate", "--seq", "1" * 5000)


def test_a_path_that_is_not_text() -> None:
    assert "UTF-8" in refused("estimate", "--model", "\udcff")


def test_a_bug_is_exit_3_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import actplan.basics.units as units\ndef broken(*a): raise RuntimeError('boom')\nunits.parse_range = broken\n"
    )
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), CLEAN.get("PYTHONPATH", "")])}
    done = actplan("estimate", env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "RuntimeError: boom" in done.stderr
    assert "report" in done.stderr
    assert "Traceback" in actplan("estimate", env={**env, "ACTPLAN_DEBUG": "1"}).stderr


@pytest.mark.parametrize(
    "words",
    [
        *(["--lora-rank", "8"], ["--freeze", "embedding"], ["--qat", "weights"], ["--quantise", "nf4"], ["--padding"]),
        *(["--tp", "2"], ["--sp"], ["--dp", "2"], ["--mtp"], ["--precision", "autocast"], ["--loss-chunks", "4"]),
        *(["--input-require-grads"], ["--checkpoint-dtype", "fp32"]),
    ],
    ids="=".join,
)
@pytest.mark.parametrize("compare", [[], ["--compare"]], ids=["", "compare"])
def test_a_trace_refuses_what_it_does_not_follow(words: list[str], compare: list[str], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SMALL), encoding="utf-8")
    line = refused("trace", *compare, "--model", str(config), *words)
    assert f"{words[0]}: a trace does not follow it; allowed: --seq" in line
