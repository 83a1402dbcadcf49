"""Families of Transformers in small variants, tensor by tensor, against PyTorch (`family_records`)."""

from __future__ import annotations

from typing import Any

import family_records as records
import pytest
from msgspec import structs

from actplan.model.families import READERS
from actplan.model.reading import load_model
from actplan.profile.measured import measure
from actplan.training import Run


@pytest.mark.parametrize("record", records.RECORDS, ids=records.name)
def test_every_tensor_parameter_and_peak(record: dict[str, Any]) -> None:
    run = records.walked(record)
    assert records.our_rows(run) == records.traced_rows(record)
    assert run.saved_bytes == record["saved_bytes"]
    assert sum(p.numel for p in run.tape.parameters.values()) == record["parameters"]
    # a tracer that sees a view of the token ids counts them as born in the step
    ids = 512 * -(-8 * record["batch"] * record["seq"] // 512)
    for quantity in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        ours, theirs = getattr(run, quantity), record[quantity]
        assert any(ours == pytest.approx(seen, rel=0.0005) for seen in (theirs, theirs - ids)), quantity


def test_records_are_of_families_that_are_read() -> None:
    assert {record["config"]["model_type"] for record in records.RECORDS} <= set(READERS)


PUBLISHED = {
    # Transformers 5.24, AutoModelForCausalLM.from_config on the meta device, of tests/reference/configs
    "minimax-m2.5": 228_689_748_992,
    "nemotron-3-nano": 31_577_937_344,
    "qwen3-vl-8b": 8_190_735_360,  # as Qwen3ForCausalLM of the same sizes
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_published_model_has_its_parameters_as_preset_and_as_configuration(preset: str) -> None:
    ours = load_model(preset, preset=True)
    theirs = load_model(str(records.FILE.parent / "configs" / f"{preset}.json"), preset=False)
    assert ours == structs.replace(theirs, name=ours.name, title=ours.title, source=ours.source)
    assert measure(ours, Run(sequence_length=64)).num_parameters == PUBLISHED[preset]
