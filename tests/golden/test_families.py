"""Families of Transformers in small variants, tensor by tensor, against PyTorch (`family_records`)."""

from __future__ import annotations

from typing import Any

import family_records as records
import pytest

from actplan.model.families import READERS


@pytest.mark.parametrize("record", records.RECORDS, ids=records.name)
def test_every_tensor_parameter_and_peak(record: dict[str, Any]) -> None:
    run = records.walked(record)
    assert records.our_rows(run) == records.traced_rows(record)
    assert run.saved_bytes == record["saved_bytes"]
    assert sum(p.numel for p in run.tape.parameters.values()) == record["parameters"]
    # a tracer that sees a view of the token ids counts them as born in the step
    ids = 512 * -(-8 * record["batch"] * record["seq"] // 512)
    for measure in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        ours, theirs = getattr(run, measure), record[measure]
        assert any(ours == pytest.approx(seen, rel=0.0005) for seen in (theirs, theirs - ids)), measure


def test_records_are_of_families_that_are_read() -> None:
    assert {record["config"]["model_type"] for record in records.RECORDS} <= set(READERS)
