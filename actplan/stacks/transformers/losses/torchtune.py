"""torchtune's two chunked losses, with what its recipes hold around them; eager, not compiled.

LinearCrossEntropyLoss: torchtune/modules/loss/cross_entropy_loss.py and recipes/full_finetune_single_device.py of
April 2026, whose labels come shifted. CEWithChunkedOutputLoss: torchtune 0.6.1, ce_chunked_output_loss.py,
TransformerDecoder.chunked_output and the same recipe, which shifts them. Every label is taken to count.
"""

from __future__ import annotations

from ....autograd import Tensor
from ....basics.units import BOOL, FP32, INT64
from ....model import Model
from ....ops import loss as losses
from ....ops.elementwise import add_in_place, mul, mul_scalar, to
from ....ops.indexing import index_select
from ....ops.scalars import counted, div
from ....ops.views import narrow, reshape, split, view
from ....training import Run
from .. import head
from ..scope import Scope
from . import Ending


def linear_loss(m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None) -> Ending:
    """Rows with a label copied, then projection and cross-entropy chunk by chunk; every chunk's fp32
    log-probabilities are kept."""
    number = counted(ids)
    outputs = states[0]
    rows, labels = _valid(reshape(outputs, -1, outputs.shape[-1]), view(ids, -1))
    total = m.tape.empty((), FP32, "tensor")
    sizes = _tensor_split(rows.shape[0], run.loss_chunks)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    chunks = [(narrow(rows, 0, at, n), narrow(labels, 0, at, n)) for at, n in zip(starts, sizes, strict=True)]
    for hidden, target in chunks:
        loss = _projected(m, hidden, target, model, own)
        total = add_in_place(total, loss)
    return mul(mul_scalar(total), number), []


def _projected(m: Scope, hidden: Tensor, target: Tensor, model: Model, own: str | None) -> Tensor:
    made = head.scores(m, hidden, model, own)
    return losses.cross_entropy(to(made, FP32), target)


def _valid(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """mask_inputs: the rows whose label counts, by their numbers."""
    which = labels.tape.empty(labels.shape, BOOL, "ne")
    numbers = view(labels.tape.empty((labels.numel, 1), INT64, "nonzero"), -1)
    del which
    return index_select(rows, numbers), index_select(labels, numbers)


def output_loss(m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None) -> Ending:
    """Logits chunk by chunk, all of them, then cross-entropy chunk by chunk."""
    number = counted(ids)
    made = _chunked_output(m, states, model, run, own)
    shifted = m.tape.empty(ids.shape, INT64, "hstack")
    return mul(_chunked_cross_entropy(made, shifted), number), made if run.hold_logits else []


def _chunked_cross_entropy(made: list[Tensor], shifted: Tensor) -> Tensor:
    """CEWithChunkedOutputLoss.forward."""
    elements = counted(shifted)
    sizes = [chunk.shape[1] for chunk in made]
    labels = [reshape(part, -1) for part in split(shifted, sizes, 1)]
    total: Tensor | None = None
    for logits, target in zip([reshape(chunk, -1, chunk.shape[-1]) for chunk in made], labels, strict=True):
        total = _added(total, losses.cross_entropy(to(logits, FP32), target))
    assert total is not None
    return div(total, elements)


def _added(total: Tensor | None, loss: Tensor) -> Tensor:
    """`total += loss`, where the first total is Python's 0.0."""
    return mul_scalar(loss) if total is None else add_in_place(total, loss)


def _chunked_output(m: Scope, states: list[Tensor], model: Model, run: Run, own: str | None) -> list[Tensor]:
    """TransformerDecoder.chunked_output: the model lets go of its hidden states with its end."""
    hidden = states.pop()
    chunks = split(hidden, _chunk(hidden.shape[1], run.loss_chunks), 1)
    return [head.scores(m, chunk, model, own) for chunk in chunks]


def _tensor_split(length: int, chunks: int) -> list[int]:
    """`torch.tensor_split`: as equal as can be, the first ones larger; there may be empty ones."""
    each, more = divmod(length, chunks)
    return [each + 1 if i < more else each for i in range(chunks)]


def _chunk(length: int, chunks: int) -> list[int]:
    """`torch.chunk`: pieces of one size, the last one smaller; there may be fewer."""
    size = -(-length // chunks)
    return [min(size, length - at) for at in range(0, length, size)]


__all__ = ["linear_loss", "output_loss"]
