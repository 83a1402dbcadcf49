"""Measures one forward and backward on fake tensors: what autograd keeps, and what is alive when."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from executed import kernels
from executed.meters import Allocations, Flops, storage_key
from executed.models import build, trunk
from executed.policies import Policy, executed, parse

FAKE = FakeTensorMode(allow_non_fake_inputs=True)
Forward = Callable[[], Any]


@cache
def fake_model(model: str, layers: int, attention: str, dtype: Any = torch.bfloat16) -> Any:
    """A model of the grid on fake tensors, built once."""
    with FAKE:
        return build(model, layers, attention, dtype)


def run_policy(
    model: str,
    layers: int,
    batch: int,
    seq: int,
    attention: str,
    policy: str = "none",
    block: int = 1,
    loss: str = "naive",
) -> dict[str, int]:
    """Measure a checkpoint policy: the four fields of `estimates.autograd`."""
    built = fake_model(model, layers, attention)
    with FAKE:
        return measure_step(built, step_of(built, batch, seq, loss), parse(policy, layers, block))


def run_plan(
    model: str, layers: int, batch: int, seq: int, attention: str, policy: str, block: int = 1
) -> dict[str, int]:
    """Execute a planned policy: its highest peak, and the FLOPs that it runs again."""
    built = fake_model(model, layers, attention)
    found = parse(policy, layers, block)
    with FAKE:
        forward = step_of(built, batch, seq, "naive")
        measured = measure_step(built, forward, found)
        once, planned = (_flops(built, forward, one) for one in (Policy([], {}), found))
    peak = max(measured["peak_forward_bytes"], measured["peak_backward_bytes"])
    return {"peak_bytes": peak, "flops_again": planned - once}


def run_schedules(
    model: str, layers: int, seq: int, attention: str, schedules: list[list[tuple[int, int]]]
) -> list[tuple[int, int]]:
    """Execute each of several schedules: (peak bytes, FLOPs run again)."""
    built = fake_model(model, layers, attention)
    found = []
    with FAKE:
        forward = step_of(built, 1, seq, "naive")
        once = _flops(built, forward, Policy([], {}))
        for segments in schedules:
            policy = Policy([(first, last) for first, last in segments], {})
            measured = measure_step(built, forward, policy)
            peak = max(measured["peak_forward_bytes"], measured["peak_backward_bytes"])
            found.append((peak, _flops(built, forward, policy) - once))
    return found


def step_of(model: Any, batch: int, seq: int, loss: str, device: str = "cpu") -> Forward:
    """The forward as the command's `--loss` means it: to the loss, or to the hidden states that a later pipeline
    stage takes."""
    ids = torch.zeros(batch, seq, dtype=torch.long, device=device)
    targets = ids.view(-1)  # outside of the step: they come with the batch

    def forward() -> Any:
        if loss == "naive":
            return model(input_ids=ids, labels=ids, use_cache=False).loss
        hidden = trunk(model)(input_ids=ids, use_cache=False).last_hidden_state
        if loss == "none":
            return hidden
        weight = model.get_output_embeddings().weight
        return kernels.FusedLinearCrossEntropy.apply(hidden.view(-1, hidden.shape[-1]), weight, targets)

    return forward


def measure_step(model: Any, forward: Forward, policy: Policy) -> dict[str, int]:
    """Saved bytes of one forward, then the bytes alive in another forward and its backward.

    Parameters, buffers and gradients that have been accumulated do not count. To be called inside the fake mode.
    """
    owned = [*model.parameters(), *model.buffers()]
    with executed(model, policy) as execution:
        saved = _saved_bytes(forward, execution, owned)
        meter = Allocations(ignored=owned)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        hooks = [p.register_post_accumulate_grad_hook(lambda p: meter.stop_counting(p.grad)) for p in trained]
        with meter:
            meter.enter_phase("forward")
            out = forward()
            execution.forget()
            end = meter.live
            meter.enter_phase("backward")
            out.backward(None if out.ndim == 0 else torch.empty_like(out))
        del out
    for hook in hooks:
        hook.remove()
    _drop_gradients(model)
    return {
        "saved_bytes": saved,
        "end_forward_bytes": end,
        "peak_forward_bytes": meter.peaks["forward"],
        "peak_backward_bytes": meter.peaks["backward"],
    }


class _Packed:
    """What a node of the graph holds in place of a tensor: alive as long as the node is."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def _saved_bytes(forward: Forward, execution: Any, owned: list[Any]) -> int:
    """Bytes of every storage that is packed, or cached by selective checkpointing, when the forward ends.

    What was packed for a part of the graph that is gone by then (DoRA's norm of the weights) does not count.
    """
    packed: list[Any] = []

    def pack(tensor: Any) -> _Packed:
        held = _Packed(tensor)
        packed.append(weakref.ref(held))
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        out = forward()
    saved = execution.kept()
    for held in (reference() for reference in packed):
        if held is not None:
            saved[storage_key(held.tensor)] = held.tensor.untyped_storage().nbytes()
    execution.forget()
    del out
    own = {storage_key(tensor) for tensor in owned}
    return sum(size for key, size in saved.items() if key not in own)


def _flops(model: Any, forward: Forward, policy: Policy) -> int:
    """FLOPs of the products that a forward and its backward run, and of the delta rule's forwards."""
    before = kernels.DeltaRule.flops
    with executed(model, policy), Flops() as flops:
        forward().backward()
    _drop_gradients(model)
    return flops.done + kernels.DeltaRule.flops - before


def _drop_gradients(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None
