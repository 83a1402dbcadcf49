"""Losses on an output projection that tensor-parallel ranks divide.

Its logits are left divided, as torchtitan's plan or a loop with `loss_parallel()` has it
(torch/distributed/tensor/parallel/loss.py), or gathered.
"""

from __future__ import annotations

from ....autograd import Tensor
from ....basics.units import FP32, INT64
from ....model import Model
from ....ops.communication import all_gather_columns
from ....ops.elementwise import to
from ....ops.loss import cross_entropy
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


def gathered_loss(
    m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None
) -> Ending:
    """Logits of this rank's words, gathered from all ranks (`ColwiseParallel(output_layouts=Replicate())`), and
    Transformers' cross-entropy on them."""
    made = all_gather_columns(head.scores(m, states.pop(), model, own), m.mesh.tp)
    wide = to(made, FP32)
    padded, shifted = head.shifted_labels(m, ids)
    loss = cross_entropy(view(wide, -1, wide.shape[-1]), shifted)
    del padded
    return loss, [made] if run.hold_logits else []
