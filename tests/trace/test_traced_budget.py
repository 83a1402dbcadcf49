"""The whole budget of a traced model: the same as of the model that actplan knows, where it knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actplan.basics.errors import InputError
from actplan.cli.main import run
from actplan.profile.ledger_file import Parameter, Weights, load_ledger, write_ledger

LEDGER = Path(__file__).parent.parent / "reference" / "ledger_llama_3_2_1b.yaml"
"""Written by `actplan trace --model tests/reference/configs/llama-3.2-1b.json --attention flash -o`."""
KNOWN = ("--preset", "llama-3.2-1b", "--attention", "flash")
TRACED = ("--ledger", str(LEDGER))


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(list(arguments))
    out, err = capfd.readouterr()
    return code, out, err


def answer(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, err = said(capfd, *arguments, "--format", "json")
    assert not err
    return code, json.loads(out)


@pytest.mark.parametrize("policy", ["none", "layer", "every:4"])
@pytest.mark.parametrize(
    "recipe",
    [
        ("bf16",),
        ("fsdp", "--dp", "8"),
        ("fsdp", "--dp", "8", "--reshard", "never", "--offload", "activations"),
        ("zero-3", "--dp", "8", "--optimizer", "adamw8bit"),
        ("megatron-bf16-dist", "--dp", "4", "--microbatches", "4"),
        ("bf16", "--optimizer-in-backward"),
    ],
    ids=" ".join,
)
def test_it_is_that_of_the_known_model(recipe: tuple[str, ...], policy: str, capfd: pytest.CaptureFixture[str]) -> None:
    more = ("--seq", "4k", "--batch", "2", "--checkpoint", policy, "--gpu", "a100-40gb", "--recipe", *recipe)
    code, traced = answer(capfd, "estimate", *TRACED, *more)
    known_code, known = answer(capfd, "estimate", *KNOWN, *more)
    assert code == known_code
    assert traced["fit"]["fits"] == known["fit"]["fits"]
    for ours, theirs in zip(traced["budget"]["phases"], known["budget"]["phases"], strict=True):
        assert ours["total_bytes"] == pytest.approx(theirs["total_bytes"], rel=2e-3)
        for name in ("parameters", "optimizer", "communication"):
            assert ours[f"{name}_bytes"] == theirs[f"{name}_bytes"]
        sizes = [size for key, size in ours.items() if key.endswith("_bytes") and "total" not in key]
        assert ours["total_bytes"] == sum(sizes)
    for band in ("reserved_bytes", "device_bytes"):
        assert traced["budget"][band]["high"] == pytest.approx(known["budget"][band]["high"], rel=2e-3)


def test_a_verdict_tries_what_leaves_the_layers_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capfd, "estimate", *TRACED, "--seq", "16k", "--recipe", "bf16", "--gpu", "a100-40gb")
    assert code == 1
    fit = found["fit"]
    assert fit["blame"] in ("activations", "loss")
    words = " ".join(remedy["change"] for remedy in fit["remedies"])
    assert "--checkpoint layer" in words
    assert not any(word in words for word in ("--loss", "--kernels", "--attention", "--tp", "--cp"))
    assert any(remedy["fits"] for remedy in fit["remedies"])
    assert {r["recompute_flops_fraction"] > 0 for r in fit["remedies"] if "layer" in r["change"]} == {True}


def test_a_sweep_has_budgets_too(capfd: pytest.CaptureFixture[str]) -> None:
    fixed = ("--seq", "4k", "--checkpoint", "layer", "--gpu", "a100-40gb")
    _, swept = answer(capfd, "sweep", *TRACED, *fixed, "--dp", "8,16", "--recipe", "fsdp,zero-3")
    assert [(row["dp"], row["recipe"]) for row in swept["rows"]] == [
        (dp, recipe) for dp in (8, 16) for recipe in ("fsdp", "zero-3")
    ]
    _, one = answer(capfd, "estimate", *TRACED, *fixed, "--dp", "16", "--recipe", "zero-3")
    assert swept["rows"][-1]["total_bytes"] == one["budget"]["total_bytes"]
    assert swept["rows"][-1]["fits"] is one["fit"]["fits"] is True


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--recipe", "qlora"), "--recipe: recipe qlora quantises its base, the trace did not"),
        (("--recipe", "lora"), "--recipe: recipe lora freezes a base, the trace trained every parameter"),
        (("--recipe", "fp32"), "--recipe: recipe fp32 computes in fp32, the trace ran in bf16"),
        (("--recipe", "autocast"), "--recipe: recipe autocast runs under autocast, the trace did not"),
        (("--recipe", "bf16", "--tp", "2"), "--tp: a traced model is whole on its rank"),
        (("--recipe", "bf16", "--loss", "fused"), "--loss: the trace has decided this"),
        (("--recipe", "bf16", "--cp", "2"), "--cp: a traced model is whole on its rank"),
    ],
)  # fmt: skip
def test_what_the_trace_does_not_tell(
    arguments: tuple[str, ...], error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capfd, "estimate", *TRACED, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"actplan: error: {error}")


def test_a_ledger_of_before_parameters_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_ledger(replace(load_ledger(LEDGER), weights=[]), tmp_path / "old.yaml")
    assert said(capfd, "estimate", "--ledger", str(tmp_path / "old.yaml"))[0] == 0
    code, _, err = said(capfd, "estimate", "--ledger", str(tmp_path / "old.yaml"), "--recipe", "bf16")
    assert code == 2
    assert "the ledger lists no parameters" in err


def test_a_ledger_of_before_gradients_adds_them_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It does not say when each gradient is accumulated, so that a stage's may all be there at its highest point."""
    ledger = load_ledger(LEDGER)
    bare = {name: replace(stage, before_gradients=[], gradients=[]) for name, stage in ledger.stages.items()}
    write_ledger(replace(ledger, stages=bare, batch_one={}), tmp_path / "old.yaml")
    more = ("--seq", "1k", "--batch", "2", "--recipe", "bf16", "--checkpoint", "none")
    old, new = (
        answer(capfd, "estimate", "--ledger", str(path), *more)[1]["budget"]["phases"]
        for path in (tmp_path / "old.yaml", LEDGER)
    )
    assert [phase["total_bytes"] for phase in old[::2]] == [phase["total_bytes"] for phase in new[::2]]
    assert old[1]["total_bytes"] > new[1]["total_bytes"]


@pytest.mark.parametrize(
    "weights",
    [
        [Weights("embedding", [Parameter("w", [-1])])],
        [Weights("embedding", [Parameter("w", [1 << 60])])],
        [Weights("embedding", [Parameter("w", [1 << 30, 1 << 30])])],
        [Weights("embedding", [Parameter("w", [8], "int3")])],
        [Weights("model.layers", [Parameter("w", [8])], 0, 0)],
        [Weights("model.layers", [Parameter("w", [8])], -1)],
        [Weights("embedding", [Parameter("w", [8])])],
    ],
)
def test_wrong_parameters(weights: list[Weights], tmp_path: Path) -> None:
    write_ledger(replace(load_ledger(LEDGER), weights=weights), tmp_path / "bad.yaml")
    with pytest.raises(InputError, match=r"bad\.yaml.*weights"):
        load_ledger(tmp_path / "bad.yaml")


@pytest.mark.torch
def test_the_ledger_is_what_the_trace_writes(tmp_path: Path) -> None:
    from actplan.trace import TraceOptions, fit_ledger

    config = LEDGER.parent / "configs" / "llama-3.2-1b.json"
    write_ledger(
        fit_ledger(str(config), TraceOptions(attention="flash", linear_attention="fla")), tmp_path / "again.yaml"
    )
    again, before = load_ledger(tmp_path / "again.yaml"), load_ledger(LEDGER)
    assert replace(again, versions={}) == replace(before, versions={})


@pytest.mark.torch
def test_parameters_of_every_kind_of_layer_add_up() -> None:
    from actplan.trace import TraceOptions, fit_ledger

    config = LEDGER.parent / "configs" / "qwen3.8-27b.json"
    options = TraceOptions(attention="flash", linear_attention="fla", loss="none", num_layers=8)
    ledger = fit_ledger(str(config), options, lengths=(500, 1001), batches=(1,), check=[])
    places = [(entry.place, entry.first, entry.count) for entry in ledger.weights]
    assert places[0] == ("embedding", 0, 1)
    assert places[-1] == ("head", 0, 1)
    assert [(first, count) for _, first, count in places[1:-1]] == [(0, 3), (3, 1), (4, 3), (7, 1)]
