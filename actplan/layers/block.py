"""A decoder layer: two residual branches, each behind its norm."""

from __future__ import annotations

from ..autograd import Tensor
from ..ops.elementwise import add
from ..ops.rope import Tables
from ..spec import Attention, Layer
from .attention import attention
from .delta import gated_deltanet
from .mlp import mlp
from .norm import norm
from .scope import Scope


def decoder_layer(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """[B, T, hidden] to the same (models/llama/modeling_llama.py, LlamaDecoderLayer)."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    if isinstance(spec.mixer, Attention):
        hidden, _ = m.call("self_attn", attention, hidden, spec.mixer, spec.norm, tables, mask)
    else:
        hidden = m.call("linear_attn", gated_deltanet, hidden, spec.mixer)
    hidden = add(residual, hidden)
    residual = hidden
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    hidden = m.call("mlp", mlp, hidden, spec.mlp)
    return add(residual, hidden)
