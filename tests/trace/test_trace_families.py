"""The product's own trace against the analytic layers, one run of each variant in `autograd_families.json`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent.parent / "golden"))
import family_records as records

from actplan.autograd import Tape
from actplan.stacks.transformers.model import walk

pytestmark = pytest.mark.torch
FIRST: dict[str, dict[str, Any]] = {}
for _record in records.RECORDS:
    FIRST.setdefault(_record["case"], _record)


@pytest.mark.parametrize("record", FIRST.values(), ids=FIRST)
def test_analytic_is_traced(record: dict[str, Any]) -> None:
    from actplan.trace import TraceOptions, compare, trace_model

    run = replace(records.run_of(record), device="cuda")
    ours = walk(records.model_of(record), run, tape=Tape())
    options = TraceOptions(
        batch=run.micro_batch_size,
        seq=run.sequence_length,
        dtype=str(run.dtype),
        attention=run.attention,
        linear_attention=run.linear_attention,
        native="cuda",
    )
    theirs = trace_model(record["config"], options)
    rows = [("", row.module or "<loss>", row.shape, row.dtype, row.nbytes, row.count) for row in ours.tape.ledger]
    traced = [("", module or "<loss>", *rest) for _, module, *rest in theirs.rows()]
    assert compare(rows, traced) == []  # type: ignore[arg-type]
    assert theirs.num_parameters == sum(p.numel for p in ours.tape.parameters.values())
    for measure in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert getattr(ours, measure) == pytest.approx(getattr(theirs, measure), rel=0.0005), measure
