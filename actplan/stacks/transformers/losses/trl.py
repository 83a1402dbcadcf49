"""TRL's loss of supervised fine-tuning: the fused head in tiles, and what `SFTTrainer` makes of its outputs.

trl 1.16: trl/trainer/utils.py (add_fused_lm_head), trl/trainer/sft_trainer.py (compute_loss with
`num_items_in_batch`, one process). Every label is taken to count: rows of prompts or padding would be left out.
What a GPU's index kernels take for themselves (the positions of a mask, sorted indices) is not counted.
"""

from __future__ import annotations

from ....autograd import Tensor
from ....basics.units import BOOL, INT64
from ....model import Model
from ....ops.elementwise import mul_scalar
from ....ops.indexing import masked_rows, masked_scatter
from ....ops.scalars import div, neg, total
from ....ops.tiled_loss import tiled_log_probs
from ....ops.views import narrow
from ....training import Run
from .. import head
from ..scope import Scope
from . import Ending


def tiled_loss(m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None) -> Ending:
    """The last position of each sequence dropped, rows with a label copied, their log-probabilities in tiles."""
    log_probs = _fused_forward(m, states, ids, model, run, own)
    per_token = neg(log_probs)
    summed = total(per_token)
    count = m.tape.empty((), INT64, "clamp")
    return mul_scalar(div(summed, count)), []


def _fused_forward(m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None) -> Tensor:
    """`_fused_forward` of `add_fused_lm_head`: the log-probability of each label, [B, T - 1] fp32."""
    hidden = states[0]
    # context parallelism hands over labels that are shifted already
    last = hidden.shape[1] - (1 if run.mesh.cp == 1 else 0)
    kept, labels = narrow(hidden, 1, 0, last), narrow(ids, 1, ids.shape[1] - last, last)
    mask = m.tape.empty(labels.shape, BOOL, "ne")
    weight, bias = head.output_weight(m, model, own), head.output_bias(m, model, own)
    # the outputs' own loss, their entropy and the rest are measured and dropped: nothing of their graphs is kept
    return _per_token(masked_rows(kept, mask), masked_rows(labels, mask), weight, bias, mask)[0]


def _per_token(rows: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor) -> list[Tensor]:
    made = list(tiled_log_probs(rows, weight, bias, labels))
    found = []
    while made:
        zeros = mask.tape.empty(mask.shape, made[0].dtype, "new_zeros")
        found.append(masked_scatter(mask, made.pop(0)))
        del zeros
    return found
