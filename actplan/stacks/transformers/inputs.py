"""What the layers are given: embedded tokens, position tables and masks, made once for the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ...autograd import Tensor
from ...basics.units import BOOL, FP32, INT64
from ...model import (
    Attention,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mamba2,
    Model,
    ShortConvolution,
)
from ...ops import embedding as ops
from ...ops.elementwise import add, mul, mul_scalar
from ...ops.rope import Tables
from ...ops.views import unsqueeze
from ...training import Run
from . import head
from .block import drop
from .scope import Scope

Window = int | None


@dataclass(frozen=True, slots=True)
class Shared:
    """Masks by the window of the layers that take them, rope tables by whether they are sliding layers' own.

    `local`: whether sliding layers have their own. `count`: the layers that share this.
    """

    masks: dict[Window, Tensor]
    tables: dict[bool, Tables]
    local: bool
    count: int

    def mask(self, layer: Layer) -> Tensor | None:
        """The mask a layer is given."""
        return self.masks.get(_window(layer))

    def rope(self, layer: Layer) -> Tables | None:
        """The rope tables a layer is given."""
        return self.tables.get(self.local and _window(layer) is not None)

    def of(self, layers: Sequence[Layer]) -> Shared:
        """The part that these layers use: what a checkpoint of them keeps alive."""
        windows = {_window(layer) for layer in layers}
        attended = {_window(layer) for layer in layers if _attends(layer)}
        masks = {window: mask for window, mask in self.masks.items() if window in attended}
        kinds = {self.local and window is not None for window in windows}
        tables = {kind: pair for kind, pair in self.tables.items() if kind in kinds}
        return Shared(masks, tables, self.local, len(layers))

    def sizes(self) -> dict[str, int]:
        """Bytes, as the allocator counts them, of each mask and of each pair of tables."""
        tensors = (*self.masks.values(), *(table for pair in self.tables.values() for table in pair))
        found: dict[str, int] = {}
        for storage in {id(tensor.storage): tensor.storage for tensor in tensors}.values():
            name = str(storage.owner)
            found[name] = found.get(name, 0) + storage.allocated_bytes
        return found


def _window(layer: Layer) -> Window:
    return layer.mixer.sliding_window if isinstance(layer.mixer, Attention) else None


def _attends(layer: Layer) -> bool:
    return isinstance(layer.mixer, (Attention, LatentAttention))


def shared(m: Scope, model: Model, run: Run) -> Shared:
    """Masks, then rope tables."""
    whole = _whole(model, run)
    masks = {window: mask for window in _windows(whole) if (mask := _mask(m, model, run, window)) is not None}
    return Shared(masks, _tables(m, whole, run), model.rope.local, model.num_layers)


def _whole(model: Model, run: Run) -> Model:
    """The model with the layer of multi-token prediction among its layers, where the run has it."""
    layer = model.mtp_layer if run.mtp and run.loss_kind.is_there else None
    return model if layer is None or layer in model.layers else replace(model, layers=(*model.layers, layer))


def _windows(model: Model) -> list[Window]:
    """The windows of the attention layers, none first."""
    windows = {_window(layer) for layer in model.layers if _attends(layer)}
    if model.full_mask or model.spare is not None:
        windows.add(None)
    return sorted(windows, key=lambda window: window or 0)


def padding(m: Scope, model: Model, run: Run) -> Tensor | None:
    """The batch's mask of padding, where recurrent mixers multiply by it (create_recurrent_attention_mask)."""
    recurs = any(
        isinstance(part, (GatedDeltaNet, Mamba2, ShortConvolution))
        for x in model.layers
        for part in (x.mixer, x.beside)
    )
    if not run.padding_mask or not (recurs or model.inputs.viewed_padding):
        return None
    mask = m.tape.empty((run.micro_batch_size, run.local_length), INT64, "view")
    mask.storage.owner = "input:mask"
    m.tape.viewed.append(mask)
    return mask if recurs else None


def _mask(m: Scope, model: Model, run: Run, window: Window) -> Tensor | None:
    """Transformers' rule (masking_utils.py): eager attention always has a mask; sdpa where a window is no longer than
    the sequence (_ignore_causal_mask_sdpa) or the batch has padding; flash the rows that are no padding, where some
    are (flash_attention_mask)."""
    needed = model.inputs.always_masked or (window is not None and window <= run.sequence_length)
    if run.attention == "eager":
        mask = head.eager_mask(m, run)
    elif run.attention == "flex":
        mask = m.call("mask", _block_mask, run)
    elif run.attention in ("sdpa", "efficient", "cudnn") and (needed or run.padding_mask):
        mask = head.bool_mask(m, run.local_length, run.micro_batch_size if run.padding_mask else 1)
    elif run.attention in ("flash", "flash2") and run.padding_mask:
        mask = m.tape.empty((run.micro_batch_size, run.local_length), BOOL, "_to_copy")
    else:
        return None
    mask.storage.owner = "shared:mask" if window is None else f"shared:mask_{window}"
    return mask


def _block_mask(m: Scope, run: Run) -> Tensor:
    from ...ops.attention_torch import block_mask

    return block_mask(m.tape, run.micro_batch_size, run.local_length)


def _tables(m: Scope, model: Model, run: Run) -> dict[bool, Tables]:
    """cos and sin for the layers that turn; a second pair for sliding layers where they have their own."""
    dim = head.needs_tables(model)
    if dim is None:
        return {}
    batch = run.micro_batch_size if model.rope.type == "mrope" else 1
    dtype = FP32 if model.rope.style in ("half_fp32", "interleaved_fp32_tables") else run.residual_dtype
    kinds = {model.rope.local and _window(layer) is not None for layer in model.layers if _attends(layer)}
    made = {}
    for local in sorted(kinds or {False}):
        joined = model.rope.style != "half_tables"
        prefix = ("sliding_attention_" if local else "full_attention_") if model.rope.local else ""
        if model.rope.style == "interleaved_tokens":
            return {False: m.call("rotary_emb", head.sinusoidal_tables, run.local_length, dim, dtype)}
        tables = m.call(
            "rotary_emb", head.rope_tables, batch, run.local_length, dim, dtype, joined=joined, prefix=prefix
        )
        made[local] = tables
        for table in tables:
            table.storage.owner = "shared:rope_local" if local else "shared:rope"
    return made


def embed(m: Scope, ids: Tensor, model: Model) -> Tensor:
    """Embedded tokens [B, T, hidden]."""
    hidden = m.call("embed_tokens", _embed_tokens, ids, model)
    if model.embedding.replaced:
        hidden = _dropped(m, hidden, model)
    return mul_scalar(hidden) if model.embedding.scaled == "model" else hidden


def _embed_tokens(m: Scope, ids: Tensor, model: Model) -> Tensor:
    hidden = head.embed(m, ids, model.vocab_size, model.hidden_size)
    if not model.embedding.scaled.startswith("module"):
        return hidden
    m.tape.buffer("embed_scale", 1, FP32)
    if model.embedding.scaled == "module_integer":
        return mul(hidden, m.tape.empty((), hidden.dtype, "_to_copy"))
    return mul_scalar(hidden)


@dataclass(frozen=True, slots=True)
class Positions:
    """Position ids, and whatever of their making is a local of the model's forward."""

    ids: Tensor | None
    held: tuple[Tensor, ...] = ()


def positions(m: Scope, model: Model, run: Run) -> Positions:
    """`arange` for the whole batch, or counted from a mask of ones for each sequence (OPTDecoder.forward)."""
    if model.embedding.positions == "none":
        return Positions(None)
    if model.embedding.positions == "batch":
        return Positions(unsqueeze(head.position_ids(m, run.local_length), 0))
    shape = (run.micro_batch_size, run.local_length)
    if run.padding_mask:
        return Positions(m.tape.empty(shape, INT64, "sub"))
    ones = m.tape.empty(shape, FP32, "ones")
    return Positions(m.tape.empty(shape, INT64, "_to_copy"), (ones,))


def learned(m: Scope, positions: Positions, model: Model) -> Tensor | None:
    """Embedded positions, for a model that has them."""
    if model.embedding.max_position_embeddings is None or positions.ids is None:
        return None
    return m.call("embed_positions", _embed_positions, positions.ids, model)


def _embed_positions(m: Scope, ids: Tensor, model: Model) -> Tensor:
    assert model.embedding.max_position_embeddings is not None
    weight = m.parameter("weight", model.embedding.max_position_embeddings, model.hidden_size)
    if model.embedding.positions == "sequence":
        ids = m.tape.empty(ids.shape, INT64, "add")
    return ops.embedding(ids, weight)


def with_positions(m: Scope, inputs_embeds: Tensor, position_embeds: Tensor | None, model: Model) -> Tensor:
    """The first layer's input: tokens and positions, dropped out."""
    hidden = inputs_embeds if position_embeds is None else add(inputs_embeds, position_embeds)
    return hidden if model.embedding.replaced else _dropped(m, hidden, model)


def _dropped(m: Scope, hidden: Tensor, model: Model) -> Tensor:
    rate = model.embedding.dropout
    return m.call("embed_dropout", drop, hidden, rate) if rate else hidden
