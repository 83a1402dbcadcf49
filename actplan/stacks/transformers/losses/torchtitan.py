"""torchtitan's chunked loss behind a model of Transformers: torchtitan/components/loss.py and trainer.py of 0.3.0,
_forward_backward_body. Labels come shifted; eager."""

from __future__ import annotations

from ....autograd import Tensor
from ....basics.units import FP32, INT64
from ....model import Model
from ....ops import chunked_loss as chunked
from ....ops import loss as losses
from ....ops.elementwise import to
from ....ops.scalars import div
from ....ops.views import view
from ....training import Run
from .. import head
from ..scope import Scope
from . import Ending


def chunked_loss(m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None) -> Ending:
    """ChunkedLossWrapper.__call__: the gradient of the hidden states is what is kept."""

    def project(chunk: Tensor) -> Tensor:
        return head.scores(m, chunk, model)

    return chunked.chunked_loss(states[0], ids, run.loss_chunks, project, _cross_entropy), []


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """CrossEntropyLoss.__call__: divided by the number of labels of all ranks."""
    flat = to(view(logits, -1, logits.shape[-1]), FP32)
    loss = losses.cross_entropy(flat, view(target, -1))
    return div(loss, logits.tape.empty((), INT64, "global_valid_tokens"))
