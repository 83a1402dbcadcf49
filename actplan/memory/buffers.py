"""Buffers of the pipeline's runtime; those of each way of sharding are in `actplan.memory.sharding`."""

from __future__ import annotations

from ..basics.allocator import rounded
from ..training.mesh import Mesh
from ..training.pipelining import place_of
from .lines import ALWAYS, Line, Phase


def megatron_buffers(boundary_bytes: int, chunks: int, first_stage: bool) -> list[Line]:
    """What Megatron-Core's schedules leave alive on a rank between steps: each chunk that receives keeps its last input
    and that input's gradient (megatron/core/pipeline_parallel/schedules.py and `set_input_tensor`). During a step they
    are among the micro-batches in flight, which belong to the activations."""
    receiving = chunks - (1 if first_stage else 0)
    if not boundary_bytes or receiving <= 0:
        return []
    reason = f"the last input and its gradient of {receiving} model chunk{'s' if receiving > 1 else ''}"
    source = "Megatron-LM: pipeline_parallel/schedules.py, transformer_block.py set_input_tensor"
    phases: frozenset[Phase] = frozenset(("optimizer_step", "after_step"))
    size = 2 * receiving * boundary_bytes
    return [Line("communication", "pipeline receive buffers", size, phases, reason, source)]


def torch_buffers(boundary_bytes: int, mesh: Mesh, stage: int, microbatches: int, *, folded: bool) -> list[Line]:
    """What `PipelineStage` receives into: a buffer for every micro-batch and chunk, of activations where the chunk does
    not begin the model and of gradients where it does not end it, made before the first step and kept
    (torch/distributed/pipelining/stage.py, _setup_forward_recv_info, _create_grad_recv_info). Between two chunks of one
    rank the tensors themselves take the place of buffers (set_local_fwd_input, set_local_bwd_input)."""
    last = mesh.pp * mesh.vpp - 1
    places = [place_of(mesh, stage, chunk, folded=folded) for chunk in range(mesh.vpp)]
    each = sum(place != 0 for place in places) + sum(place != last for place in places)
    reason = f"inputs and gradients of outputs of {microbatches} micro-batches, allocated throughout"
    source = "torch/distributed/pipelining/stage.py: _setup_forward_recv_info, _create_grad_recv_info"
    size = each * microbatches * rounded(boundary_bytes)
    return [Line("communication", "pipeline receive buffers", size, ALWAYS, reason, source)] if size else []
