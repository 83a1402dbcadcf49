"""Sizes in notes: of the run that is asked about, and never negative."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from actplan.cli.main import run

PRESETS = ("llama-3.2-1b", "qwen-27b", "mixtral-8x7b", "gpt2", "gemma-2-9b", "qwen3-30b-a3b")
RECIPES = (
    "bf16", "fp32", "autocast", "fp16", "megatron-bf16", "megatron-bf16-dist", "zero-1", "zero-3", "fsdp", "lora",
    "qlora", "qlora-plain", "lora --precision autocast", "autocast --lora-rank 4", "fsdp --lora-rank 4",
    "zero-3 --lora-rank 4 --dtype fp16", "autocast --lora-rank 4 --base-dtype fp32", "autocast --freeze layers",
    "bf16 --freeze embed_tokens", "qlora --precision autocast", "lora --lora-save lm_head --lora-dtype bf16",
    "qlora --optimizer adamw8bit",
)  # fmt: skip
MESHES = ("", "--dp 4", "--dp 2 --tp 2 --sp")
POLICIES = ("none", "layer")
SIZE = re.compile(r"(-?[\d.]+) GiB")


def answered(words: str, capfd: pytest.CaptureFixture[str]) -> dict[str, Any] | None:
    """The report, None where the options contradict each other."""
    code = run(["estimate", *words.split(), "--seq", "256", "--format", "json"])
    said = capfd.readouterr()
    assert code in (0, 1, 2), said.err
    return None if code == 2 else json.loads(said.out)


def held(found: dict[str, Any]) -> int:
    step = next(phase for phase in found["budget"]["phases"] if phase["phase"] == "optimizer_step")
    return sum(step[f"{name}_bytes"] for name in ("parameters", "gradients", "optimizer"))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("preset", PRESETS)
def test_no_size_in_a_note_is_negative(preset: str, recipe: str, capfd: pytest.CaptureFixture[str]) -> None:
    reports = 0
    layers = 4 if preset == "qwen-27b" else 2
    for mesh, policy in itertools.product(MESHES, POLICIES):
        words = f"--preset {preset} --set num_layers={layers} --recipe {recipe} {mesh} --checkpoint {policy}"
        if "lora" in recipe and preset == "gpt2":
            words += " --lora-targets all-linear"
        found = answered(words, capfd)
        if found is None:
            continue
        reports += 1
        for note in found["notes"]:
            for size in SIZE.findall(note["message"]):
                assert float(size) >= 0, (words, note)
        said = {note["code"]: note["message"] for note in found["notes"]}
        if "moe-total" in said:
            assert f"this rank holds {held(found) / 2**30:.2f} GiB" in said["moe-total"]
            whole, idle = map(float, SIZE.findall(said["moe-total"]))
            assert idle <= whole
            assert ("trained ones alone" in said["moe-total"]) == ("lora" in recipe or "freeze" in recipe)
        if "saved-modules" in said:
            assert float(SIZE.findall(said["saved-modules"])[0]) <= held(found) / 2**30 + 0.01
        if "autocast-copies" in said:
            kept = found["estimates"]["autograd"]["saved_bytes"] / 2**30
            assert policy == "layer" or float(SIZE.findall(said["autocast-copies"])[0]) <= kept + 0.01
    assert reports


def test_all_experts_of_a_frozen_mixture_are_weights_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """30,532,122,624 weights of two bytes: 56.87 GiB, and what the adapters take."""
    found = answered("--preset qwen3-30b-a3b --recipe lora", capfd)
    assert found is not None
    text = next(note["message"] for note in found["notes"] if note["code"] == "moe-total")
    assert "this rank holds 56.8" in text or "this rank holds 56.9" in text
    assert "experts that one token does not meet" in text


def test_a_base_in_bf16_is_not_copied_by_autocast(capfd: pytest.CaptureFixture[str]) -> None:
    words = "--preset llama-3.2-1b --recipe autocast --lora-rank 16"
    copies = {}
    for more in ("", " --base-dtype fp32"):
        found = answered(words + more, capfd)
        assert found is not None
        text = next(note["message"] for note in found["notes"] if note["code"] == "autocast-copies")
        copies[more] = float(SIZE.findall(text)[0])
    assert copies[""] < 0.01
    assert copies[" --base-dtype fp32"] > 1


def test_the_type_of_adapters_says_what_the_other_keeps(capfd: pytest.CaptureFixture[str]) -> None:
    words = "--preset llama-3.2-1b --lora-rank 16 --lora-targets all-linear --recipe"
    wide, narrow = (answered(f"{words} {recipe}", capfd) for recipe in ("lora", "fsdp"))
    assert wide is not None
    assert narrow is not None
    saved = [one["estimates"]["autograd"]["saved_bytes"] for one in (wide, narrow)]
    size = f"{(saved[0] - saved[1]) / 2**30:.2f} GiB"
    said = [next(n["message"] for n in one["notes"] if n["code"] == "lora-dtype") for one in (wide, narrow)]
    assert f"in bf16 (--lora-dtype bf16) backward would keep {size} less" in said[0]
    assert f"in fp32 (peft alone) backward would keep {size} more" in said[1]
    assert "_fsdp_param.py" in said[1]
