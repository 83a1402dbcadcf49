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
from .scope import Scope, enter


def decoder_layer(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """[B, T, hidden] to the same (models/llama/modeling_llama.py, LlamaDecoderLayer)."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    hidden, _ = mixer(m, hidden, spec, tables, mask)
    hidden = add(residual, hidden)
    residual = hidden
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    hidden = m.call("mlp", mlp, hidden, spec.mlp)
    return add(residual, hidden)


def mixer(
    m: Scope, x: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The token mixer of a layer, under the name that its model gives it; also its probabilities, if it has any."""
    x = enter(m, x)
    if isinstance(spec.mixer, Attention):
        return m.call("self_attn", attention, x, spec.mixer, spec.norm, tables, mask)
    return m.call("linear_attn", gated_deltanet, x, spec.mixer), None
