"""The command against PyTorch: every saved tensor, every layer, parameters and both peaks of all traced runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from golden_reference import RECORDS, arguments, name, our_rows, traced_rows

from actplan.cli.main import run

PEAK_TOLERANCE = 0.001


def report(capfdbinary: pytest.CaptureFixture[bytes], command: str, words: Sequence[str]) -> Any:
    import json

    assert run([command, *words, "--format", "json"]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    return json.loads(out)


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_estimate_is_what_pytorch_keeps(record: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    said = report(capfdbinary, "estimate", arguments(record))
    autograd = said["estimates"]["autograd"]
    assert autograd["saved_bytes"] == record["saved_bytes"]
    assert autograd["layer_saved_bytes"] == record["layer_saved_bytes"]
    assert sum(autograd["outside_layers"].values()) == sum(record["outside_layers"].values())
    assert said["model"]["num_parameters"] == record["parameters"]
    assert autograd["peak_forward_bytes"] == pytest.approx(record["peak_forward_bytes"], rel=PEAK_TOLERANCE)
    if record.get("accumulates_out_of_place"):
        # the tracer adds a tied embedding's gradients out of place, a GPU in place
        assert autograd["peak_backward_bytes"] <= record["peak_backward_bytes"]
    else:
        assert autograd["peak_backward_bytes"] == pytest.approx(record["peak_backward_bytes"], rel=PEAK_TOLERANCE)


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_ledger_is_pytorch_s_tensor_by_tensor(
    record: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    rows = report(capfdbinary, "ledger", arguments(record))["ledger"]
    assert our_rows(rows) == traced_rows(record)
    assert all(row["reason"] and row["name"] for row in rows)
