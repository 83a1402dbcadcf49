"""Layers that torch.compile compiles one by one (`model.layers[i].compile()`), and what is not planned of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from ...autograd import Tensor
from ...basics.errors import InputError
from ...compiled.region import Region
from ...model import Layer
from ...ops.rope import Tables
from ...training import Run
from ...training.policies import recomputed_parts
from .block import decoder_layer
from .scope import Scope

WHERE = "--compile"


def compiled_layer(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """[B, T, hidden] to the same: a decoder layer as one compiled region."""
    region = Region(m.tape)
    inner = copy(m)
    inner.tape = region.tape
    inner.padding = None if m.padding is None else region.given(m.padding)
    states = region.given(hidden)
    inside = None if tables is None else (region.given(tables[0]), region.given(tables[1]))
    masked = None if mask is None else region.given(mask)
    result = decoder_layer(inner, states, spec, inside, masked)
    if inner.handed is not None:
        raise InputError(
            "layers that hand indices to the next one are not planned compiled", where=WHERE, allowed="none"
        )
    return region.finish(result)


def compiled_loss(
    m: Scope, loss: Callable[[Scope, Tensor, Tensor, int], Tensor], logits: Tensor, labels: Tensor, vocabulary: int
) -> Tensor:
    """The loss of logits [B, T, vocabulary] and labels [B, T] as one region (`torch.compile(loss_function)`)."""
    region = Region(m.tape)
    inner = copy(m)
    inner.tape = region.tape
    return region.finish(loss(inner, region.given(logits), region.given(labels), vocabulary))


def check_compiled(run: Run) -> None:
    """Raise InputError for what is not planned of compiled layers and losses."""
    if "loss" in run.compiled and run.loss != "naive" and not run.loss_kind.opaque:
        wrong = f"{run.loss_kind.words} is not planned compiled"
        raise InputError(wrong, where=WHERE, allowed="none or layer, or --loss naive")
    if "layer" not in run.compiled:
        return
    if recomputed_parts(run.checkpoint):
        wrong = "a checkpoint around a compiled layer does not see what is inside"
        raise InputError(wrong, where="--checkpoint", allowed="policies of whole layers with --compile")
    mesh = run.mesh
    for flag, degree in (("--tp", mesh.tp), ("--cp", mesh.cp), ("--ep", mesh.ep)):
        if degree > 1:
            raise InputError("compiled layers are planned undivided", where=flag, allowed="without --compile")
    if run.split_backward:
        raise InputError("a compiled backward is not split", where=WHERE, allowed="another --pp-schedule")
    if run.quantised is not None:
        raise InputError("bitsandbytes' kernels in compiled layers are not planned", where=WHERE, allowed="none")
