"""torch's other attention kernels: cuDNN's under `scaled_dot_product_attention`, and `flex_attention`.

From their sources (PyTorch 2.13); not checked on a GPU.
"""

from __future__ import annotations

from functools import partial

from ..autograd.graph import Node, Tape, Tensor
from ..autograd.strides import Shape, matching_strides
from ..basics.units import FP32, INT32, INT64
from ..model import Attention
from .attention import Attended, repeat_kv
from .casts import lowered, to
from .function import KEYS, OUTPUT, QUERIES, ROWS, STATE, VALUES, custom, empty_like, new
from .views import contiguous, transpose

FLEX_BLOCK = 128
"""Rows and columns of one block of a BlockMask (torch/nn/attention/flex_attention.py, _DEFAULT_SPARSE_BLOCK_SIZE)."""


def cudnn_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: Attention | None = None
) -> Attended:
    """ATen/native/transformers/cuda/attention.cu, _scaled_dot_product_cudnn_attention_cuda, and
    tools/autograd/derivatives.yaml: keeps q, k, v as they are (heads are grouped in the kernel), output, the
    log-sum-exp of each row in fp32, seed and offset. With a mask Transformers repeats keys and values, and the mask is
    kept as a bias in the model's type (attention.cpp, convert_boolean_attn_mask_cudnn)."""
    query, key, value = lowered(query, key, value)
    bias = None
    if mask is not None:
        key, value = (repeat_kv(x, query.shape[1] // key.shape[1]) for x in (key, value))
        bias = new(query, (query.shape[0], *mask.shape[1:]), op="attention_bias")
    batch, heads, length, _ = query.shape
    output = partial(query.tape.output, family="attention")
    flops = _flops(query, key, value)
    shape, strides = _like_queries(query, value)
    out = output(shape, query.dtype, "cudnn_attention", flops=flops, strides=strides)
    lse = output((batch, heads, length, 1), FP32, "logsumexp", flops=0)
    seed, offset = (output((), INT64, "philox", flops=0) for _ in range(2))
    saves = [(query, QUERIES), (key, KEYS), (value, VALUES), (out, OUTPUT), (lse, ROWS)]
    saves += [(state, STATE) for state in (seed, offset)]
    if bias is not None:
        saves.append((bias, "the T × T mask as an additive bias"))
    custom("ScaledDotProductCudnnAttentionBackward0", _cudnn_backward, (query, key, value), saves, [out])
    return contiguous(transpose(out, 1, 2)), None


def _flops(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Causal attention by its half."""
    batch, heads, length, dim = query.shape
    return batch * heads * length * key.shape[2] * (dim + value.shape[3])


def _like_queries(query: Tensor, value: Tensor) -> tuple[Shape, Shape]:
    """Shape and strides of an output that is laid out as the queries are (cuDNN's alloc_with_matching_layout,
    flex_attention's _permute_strides)."""
    shape = (*query.shape[:3], value.shape[3])
    return shape, matching_strides(shape, (query.shape, query.strides))


def _cudnn_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """ATen/native/cudnn/MHA.cpp, run_cudnn_SDP_bprop. cuDNN's workspace is its own affair: counted is what its
    algorithm must hold, the queries' gradient in fp32 and one number a row."""
    q, k, v, *held = (node.unpack(i) for i in range(len(node.saved)))
    grad = grads[0]  # dO is copied where its layout is not the output's
    if grad.strides != held[0].strides:
        grad = new(grad, grad.shape, op="clone")
    batch, heads, length, dim = q.shape
    result = [empty_like(x) for x in (q, k, v)]
    rows = (batch, heads, length)
    workspace = [new(q, shape, FP32, "workspace") for shape in ((*rows, dim), rows)]
    del grad, workspace
    return result


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: Attention | None = None
) -> Attended:
    """Transformers' integrations/flex_attention.py over torch.compile'd flex_attention
    (torch/_higher_order_ops/flex_attention.py, FlexAttentionAutogradOp): keeps q, k, v, output, the log-sum-exp in
    fp32 and the block mask. Keys and values are repeated where the number of heads is no power of two. The layer gets
    the log-sum-exp in the model's type beside the output."""
    query, key, value = lowered(query, key, value)
    heads = query.shape[1]
    if heads & (heads - 1):
        key, value = (repeat_kv(x, heads // key.shape[1]) for x in (key, value))
    # compiled, so that the dispatcher does not see it: nothing that selective checkpointing could keep
    query.tape.count_flops(_flops(query, key, value))
    shape, strides = _like_queries(query, value)
    out = query.tape.empty(shape, query.dtype, "flex_attention", strides)
    lse = new(query, (query.shape[0], heads, query.shape[2]), FP32, "logsumexp")
    saves = [(query, QUERIES), (key, KEYS), (value, VALUES), (out, OUTPUT), (lse, ROWS)]
    if mask is not None:
        saves.append((mask, "the blocks of the mask that are not empty"))
    custom("FlexAttentionBackward", _flex_backward, (query, key, value), saves, [out])
    natural = new(lse, lse.shape, op="mul")
    rows = to(natural, value.dtype)
    del natural
    return contiguous(transpose(out, 1, 2)), rows


def wrapped_flex_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """flex_attention compiled as a region that the dispatcher sees (`wrap_inductor_compiled_regions`): selective
    checkpointing can keep what it makes. Heads are grouped in the kernel, and the caller holds the block mask
    (torchtitan 0.3.0, models/common/attention.py, FlexAttention). Heads first in and out."""
    shape, strides = _like_queries(query, value)
    output = partial(query.tape.output, family="attention")
    out = output(shape, query.dtype, "flex_attention", flops=_flops(query, key, value), strides=strides)
    lse = output(shape[:3], FP32, "logsumexp", flops=0)
    saves = [(query, QUERIES), (key, KEYS), (value, VALUES), (out, OUTPUT), (lse, ROWS)]
    custom("FlexAttentionBackward", _flex_backward, (query, key, value), saves, [out])
    return out


def _flex_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """torch/_inductor/kernel/flex/flex_attention.py, flex_attention_backward: row sums in fp32, then each gradient at
    its own size and in its own layout, those of grouped keys and values summed in the kernel."""
    q, k, v, *held = (node.unpack(i) for i in range(len(node.saved)))
    delta = new(q, held[1].shape, FP32, "delta")
    result = [empty_like(x) for x in (q, k, v)]
    del delta
    return result


def block_mask(tape: Tape, batch: int, length: int) -> Tensor:
    """What a BlockMask is made of, as one tensor: for partial and full blocks, by rows and by columns, how many there
    are in each and which (create_block_mask; compiled, so that no mask of T × T is made)."""
    blocks = -(-length // FLEX_BLOCK)
    return tape.empty((batch, 4, blocks, blocks + 1), INT32, "block_mask")


__all__ = ["block_mask", "cudnn_attention", "flex_attention", "wrapped_flex_attention"]
