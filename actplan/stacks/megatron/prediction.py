"""Multi-token prediction of Megatron-Core (megatron/core/transformer/multi_token_prediction.py 0.16.1,
MultiTokenPredictionBlock and MultiTokenPredictionLayer; models/gpt/gpt_model.py, GPTModel._postprocess).

Each depth has norms, a projection, a layer and a final norm of its own, and the model's embedding and output
projection. `uniform` recomputation of one layer at a time holds for it too, `block` does not.
"""

from __future__ import annotations

from functools import partial

from ...autograd import Node, Tensor
from ...autograd.reentrant import reentrant
from ...basics.errors import InputError
from ...basics.units import FP32
from ...model import Model
from ...ops.communication import scatter
from ...ops.elementwise import mul, mul_scalar
from ...ops.function import custom, new
from ...ops.scalars import div, total
from ...ops.views import cat, split
from ...training import Run
from ...training.policies import EveryK, FirstN, Segment
from . import head
from .layer import transformer_layer
from .scope import Scope, linear, norm, norm_kind


def check(model: Model, run: Run) -> None:
    """Raise InputError for `--mtp` of a model without it, or as Megatron-Core does not run it."""
    if not run.mtp:
        return
    if model.mtp is None:
        hint = "a specification can have it: mtp: {num_layers: 1}"
        raise InputError(f"{model.name} has no multi-token prediction", where="--mtp", hint=hint)
    if model.mtp.own_embedding:
        wrong = "Megatron-Core embeds further tokens as the first ones"
        raise InputError(wrong, where="mtp.own_embedding", allowed="--stack transformers")
    if isinstance(run.checkpoint, EveryK) and run.checkpoint.k > 1:
        wrong = "Megatron-Core recomputes layers of multi-token prediction one by one"
        raise InputError(wrong, where="--checkpoint", allowed="layer, first:N, modules:")


def is_recomputed(model: Model, run: Run, segments: tuple[Segment, ...]) -> bool:
    """Whether each depth is run again in backward: `uniform`, one layer at a time."""
    one_by_one = tuple((i, i) for i in range(model.num_layers))
    return segments == one_by_one and not isinstance(run.checkpoint, FirstN)


def _rolled(x: Tensor) -> Tensor:
    """`roll_tensor`: one of its own."""
    return x.tape.empty(x.shape, x.dtype, "roll")


def predict(m: Scope, hidden: Tensor, ids: Tensor, recomputed: bool) -> Tensor:
    """The hidden states of all depths after the model's own, in one tensor."""
    assert m.model.mtp is not None
    states, positions = [hidden], head.given(m, "position_ids", ids.shape)
    for depth in range(m.model.mtp.num_layers):
        hidden, ids, positions = m.call(f"layers.{depth}", _depth, hidden, ids, positions, recomputed)
        states.append(hidden)
    return cat(states, 0)


def _depth(m: Scope, hidden: Tensor, ids: Tensor, positions: Tensor, recomputed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """MultiTokenPredictionLayer.forward."""
    ids, positions = _rolled(ids), _rolled(positions)
    path, m.tape.path = m.tape.path, ""
    embedded = m.call("embedding", head.embed, ids)
    m.tape.path = path
    run = partial(_project_and_run, m)
    share = m.mesh.tp if m.options.distribute_saved_activations else 1
    out = reentrant(m.tape, run, hidden, embedded, share=share) if recomputed else run(hidden, embedded)
    return out, ids, positions


def _project_and_run(m: Scope, hidden: Tensor, embedded: Tensor) -> Tensor:
    layer = m.model.mtp_layer
    assert layer is not None
    kind = norm_kind(m, m.model.norm)
    hidden = m.call("transformer_layer", transformer_layer, _joined(m, hidden, embedded), layer)
    return m.call("final_layernorm", norm, hidden, kind)


def _joined(m: Scope, hidden: Tensor, embedded: Tensor) -> Tensor:
    """`_concat_embeddings`: normed, side by side, projected; gathered over the ranks that divide the projection."""
    kind, ranks = norm_kind(m, m.model.norm), m.mesh.tp
    embedded = m.call("enorm", norm, embedded, kind)
    hidden = m.call("hnorm", norm, hidden, kind)
    hidden = cat([embedded, hidden], -1)
    hidden = m.call("eh_proj", linear, hidden, m.local(m.model.hidden_size, "hidden size"), "column")
    if ranks == 1:
        return hidden
    hidden = _gathered(hidden, ranks)
    return scatter(hidden, 0, ranks) if m.mesh.sp else hidden


def _gathered(x: Tensor, ranks: int) -> Tensor:
    """`gather_from_tensor_model_parallel_region`: rows of all ranks, then side by side; backward copies its part."""
    rows = new(x, (x.shape[0] * ranks, *x.shape[1:]), op="all_gather")
    out = new(x, (*x.shape[:-1], x.shape[-1] * ranks), op="cat")
    del rows
    shape = x.shape

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        return [new(grads[0], shape, op="contiguous")]

    custom("GatherFromModelParallelRegion", rule, (x,), (), [out])
    return out


def language_loss(m: Scope, states: Tensor, labels: Tensor) -> Tensor:
    """The model's own loss, [b, s], on hidden states that the loss of each depth hangs on; what was made for the last
    depth lives as long as the function runs."""
    assert m.model.mtp is not None
    depths = m.model.mtp.num_layers
    moved = new(labels, labels.shape, op="clone")
    mask = head.given(m, "loss_mask", labels.shape, fp32=True)
    each = states.shape[0] // (1 + depths)
    hidden, *others = split(states, [each] * (1 + depths), 0)
    made = loss = None
    for depth in range(depths):
        made = m.call("output_layer", head.logits, others[depth])
        moved, mask = _rolled(moved), _rolled(mask)
        count = new(mask, (), FP32, "sum")
        loss = mul(mask, head.cross_entropy(m, made, moved))
        _log(loss, count)
        scaled = div(mul_scalar(loss), count)
        hidden = _hung(hidden, scaled)
        del scaled
    own = head.language_loss(m, hidden, labels)
    del made, loss
    return own


def _log(loss: Tensor, count: Tensor) -> None:
    """A mean for the log, of which nothing stays."""
    div(total(loss), count)


def _hung(hidden: Tensor, loss: Tensor) -> Tensor:
    """`MTPLossAutoScaler`: the hidden states as they are; backward sets off the loss, with ones as its gradient."""
    out = Tensor(hidden.tape, hidden.shape, hidden.strides, hidden.dtype, hidden.storage)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        kept = node.unpack(0)
        ones = new(kept, kept.shape, op="ones_like")
        made = new(ones, ones.shape, op="mul")
        del ones
        return [grads[0], made]

    custom("MTPLossAutoScaler", rule, (hidden, loss), [(loss, "the loss of further tokens")], [out])
    return out


__all__ = ["check", "is_recomputed", "language_loss", "predict"]
