"""A mixture of experts in place of the feed-forward network: router, experts, shared expert.

models/{mixtral,qwen3_moe,qwen3_next,qwen3_5_moe,gpt_oss,deepseek_v3}/modeling_*.py of Transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable

from ...autograd import Tensor
from ...basics.errors import InputError
from ...basics.units import FP32, DType
from ...model import Mlp, Moe
from ...ops.elementwise import add, mul, sigmoid, to
from ...ops.views import reshape, view
from .mlp import mlp
from .routers import ROUTERS
from .scope import Scope, linear


def moe(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, Tensor | None]:
    """[B, T, hidden] to the same; also the routing weights, where the model's block hands them back.

    Under tensor parallelism each rank routes its own tokens, so they must be divided (sequence parallelism).
    """
    if m.mesh.tp > 1 and not m.mesh.sp:
        raise InputError("experts under --tp need the tokens divided", where="--tp", allowed="--tp together with --sp")
    return _BLOCKS[spec.block or _BLOCK_OF_ROUTER.get(spec.router, "first")](m, x, spec)


def _plain(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    """gpt-oss: no shared expert, and the weights are returned."""
    flat = reshape(x, -1, x.shape[-1])
    _, scores, indices = m.call("router", ROUTERS[spec.router], flat, spec)
    out = m.call("experts", m.kernels.experts, flat, indices, scores, spec)
    return reshape(out, *x.shape), scores


def _shared_first(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, None]:
    """Mixtral's and Qwen's: a shared expert, if any, comes first and is gated; ERNIE 4.5's, which are not."""
    flat, shared = view(x, -1, x.shape[-1]), None
    if spec.shared_expert_intermediate_size is not None:
        shared = m.call(
            "shared_expert" if spec.shared_expert_gate else "shared_experts",
            mlp,
            flat if m.mesh.tp == 1 else x,
            _shared(spec),
        )
        shared = shared if m.mesh.tp == 1 else view(shared, *flat.shape)
    _, weights, indices = m.call("gate", ROUTERS[spec.router], flat, spec)
    out = m.call("experts", m.kernels.experts, flat, indices, weights, spec)
    if shared is not None:
        if spec.shared_expert_gate:
            shared = mul(sigmoid(m.call("shared_expert_gate", linear, flat, 1)), shared)
        out = add(out, shared)
    return reshape(out, *x.shape), None


def _shared_last(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, None]:
    """DeepSeek's: the shared experts, one wide network, come last and are not gated."""
    _, weights, indices = m.call("gate", ROUTERS[spec.router], x, spec)
    hidden = view(x, -1, x.shape[-1])
    if spec.latent_size is not None:
        hidden = m.call("fc1_latent_proj", linear, hidden, spec.latent_size)
    hidden = m.call("experts", m.kernels.experts, hidden, indices, weights, spec)
    if spec.latent_size is not None:
        hidden = m.call("fc2_latent_proj", linear, hidden, x.shape[-1])
    hidden = view(hidden, *x.shape)
    if spec.shared_expert_intermediate_size is None:
        return hidden, None
    return add(hidden, m.call("shared_experts", mlp, x, _shared(spec))), None


def _shared_last_flat(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, None]:
    """Hunyuan 3's: so, on [B · T, hidden]; both are added in fp32, with `fp32_combine` (models/hy_v3, HYV3MoE)."""
    hidden = view(x, -1, x.shape[-1])
    _, weights, indices = m.call("gate", ROUTERS[spec.router], hidden, spec)
    routed = m.call("experts", m.kernels.experts, hidden, indices, weights, spec)
    dtype = FP32 if spec.fp32_combine else hidden.dtype
    hidden = _sum(to(routed, dtype), to(m.call("shared_experts", mlp, hidden, _shared(spec)), dtype), hidden.dtype)
    return reshape(hidden, *x.shape), None


def _sum(a: Tensor, b: Tensor, dtype: DType) -> Tensor:
    return to(add(a, b), dtype)


def _shared_beside(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    """Granite 4's: experts and a shared network are parts of the layer, which holds the experts' output to
    its end (models/granitemoehybrid/modeling_granitemoehybrid.py, GraniteMoeHybridDecoderLayer)."""
    chosen = m.call("block_sparse_moe", _sparse, x, spec)
    shared = Mlp(intermediate_size=spec.shared_expert_intermediate_size or 0, fused_gate_up=True)
    return add(chosen, m.call("mlp", mlp, x, shared)), chosen


def _sparse(m: Scope, x: Tensor, spec: Moe) -> Tensor:
    flat = reshape(x, -1, x.shape[-1])
    _, weights, indices = m.call("router", ROUTERS[spec.router], flat, spec)
    out = m.call("experts", m.kernels.experts, flat, indices, weights, spec)
    return view(out, *x.shape)


def _shared(spec: Moe) -> Mlp:
    assert spec.shared_expert_intermediate_size is not None
    width, activation = spec.shared_expert_intermediate_size, spec.activation
    return Mlp(intermediate_size=width, gated=spec.gated, activation=activation)


_BLOCKS: dict[str, Callable[[Scope, Tensor, Moe], tuple[Tensor, Tensor | None]]] = {
    "plain": _plain,
    "first": _shared_first,
    "last": _shared_last,
    "last_flat": _shared_last_flat,
    "beside": _shared_beside,
}
_BLOCK_OF_ROUTER = {"sigmoid": "last", "topk_softmax": "plain", "topk_softmax_fp32": "beside"}
"""How the family with that router arranges its block; the others' is `first`."""

__all__ = ["moe"]
