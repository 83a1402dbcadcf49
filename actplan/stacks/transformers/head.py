"""What stands around the layers: embedding, position tables, masks, final norm, output projection and loss."""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import BOOL, FP32, INT64, DType
from ...model import Attention, LatentAttention, Model
from ...ops import embedding as ops
from ...ops import loss as losses
from ...ops.elementwise import mul_scalar, tanh, to
from ...ops.linear import linear
from ...ops.rope import Tables
from ...ops.views import contiguous, narrow, reshape, split, view
from ...training import Run
from .losses import Ending
from .scope import FROZEN_ORIGINAL, TRAINED_COPY, Scope, enter, leave


def embed(m: Scope, ids: Tensor, vocabulary: int, hidden: int) -> Tensor:
    """`torch.nn.Embedding`; tensor parallelism divides the vocabulary and sums."""
    weight = m.parameter("weight", m.local(vocabulary, "vocabulary"), hidden)
    out = ops.embedding(ids, weight)
    if m.mesh.tp == 1:
        return out
    m.tape.row_ranks[weight.parameter or ""] = m.mesh.tp
    return leave(m, out)


def rope_tables(
    m: Scope, batch: int, length: int, dim: int, dtype: DType, *, joined: bool = True, prefix: str = ""
) -> Tables:
    """cos and sin [batch, T, dim] (LlamaRotaryEmbedding.forward): computed in fp32, kept in the model's type.

    joined: each table holds its numbers twice; gpt-oss's do not and are half as wide. prefix: of the names of the
    buffers they are made from.
    """
    tape = m.tape
    for name in (prefix + "inv_freq", prefix + "original_inv_freq"):
        tape.buffer(name, dim // 2, FP32)
    freqs = tape.empty((batch, length, dim // 2), FP32, "mul")
    emb = tape.empty((batch, length, dim), FP32, "cat") if joined else freqs
    cos = _scaled(emb, "cos")
    sin = _scaled(emb, "sin")
    del freqs
    return to(cos, dtype), to(sin, dtype)


def sinusoidal_tables(m: Scope, length: int, dim: int, dtype: DType) -> Tables:
    """sin and cos [1, T, dim / 2], the halves of rows taken from a table (GPTJRotaryEmbedding.forward)."""
    rows = to(m.tape.empty((1, length, dim), FP32, "index"), dtype)
    rows.storage.owner = "shared:rope"
    sin, cos = split(rows, [dim // 2] * 2, -1)
    return sin, cos


def _scaled(emb: Tensor, op: str) -> Tensor:
    plain = emb.tape.empty(emb.shape, FP32, op)
    return emb.tape.empty(plain.shape, FP32, "mul")


def eager_mask(m: Scope, run: Run) -> Tensor:
    """The T × T additive mask of eager attention for each sequence (transformers/masking_utils.py, eager_mask)."""
    allowed = bool_mask(m, run.local_length, run.micro_batch_size if run.padding_mask else 1)
    return m.tape.empty((run.micro_batch_size, *allowed.shape[1:]), run.residual_dtype, "where")


def bool_mask(m: Scope, length: int, sequences: int = 1) -> Tensor:
    """The T × T boolean mask that sdpa is given, one for the whole batch (masking_utils.py, sdpa_mask)."""
    return m.tape.empty((sequences, 1, length, length), BOOL, "mask")


def position_ids(m: Scope, length: int) -> Tensor:
    """`torch.arange(T) + past`."""
    first = m.tape.empty((length,), INT64, "arange")
    return m.tape.empty(first.shape, INT64, "add")


def output_weight(m: Scope, model: Model, own: str | None = None) -> Tensor:
    """The output projection's weight: the embedding's own where they are tied, that of the module `own`."""
    names = m.names
    if own is not None:
        shape = (m.local(model.vocab_size, "vocabulary"), model.hidden_size)
        return m.tape.parameter(f"{own}.lm_head.weight", shape, m.dtype)
    embedding = f"{names.get('model', 'model')}.{names.get('embed_tokens', 'embed_tokens')}.weight"
    path = embedding if model.tie_word_embeddings else "lm_head.weight"
    if "lm_head" in m.copies:
        path = path.replace("lm_head", f"lm_head{FROZEN_ORIGINAL}")
        m.tape.parameter(path, (m.local(model.vocab_size, "vocabulary"), model.hidden_size), m.dtype)
        path = f"lm_head{TRAINED_COPY}.weight"
    return m.tape.parameter(path, (m.local(model.vocab_size, "vocabulary"), model.hidden_size), m.dtype)


def output_bias(m: Scope, model: Model, own: str | None = None) -> Tensor | None:
    """The output projection's bias, where it has one."""
    if not model.head.bias:
        return None
    return m.tape.parameter(
        "lm_head.bias" if own is None else f"{own}.lm_head.bias", (m.local(model.vocab_size, "vocabulary"),), m.dtype
    )


def logits(m: Scope, hidden: Tensor, model: Model, own: str | None = None) -> Tensor:
    """The output projection, [B, T, hidden] to [B, T, vocabulary]."""
    return linear(enter(m, hidden), output_weight(m, model, own), output_bias(m, model, own))


def causal_loss(m: Scope, logits: Tensor, labels: Tensor, vocabulary: int) -> Tensor:
    """transformers/loss/loss_utils.py, ForCausalLMLoss: in fp32, labels padded by one and shifted."""
    logits = to(logits, FP32)
    padded, shifted = shifted_labels(m, labels)
    loss = losses.cross_entropy(view(logits, -1, m.local(vocabulary, "vocabulary")), shifted)
    del padded
    return loss


def shifted_labels(m: Scope, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Labels [B, T] padded by one, which `ForCausalLMLoss` holds to its end, and what it hands on: moved by one,
    [B · T]."""
    padded = m.tape.empty((labels.shape[0], labels.shape[1] + 1), INT64, "constant_pad_nd")
    return padded, view(contiguous(narrow(padded, 1, 1, labels.shape[1])), -1)


def scores(m: Scope, hidden: Tensor, model: Model, own: str | None = None) -> Tensor:
    """The logits as the model returns them: projected, scaled and capped, [B, T, vocabulary]."""
    if model.head.scaled_input:
        hidden = mul_scalar(hidden)
    made = m.call("lm_head", logits, to(hidden, m.dtype), model, own)
    if model.head.fp32:
        made = to(made, FP32)
    if model.head.scaled:
        made = mul_scalar(made)
    if model.head.softcap:
        made = mul_scalar(made)
        made = tanh(made)
        made = mul_scalar(made)
    return made


def naive_loss(m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None) -> Ending:
    """Logits for all tokens, then cross-entropy."""
    made = scores(m, states[0], model, own)
    if "loss" in run.compiled:
        from .compiled import compiled_loss

        loss = compiled_loss(m, causal_loss, made, ids, model.vocab_size)
    else:
        loss = causal_loss(m, made, ids, model.vocab_size)
    return loss, [made] if run.hold_logits else []


def in_place_loss(
    m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None
) -> Ending:
    """Logits for all tokens, then Liger's cross-entropy in place of PyTorch's (`apply_liger_kernel_to_llama` with
    `cross_entropy=True`)."""
    made = scores(m, states[0], model, own)
    wide = to(made, FP32)
    padded, shifted = shifted_labels(m, ids)
    loss = losses.cross_entropy_in_place(view(wide, -1, wide.shape[-1]), shifted)
    del padded
    return loss, [made] if run.hold_logits else []


def fused_loss(m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None) -> Ending:
    """Liger's linear cross-entropy in place of output projection and loss."""
    hidden = enter(m, states[0])
    flat = reshape(to(hidden, m.dtype), -1, hidden.shape[-1])
    return losses.fused_linear_cross_entropy(flat, output_weight(m, model, own), view(ids, -1)), []


def needs_tables(model: Model) -> int | None:
    """The rotary dimension of the tables, None for a model without positions of that kind."""
    for mixer in (*(layer.mixer for layer in model.layers), model.spare):
        if isinstance(mixer, LatentAttention):
            return mixer.qk_rope_head_dim
        if isinstance(mixer, Attention) and mixer.rope:
            return int(mixer.head_dim * model.rope.fraction)
    return None


def is_masked(model: Model, run: Run) -> bool:
    """Whether Transformers hands sdpa a mask: the batch has padding, some window is shorter than the sequence
    (masking_utils.py, _ignore_causal_mask_sdpa), or the model always asks for one."""
    return (
        run.padding_mask
        or model.inputs.always_masked
        or any(
            isinstance(layer.mixer, Attention)
            and layer.mixer.sliding_window is not None
            and layer.mixer.sliding_window <= run.sequence_length
            for layer in model.layers
        )
    )
