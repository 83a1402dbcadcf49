"""Buffers of the pipeline's schedule; those of each way of sharding are in `actplan.memory.sharding`."""

from __future__ import annotations

from .lines import Line, Phase


def pipeline_buffers(boundary_bytes: int, chunks: int, first_stage: bool) -> list[Line]:
    """What an interleaved or 1F1B schedule leaves alive on a rank between steps: each chunk that receives
    keeps its last input and that input's gradient (Megatron-LM, megatron/core/pipeline_parallel/schedules.py
    and `set_input_tensor`). During a step they are among the micro-batches in flight, which belong to the
    activations."""
    receiving = chunks - (1 if first_stage else 0)
    if not boundary_bytes or receiving <= 0:
        return []
    reason = f"the last input and its gradient of {receiving} model chunk{'s' if receiving > 1 else ''}"
    source = "Megatron-LM: pipeline_parallel/schedules.py, transformer_block.py set_input_tensor"
    phases: frozenset[Phase] = frozenset(("optimizer_step", "after_step"))
    return [
        Line(
            "communication",
            "pipeline receive buffers",
            2 * receiving * boundary_bytes,
            phases,
            reason,
            source,
        )
    ]
