"""Loss-parallel: the output projection divided over tensor-parallel ranks, its logits left divided, as the plan of
torchtitan or of a loop with `loss_parallel()` has it (torch/distributed/tensor/parallel/loss.py)."""

from __future__ import annotations

from ....autograd import Tensor
from ....basics.units import FP32, INT64
from ....model import Model
from ....ops.elementwise import to
from ....ops.parallel_loss import loss_parallel_cross_entropy
from ....ops.views import contiguous, narrow, view
from ....training import Run
from .. import head
from ..scope import Scope
from . import Ending


def parallel_loss(
    m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None
) -> Ending:
    """Logits of all tokens and of this rank's words, in fp32, and cross-entropy on them; labels padded by one and
    shifted, as Transformers' are."""
    made = head.scores(m, states.pop(), model, own)
    wide = to(made, FP32)
    padded = m.tape.empty((ids.shape[0], ids.shape[1] + 1), INT64, "constant_pad_nd")
    shifted = contiguous(narrow(padded, 1, 1, ids.shape[1]))
    del padded
    loss = loss_parallel_cross_entropy(view(wide, -1, wide.shape[-1]), view(shifted, -1))
    return loss, [made] if run.hold_logits else []
