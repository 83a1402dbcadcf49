"""What stands around the layers: embedding, position tables, masks, final norm, output projection and loss."""

from __future__ import annotations

from ..autograd import Tensor
from ..ops import embedding as ops
from ..ops import loss as losses
from ..ops.elementwise import mul_scalar, tanh, to
from ..ops.linear import linear
from ..ops.rope import Tables
from ..ops.views import contiguous, narrow, reshape, view
from ..spec import Attention, LatentAttention, Model, Run
from ..units import BOOL, FP32, INT64, DType
from .names import ALWAYS_MASKED
from .scope import FROZEN_ORIGINAL, TRAINED_COPY, Scope, enter, leave


def embed(m: Scope, ids: Tensor, vocabulary: int, hidden: int) -> Tensor:
    """`torch.nn.Embedding`; tensor parallelism divides the vocabulary and sums."""
    out = ops.embedding(ids, m.parameter("weight", m.local(vocabulary, "vocabulary"), hidden))
    return leave(m, out) if m.mesh.tp > 1 else out


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


def _scaled(emb: Tensor, op: str) -> Tensor:
    plain = emb.tape.empty(emb.shape, FP32, op)
    return emb.tape.empty(plain.shape, FP32, "mul")


def eager_mask(m: Scope, batch: int, length: int, dtype: DType) -> Tensor:
    """The T × T additive mask of eager attention (transformers/masking_utils.py, eager_mask)."""
    allowed = bool_mask(m, length)
    return m.tape.empty((batch, *allowed.shape[1:]), dtype, "where")


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
    labels = m.tape.empty((labels.shape[0], labels.shape[1] + 1), INT64, "constant_pad_nd")
    shifted = contiguous(narrow(labels, 1, 1, labels.shape[1] - 1))
    logits = view(logits, -1, m.local(vocabulary, "vocabulary"))
    shifted = view(shifted, -1)
    return losses.cross_entropy(logits, shifted)


def naive_loss(
    m: Scope, hidden: Tensor, ids: Tensor, model: Model, *, hold_logits: bool, own: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Logits for all tokens, then cross-entropy; also the logits, where the caller keeps them."""
    scores = m.call("lm_head", logits, to(hidden, m.dtype), model, own)
    if model.head.fp32:
        scores = to(scores, FP32)
    if model.head.scaled:
        scores = mul_scalar(scores)
    if model.head.softcap:
        scores = mul_scalar(scores)
        scores = tanh(scores)
        scores = mul_scalar(scores)
    loss = causal_loss(m, scores, ids, model.vocab_size)
    return loss, scores if hold_logits else None


def fused_loss(m: Scope, hidden: Tensor, ids: Tensor, model: Model, own: str | None = None) -> Tensor:
    """Liger's linear cross-entropy in place of output projection and loss."""
    hidden = enter(m, hidden)
    flat = reshape(to(hidden, m.dtype), -1, hidden.shape[-1])
    return losses.fused_linear_cross_entropy(flat, output_weight(m, model, own), view(ids, -1))


def needs_tables(model: Model) -> int | None:
    """The rotary dimension of the tables, None for a model without positions of that kind."""
    for mixer in (*(layer.mixer for layer in model.layers), model.spare):
        if isinstance(mixer, LatentAttention):
            return mixer.qk_rope_head_dim
        if isinstance(mixer, Attention) and mixer.rope:
            return int(mixer.head_dim * model.rope.fraction)
    return None


def is_masked(model: Model, run: Run) -> bool:
    """Whether Transformers hands sdpa a mask: some window is shorter than the sequence
    (masking_utils.py, _ignore_causal_mask_sdpa), or the model always asks for one."""
    return model.naming in ALWAYS_MASKED or any(
        isinstance(layer.mixer, Attention)
        and layer.mixer.sliding_window is not None
        and layer.mixer.sliding_window <= run.sequence_length
        for layer in model.layers
    )
