"""Gated DeltaNet's kernels: the causal convolution and the chunked delta rule, fused and as torch ops."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import FP32
from .casts import lowered
from .elementwise import like, silu
from .function import custom, new, raw_contiguous
from .views import attach, narrow, unsqueeze

CHUNK = 64
"""Tokens of a chunk (fla/ops/gated_delta_rule/chunk.py; Transformers' fallback has the same)."""


def _conv_kernel_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    x, weight = node.unpack(0), node.unpack(1)
    dx = like(x, "causal_conv1d_bwd")
    accumulated = new(weight, weight.shape, FP32, "causal_conv1d_bwd")
    return [dx, accumulated if weight.dtype is FP32 else new(weight, weight.shape)]


def causal_conv1d(x: Tensor, weight: Tensor) -> Tensor:
    """causal_conv1d_fn with SiLU, [B, channels, T]: keeps its input; the activation is computed again
    (causal_conv1d/causal_conv1d_interface.py)."""
    out = like(x, "causal_conv1d")
    saves = [(x, "the input of the causal convolution"), (weight, "the weight of the causal convolution")]
    custom("CausalConv1dFn", _conv_kernel_backward, (x, weight), saves, [out])
    return out


def _conv_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    x, weight = node.unpack(0), node.unpack(1)
    shapes = (x.shape, weight.shape, weight.shape[:1])[: len(node.edges)]
    return [new(x, shape, op="convolution_backward") for shape in shapes]


def conv1d(x: Tensor, weight: Tensor, padding: int, bias: Tensor | None = None) -> Tensor:
    """Depthwise `F.conv1d` of [B, C, T] by [C, 1, k]: saves input and weight; T grows by 2·padding - k + 1."""
    x, weight, bias = lowered(x, weight, bias)
    node = x.tape.node("ConvolutionBackward0", _conv_backward, (x, weight) if bias is None else (x, weight, bias))
    x.tape.save(node, x, "the input of a convolution, for the weight's gradient")
    x.tape.save(node, weight, "the weight of a convolution")
    length = x.shape[2] + 2 * padding - weight.shape[2] + 1
    shape, flops = (*x.shape[:2], length), 2 * x.shape[0] * x.shape[1] * length * weight.shape[2]
    out = x.tape.output(shape, x.dtype, "convolution", family="convolution", flops=flops)
    return attach(out, node)


def causal_conv1d_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Transformers' fallback for causal_conv1d_fn: pad by k - 1 on both sides, cut to T, SiLU."""
    out = narrow(conv1d(x, unsqueeze(weight, 1), weight.shape[1] - 1, bias), 2, 0, x.shape[2])
    return silu(out)


def delta_rule_flops(batch: int, length: int, heads: int, key_dim: int, value_dim: int) -> int:
    """Matrix products of the chunked delta rule's forward (Yang et al., arXiv 2412.06464, section 3.3).

    A chunk of C tokens of a head: K·Kᵀ and Q·Kᵀ (C²·dk each), the solved keys and values and A·V
    (C²·dk + 2·C²·dv), and three products with the state (C·dk·dv each); two FLOPs a multiplication.
    """
    chunks = -(-length // CHUNK)
    within = CHUNK * CHUNK * (3 * key_dim + 2 * value_dim)
    state = 3 * CHUNK * key_dim * value_dim
    return 2 * batch * heads * chunks * (within + state)


def _chunk_gradients(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> list[Tensor]:
    """The gradients of the five, after what the kernels of backward allocate on the way (fla/ops/gated_delta_rule)."""
    batch, length, _, dim = q.shape
    heads, value_dim = v.shape[2:]
    w = new(k, (batch, length, heads, dim), op="w")
    u = new(k, (batch, length, heads, value_dim), op="u")
    h = new(k, (batch, -(-length // CHUNK), heads, dim, value_dim), op="h")
    v_new = new(u, u.shape, op="v_new")
    dv = new(u, u.shape, op="dv")
    dh = new(h, h.shape, op="dh")
    dv2 = new(u, u.shape, op="dv2")
    dq_heads = new(k, (batch, length, heads, dim), FP32, "dq")
    dk_heads = new(k, dq_heads.shape, FP32, "dk")
    dw = new(w, w.shape, op="dw")
    made = [new(t, t.shape) for t in (q, k, v, g, beta)]
    del w, u, h, v_new, dv, dh, dv2, dq_heads, dk_heads, dw
    return made


def _fla_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    held = [node.unpack(i) for i in range(8)]  # all of them, until the kernel is done
    made = _chunk_gradients(*(held[i] for i in (0, 2, 4, 5, 6)))
    del held
    return made


def _chunks(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cumulative gate and the matrices A of each chunk, which are kept, and the output."""
    batch, length, _heads, dim = q.shape
    value_heads, value_dim = v.shape[2:]
    g_sum = new(q, (batch, length, value_heads), FP32, "chunk_local_cumsum")
    A = new(k, (batch, length, value_heads, CHUNK), op="A")
    w = new(k, (batch, length, value_heads, dim), op="w")
    u = new(k, (batch, length, value_heads, value_dim), op="u")
    h = new(k, (batch, -(-length // CHUNK), value_heads, dim, value_dim), op="h")
    v_new = new(u, u.shape, op="v_new")
    # an autograd.Function over Triton kernels: nothing that selective checkpointing could keep
    q.tape.count_flops(delta_rule_flops(batch, length, value_heads, dim, value_dim))
    out = new(v, (batch, length, value_heads, value_dim), op="chunk_gated_delta_rule")
    del w, u, h, v_new
    return g_sum, A, out


GATE, STRENGTH = "the cumulative gate of each chunk", "the write strength"
SOLVED = "the solved 64 × 64 matrix of each chunk"


def chunk_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """chunk_gated_delta_rule of normalised queries and keys, [B, T, HV, d] as the values: keeps them as they are."""
    g_sum, A, out = _chunks(q, k, v)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        held = [node.unpack(i) for i in range(6)]
        made = _chunk_gradients(*held[:5])
        del held
        return made

    saves = [(q, "the queries"), (k, "the keys"), (v, "the values"), (g_sum, GATE), (beta, STRENGTH), (A, SOLVED)]
    custom("ChunkGatedDeltaRuleFunction", rule, (q, k, v, g, beta), saves, [out])
    return out


def l2_norm(x: Tensor) -> Tensor:
    """fla.modules.l2norm.l2norm: keeps its output and each row's norm, in fp32."""
    out, norms = new(x, x.shape, op="l2norm"), new(x, x.shape[:-1], FP32, "rstd")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        return [new(grads[0], node.unpack(0).shape, op="l2norm_bwd")]

    custom("L2NormFunction", rule, (x,), [(out, "the normalised rows"), (norms, "the norms of the rows")], [out])
    return out


def fla_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """chunk_gated_delta_rule of q, k [B, T, H, dk], v [B, T, HV, dv], g and beta [B, T, HV], with its norm of q and k.

    fla/ops/gated_delta_rule/chunk.py and fla/modules/l2norm.py, fla-core 0.6.0: keeps the normalised q and k with
    their norms, v, the cumulative gate in fp32, beta and the chunk matrices A; states are computed again.
    """
    inputs = (q, k, v, g, beta)
    q, k, v, g, beta = (raw_contiguous(x) for x in inputs)
    batch, length, heads, _dim = q.shape
    q_norm, k_norm = new(q, q.shape, op="l2norm"), new(k, k.shape, op="l2norm")
    q_rstd, k_rstd = (new(q, (batch, length, heads), FP32, "rstd") for _ in range(2))
    g_sum, A, out = _chunks(q, k, v)
    saves = [
        (q_norm, "the normalised queries"),
        (q_rstd, "the norms of the queries"),
        (k_norm, "the normalised keys"),
        (k_rstd, "the norms of the keys"),
        (v, "the values"),
        (g_sum, GATE),
        (beta, STRENGTH),
        (A, SOLVED),
    ]
    custom("ChunkGatedDeltaRuleFunction", _fla_backward, inputs, saves, [out])
    return out
