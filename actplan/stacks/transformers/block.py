"""A decoder layer: how its two branches, token mixer and feed-forward network, join the residual stream.

One function a residual type (`actplan.model.Residual`), with the locals of the forward it mirrors. What only some
models have is imported where it is met, which keeps the start of every command short.
"""

from __future__ import annotations

from collections.abc import Callable

from ...autograd import Tensor
from ...basics.units import FP32
from ...model import Attention, LatentAttention, Layer, Mamba2, Mlp, Moe, ShortConvolution
from ...ops.elementwise import add, add_in_place, mul_scalar, to
from ...ops.rope import Tables
from ...ops.views import reshape, view
from .attention import attention
from .mlp import activate, mlp, widen
from .norm import norm
from .scope import Scope, enter, row


def decoder_layer(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """[B, T, hidden] to the same."""
    layer = _RESIDUALS[spec.residual.type]
    if not m.recomputed or m.tape.replaying:
        return layer(m, hidden, spec, tables, mask)
    m.inside = ""
    try:
        return layer(m, hidden, spec, tables, mask)
    finally:
        m.inside = None


def _pre_norm(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/llama/modeling_llama.py, LlamaDecoderLayer; models/granite, whose branches are scaled."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    hidden, _ = mixer(m, hidden, spec, tables, mask)
    hidden = _dropped(m, "attn_dropout", hidden, spec)
    hidden = add(residual, _scaled(hidden, spec))
    residual = hidden
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    hidden, _ = feed_forward(m, hidden, spec)
    hidden = _dropped(m, "mlp_dropout", hidden, spec)
    return add(residual, _scaled(hidden, spec))


def _pre_norm_held(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/gpt2/modeling_gpt2.py, GPT2Block: the branches' outputs are locals of their own."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    attn_output, _ = mixer(m, hidden, spec, tables, mask)
    attn_output = _dropped(m, "attn_dropout", attn_output, spec)
    hidden = add(attn_output, residual)
    residual = hidden
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    forwarded, _ = feed_forward(m, hidden, spec)
    forwarded = _dropped(m, "mlp_dropout", forwarded, spec)
    return add(residual, forwarded)


def _pre_norm_flat(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/opt/modeling_opt.py, OPTDecoderLayer: the feed-forward half works on [B · T, hidden]."""
    shape, residual = hidden.shape, hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    hidden, _ = mixer(m, hidden, spec, tables, mask)
    hidden = _dropped(m, "attn_dropout", hidden, spec)
    hidden = reshape(add(residual, hidden), -1, shape[-1])
    residual = hidden
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    assert isinstance(spec.mlp, Mlp)
    hidden = m.call("up_proj", widen, hidden, spec.mlp)
    hidden = m.call("act_fn", activate, hidden, spec.mlp)
    hidden = m.call("down_proj", row, hidden, shape[-1], spec.mlp.bias)
    hidden = _dropped(m, "mlp_dropout", hidden, spec)
    return view(add(residual, hidden), *shape)


def _pre_norm_all_held(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/stablelm/modeling_stablelm.py, StableLmDecoderLayer: no local is assigned anew."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    attn_output, _ = mixer(m, hidden, spec, tables, mask)
    residual = add(residual, attn_output)
    forwarded, _ = feed_forward(m, m.call("post_attention_layernorm", norm, residual, spec.norm), spec)
    return add(residual, forwarded)


def _post_norm(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/olmo2/modeling_olmo2.py, Olmo2DecoderLayer."""
    residual = hidden
    hidden, _ = mixer(m, hidden, spec, tables, mask)
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    hidden = add(residual, hidden)
    residual = hidden
    hidden, _ = feed_forward(m, hidden, spec)
    hidden = m.call("post_feedforward_layernorm", norm, hidden, spec.norm)
    return add(residual, hidden)


def _sandwich(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/gemma2/modeling_gemma2.py, Gemma2DecoderLayer; models/glm4, under other names."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    hidden, _ = mixer(m, hidden, spec, tables, mask)
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    hidden = add(residual, hidden)
    residual = hidden
    hidden = m.call("pre_feedforward_layernorm", norm, hidden, spec.norm)
    hidden, _ = feed_forward(m, hidden, spec)
    hidden = m.call("post_feedforward_layernorm", norm, hidden, spec.norm)
    return add(residual, hidden)


def _parallel(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/cohere2/modeling_cohere2.py, Cohere2DecoderLayer; models/phi, PhiDecoderLayer."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    attn_output, _ = mixer(m, hidden, spec, tables, mask)
    attn_output = _dropped(m, "attn_dropout", attn_output, spec)
    forwarded, _ = feed_forward(m, hidden, spec)
    forwarded = _dropped(m, "mlp_dropout", forwarded, spec)
    return add(add(residual, attn_output), forwarded)


def _parallel_summed(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/gptj/modeling_gptj.py, GPTJBlock."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    attn_output, _ = mixer(m, hidden, spec, tables, mask)
    forwarded, _ = feed_forward(m, hidden, spec)
    return add(add(attn_output, forwarded), residual)


def _parallel_two_norms(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/gpt_neox/modeling_gpt_neox.py, GPTNeoXLayer with use_parallel_residual."""
    attn_output, _ = mixer(m, m.call("input_layernorm", norm, hidden, spec.norm), spec, tables, mask)
    attn_output = _dropped(m, "attn_dropout", attn_output, spec)
    forwarded, _ = feed_forward(m, m.call("post_attention_layernorm", norm, hidden, spec.norm), spec)
    forwarded = _dropped(m, "mlp_dropout", forwarded, spec)
    return add(add(forwarded, attn_output), hidden)


def _parallel_in_place(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/falcon/modeling_falcon.py, FalconDecoderLayer: one norm, or one for each branch."""
    residual = hidden
    if spec.residual.type == "parallel_in_place":
        attn_in = mlp_in = m.call("input_layernorm", norm, hidden, spec.norm)
    else:
        attn_in = m.call("ln_attn", norm, hidden, spec.norm)
        mlp_in = m.call("ln_mlp", norm, hidden, spec.norm)
    attn_output, weights = mixer(m, attn_in, spec, tables, mask)
    mlp_output, _ = feed_forward(m, mlp_in, spec)
    mlp_output = add_in_place(mlp_output, attn_output)
    output = add(residual, _dropped(m, "mlp_dropout", mlp_output, spec))
    m.held = weights
    return output


def _pre_norm_returned(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/bamba/modeling_bamba.py, BambaDecoderLayer: the probabilities are handed to the model's loop."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    hidden, weights = mixer(m, hidden, spec, tables, mask)
    hidden = add(residual, hidden)
    residual = hidden
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    hidden, _ = feed_forward(m, hidden, spec)
    hidden = add(residual, hidden)
    m.held = weights
    return hidden


def _mixer_only(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/mamba2/modeling_mamba2.py, Mamba2Block; models/nemotron_h, NemotronHBlock."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, to(hidden, m.dtype), spec.norm)
    if spec.residual.fp32:
        residual = to(residual, FP32)
    hidden, _ = feed_forward(m, hidden, spec) if spec.mixer is None else mixer(m, hidden, spec, tables, mask)
    return add(residual, hidden)


def _two_mixers(m: Scope, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> Tensor:
    """models/falcon_h1/modeling_falcon_h1.py, FalconH1DecoderLayer."""
    residual = hidden
    hidden = m.call("input_layernorm", norm, hidden, spec.norm)
    from .mamba import mamba2

    assert spec.beside is not None
    mamba_states = m.call("mixer", mamba2, hidden, spec.beside)
    mamba_states = mul_scalar(mamba_states)
    attention_states, _ = mixer(m, mul_scalar(hidden), spec, tables, mask)
    attention_states = mul_scalar(attention_states)
    hidden = add(mamba_states, attention_states)
    hidden = add(residual, hidden)
    residual = hidden
    hidden = m.call("post_attention_layernorm", norm, hidden, spec.norm)
    hidden = feed_forward(m, hidden, spec)[0]
    return add(residual, hidden)


_RESIDUALS: dict[str, Callable[[Scope, Tensor, Layer, Tables | None, Tensor | None], Tensor]] = {
    "pre_norm": _pre_norm,
    "pre_norm_held": _pre_norm_held,
    "pre_norm_flat": _pre_norm_flat,
    "pre_norm_all_held": _pre_norm_all_held,
    "post_norm": _post_norm,
    "sandwich": _sandwich,
    "parallel": _parallel,
    "parallel_summed": _parallel_summed,
    "parallel_two_norms": _parallel_two_norms,
    "mixer_only": _mixer_only,
    "pre_norm_returned": _pre_norm_returned,
    "two_mixers": _two_mixers,
    "parallel_in_place": _parallel_in_place,
    "parallel_in_place_two_norms": _parallel_in_place,
}


OWN_DROPOUT = {"attn_dropout": "self_attn.dropout", "mlp_dropout": "mlp.dropout"}
"""A branch's dropout in the layer -> in the branch's module, where `names` says that a model has it there."""


def _dropped(m: Scope, name: str, x: Tensor, spec: Layer) -> Tensor:
    """Dropout of a branch, unless the branch's own module does it."""
    if not spec.residual.dropout or OWN_DROPOUT[name] in m.names:
        return x
    return m.call(name, drop, x, spec.residual.dropout)


def _own_dropout(m: Scope, name: str, x: Tensor, spec: Layer) -> Tensor:
    """Dropout of a branch, where the branch's own module does it as the last thing."""
    if not spec.residual.dropout or name not in m.names:
        return x
    return m.call(name, drop, x, spec.residual.dropout)


def drop(m: Scope, x: Tensor, probability: float) -> Tensor:
    """`torch.nn.Dropout`."""
    from ...ops.dropout import dropout

    return dropout(x, probability)


def _scaled(x: Tensor, spec: Layer) -> Tensor:
    return mul_scalar(x) if spec.residual.scaled else x


def mixer(m: Scope, x: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The token mixer of a layer, under the name that its model gives it; also its probabilities, if it has any."""
    x = enter(m, x)
    if isinstance(spec.mixer, Attention):
        return m.call("self_attn", _attention, x, spec, tables, mask)
    if isinstance(spec.mixer, LatentAttention):
        from .mla import latent_attention

        return m.call("self_attn", latent_attention, x, spec.mixer, tables, mask)
    if isinstance(spec.mixer, Mamba2):
        from .mamba import mamba2

        return m.call("mixer", mamba2, x, spec.mixer), None
    if isinstance(spec.mixer, ShortConvolution):
        from .short_convolution import short_convolution

        return m.call("mixer", short_convolution, x, spec.mixer), None
    assert spec.mixer is not None
    from .delta import gated_deltanet

    return m.call("linear_attn", gated_deltanet, x, spec.mixer), None


def feed_forward(m: Scope, x: Tensor, spec: Layer) -> tuple[Tensor, Tensor | None]:
    """The feed-forward half of a layer; also the routing weights, where the model's block returns them."""
    if isinstance(spec.mlp, Moe):
        from .moe import moe

        return m.call("moe" if "moe" in m.names else "mlp", moe, x, spec.mlp)
    assert spec.mlp is not None
    return m.call("mlp", _mlp, x, spec), None


def _attention(
    m: Scope, x: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    assert isinstance(spec.mixer, Attention)
    output, weights = attention(m, x, spec.mixer, spec.norm, tables, mask)
    return _own_dropout(m, "self_attn.dropout", output, spec), weights


def _mlp(m: Scope, x: Tensor, spec: Layer) -> Tensor:
    assert isinstance(spec.mlp, Mlp)
    return _own_dropout(m, "mlp.dropout", mlp(m, x, spec.mlp), spec)
