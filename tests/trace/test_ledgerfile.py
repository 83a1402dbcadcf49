"""The ledger file: sizes as text, reading, refusing, evaluating. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actplan.basics.errors import InputError
from actplan.cli.main import run
from actplan.profile.ledger_file import (
    Check,
    Ledger,
    Point,
    Row,
    Span,
    Stage,
    evaluate_ledger,
    file,
    load_ledger,
    parse,
    write_ledger,
)
from actplan.trace.polynomial import fit_size, fit_sum, multiply, text, value


def _stage(role: str, saved: list[Row], **changes: Any) -> Stage:
    fields: dict[str, Any] = {
        "input_bytes": "8*B*T",
        "output_bytes": "8*B*T",
        "kept_bytes": "16*B*T",
        "held_bytes": "0",
        "forward_transients": ["4*B*T", "1000"],
        "backward_transients": ["12*B*T"],
        "gradient_bytes": 64,
        "forward_flops": "2*B*T*T",
        "backward_flops": "4*B*T*T",
    }
    return Stage(role=role, saved=saved, **{**fields, **changes})


def _ledger(**changes: Any) -> Ledger:
    rope = Row("attn", ["1", "T", "4"], "bfloat16", "8*T", shared="model.rope#0")
    own = Row("mlp", ["B", "T", "8"], "bfloat16", "16*B*T", count="2", reason="MulBackward0")
    fields: dict[str, Any] = {
        "actplan_ledger": 1,
        "name": "toy",
        "run": {"loss": "none"},
        "versions": {"torch": "2.13.0"},
        "num_parameters": 1000,
        "traced": [Point(1, 64), Point(2, 64)],
        "checked": [Check(3, 96, 0, 0.0)],
        "stages": {
            "embedding": _stage("embedding", [], input_bytes="0", kept_bytes="8*T"),
            "block": _stage("layer", [rope, own]),
            "final_norm": _stage("final_norm", [], output_bytes="0"),
        },
        "pattern": [Span("embedding"), Span("block", 3, "model.layers"), Span("final_norm")],
    }
    return Ledger(**{**fields, **changes})


def test_round_trip(tmp_path: Path) -> None:
    write_ledger(_ledger(), tmp_path / "a.yaml")
    assert load_ledger(tmp_path / "a.yaml") == _ledger()


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yaml"
    write_ledger(_ledger(), path)
    before = path.read_bytes()

    def fail(ledger: Ledger) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(file, "dump_ledger", fail)
    with pytest.raises(KeyboardInterrupt):
        write_ledger(_ledger(name="other"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError):
        write_ledger(_ledger(), tmp_path / "no" / "a.yaml")


def test_evaluation_puts_a_shared_tensor_in_the_first_layer() -> None:
    result = evaluate_ledger(_ledger(), 2, 100)
    assert [s.name for s in result.stages] == [
        "embedding", "model.layers.0", "model.layers.1", "model.layers.2", "final_norm",
    ]  # fmt: skip
    assert result.layer_saved_bytes == (800 + 6400, 6400, 6400)
    assert result.saved_bytes == 800 + 3 * 6400
    assert result.rows[0] == ("model.layers.0", "model.layers.0.attn", (1, 100, 4), "bfloat16", 800, 1)
    layer = result.stages[1]
    assert (layer.x, layer.x_out, layer.s, layer.tf, layer.tb, layer.g) == (1600, 1600, 3200, 1000, 2400, 64)
    assert (layer.forward_flops, layer.backward_flops) == (2 * 2 * 100 * 100, 4 * 2 * 100 * 100)


def test_peaks_of_a_stored_chain() -> None:
    peaks = evaluate_ledger(_ledger(), 1, 1000).peaks()
    kept = 8_000 + 4 * (8_000 + 16_000)
    assert peaks.end_forward_bytes == kept
    assert peaks.peak_forward_bytes == kept + 4_000
    assert peaks.peak_backward_bytes == kept + 12_000


def test_batch_one_has_stages_of_its_own() -> None:
    one = _ledger(batch_one={"block": _stage("layer", [])})
    assert evaluate_ledger(one, 1, 64).saved_bytes == 0
    assert evaluate_ledger(one, 2, 64).saved_bytes > 0


def test_a_ledger_of_one_batch_answers_for_that_batch_only() -> None:
    only = _ledger(traced=[Point(1, 64), Point(1, 128)])
    assert evaluate_ledger(only, 1, 64).batch == 1
    with pytest.raises(InputError, match="batch 1 only"):
        evaluate_ledger(only, 2, 64)


@pytest.mark.parametrize(("batch", "seq"), [(0, 1), (1, 0), (True, 1), (1, -5)])
def test_sizes_must_be_positive(batch: int, seq: int) -> None:
    with pytest.raises(InputError):
        evaluate_ledger(_ledger(), batch, seq)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("actplan_ledger: 1", "actplan_ledger: 2"),
        ("name: toy", "name: toy\nname: toy"),
        ("name: toy", "surname: toy"),
        ("name: toy", "name: [toy]"),
        ("count: 3", "count: 0"),
        ("count: 3", "count: many"),
        ("stage: block", "stage: blok"),
        ("8*T", "8*Q"),
        ("8*T", "__import__('os')"),
        ("8*T", "ceil(T/0)"),
        ("gradient_bytes: 64", "gradient_bytes: 6.5"),
        ("pattern:", "pattern: []\nx:"),
        ("name: toy", "name: !!python/object/apply:os.system ['true']"),
    ],
)
def test_wrong_files(tmp_path: Path, old: str, new: str) -> None:
    good = file.dump_ledger(_ledger())
    assert old in good
    (tmp_path / "bad.yaml").write_text(good.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.yaml"):
        load_ledger(tmp_path / "bad.yaml")


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"a: [", b"- 1", b"? [1]\n: 2"])
def test_not_ledgers(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "bad.yaml").write_bytes(body)
    with pytest.raises(InputError, match=r"bad\.yaml"):
        load_ledger(tmp_path / "bad.yaml")


def test_factors() -> None:
    assert parse("3*B*T + -2*B + 7").at(2, 10) == 63
    assert parse("64*ceil(T/64)").at(1, 65) == 128
    assert parse("floor(T/2)").at(1, 7) == 3
    assert parse("2*pow2(B*T/3)").at(1, 10) == 8
    assert parse("pow2(B*T/1)").at(1, 10) == 10


POINTS = [(b, t) for t in (1001, 2057, 4105) for b in (2, 3)]


@given(
    coefficients=st.lists(st.integers(1, 1 << 40), min_size=1, max_size=2),
    factors=st.lists(st.sampled_from([(), ("T",), ("B", "T"), ("B", "T", "T")]), min_size=2, max_size=2, unique=True),
)
def test_a_fit_finds_what_made_the_samples(coefficients: list[int], factors: list[tuple[str, ...]]) -> None:
    poly = dict(zip(factors, coefficients, strict=False))
    values = [value(poly, p) for p in POINTS]
    assert fit_sum(values, POINTS) == poly
    assert parse(text(poly)).at(3, 777) == value(poly, (3, 777))


@pytest.mark.parametrize("made", ["T + 3", "B*T + B", "ceil(T/64)", "64*ceil(T/64)", "128*ceil(T/128)", "16*B", "7"])
def test_dimensions(made: str) -> None:
    found = fit_size([parse(made).at(*p) for p in POINTS], POINTS)
    assert found is not None
    assert value(found, (5, 9999)) == parse(made).at(5, 9999)


def test_products_of_dimensions() -> None:
    assert multiply([{("B",): 1}, {("T",): 1, (): 3}, {(): 64}], 2) == {("B", "T"): 128, ("B",): 384}


@pytest.fixture
def toy(tmp_path: Path) -> str:
    path = tmp_path / "toy.yaml"
    write_ledger(_ledger(), path)
    return str(path)


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(list(arguments))
    out, err = capfd.readouterr()
    return code, out, err


def test_sweep_says_what_estimate_says(toy: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(
        capfd, "sweep", "--ledger", toy, "--seq", "64..256", "--checkpoint", "none,layer", "--format", "json"
    )
    rows = json.loads(out)["rows"]
    assert (code, len(rows)) == (0, 6)
    for row in rows:
        one = ["--seq", str(row["sequence_length"]), "--checkpoint", row["checkpoint"], "--format", "json"]
        _, out, _ = said(capfd, "estimate", "--ledger", toy, *one)
        estimates = json.loads(out)["estimates"]
        assert row["autograd_bytes"] == estimates["autograd"]["saved_bytes"]
        assert row["peak_bytes"] == json.loads(out)["peak"]["bytes"]
        assert row["residual_bytes"] == estimates["residual"]["saved_bytes"]
        assert row["checkpointed_policy"] == estimates["checkpointed"]["policy"]
        assert row["checkpointed_autograd_bytes"] == estimates["checkpointed"]["autograd"]["peak_bytes"]


def test_a_plan_is_the_estimate_of_its_policy(toy: str, capfd: pytest.CaptureFixture[str]) -> None:
    at = ["--ledger", toy, "--seq", "4096", "--format", "json"]
    peaks = {}
    for policy in ("none", "layer"):
        _, out, _ = said(capfd, "estimate", *at, "--checkpoint", policy)
        peaks[policy] = json.loads(out)["peak"]["bytes"]
    assert peaks["layer"] < peaks["none"]
    for limit in (peaks["layer"], (peaks["layer"] + peaks["none"]) // 2, peaks["none"]):
        code, out, _ = said(capfd, "plan", *at, "--limit", f"{limit}B")
        plan = json.loads(out)["plan"]
        assert (code, plan["feasible"]) == (0, True)
        assert plan["peak_bytes"] <= limit
        layers = [i for unit in plan["units"] for i in range(unit["first_stage"], unit["last_stage"] + 1)]
        assert layers == [0, 1, 2]
        _, out, _ = said(capfd, "estimate", *at, "--checkpoint", plan["policy"])
        assert json.loads(out)["peak"]["bytes"] == plan["peak_bytes"]
    code, out, _ = said(capfd, "plan", *at, "--limit", "1KiB")
    assert (code, json.loads(out)["plan"]["feasible"]) == (1, False)
    code, out, _ = said(capfd, "plan", *at, "--frontier")
    assert code == 0
    assert json.loads(out)["frontier"][-1] == [peaks["none"], 0]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["estimate", "--tp", "2"], "--tp"),
        (["sweep", "--dtype", "fp32,bf16"], "--dtype"),
        (["sweep", "--gpu", "h100-80gb"], "--ledger"),
        (["plan", "--limit", "1GiB", "--max", "layers"], "--max layers"),
        (["plan", "--limit", "1GiB", "--per-op"], "--per-op"),
        (["plan", "--limit", "1GiB", "--lora-rank", "8"], "--lora-rank"),
        (["ledger", "--loss", "fused"], "--loss"),
    ],
)
def test_what_a_ledger_cannot_follow(
    toy: str, arguments: list[str], where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capfd, *arguments, "--ledger", toy)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"error: {where}: " in err
