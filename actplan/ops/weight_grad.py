"""The gradient of a weight, as Megatron-Core and Transformer Engine hand it to autograd.

With `gradient_accumulation_fusion` the product adds into the weight's buffer of gradients (`main_grad`), and autograd
gets a dummy: one tensor for each distinct shape, kept from step to step (transformer_engine/pytorch/module/base.py
2.20.2, get_dummy_wgrad; megatron/core/tensor_parallel/layers.py 0.16.1).
"""

from __future__ import annotations

from ..autograd.graph import Tensor
from ..autograd.strides import Shape


def weight_gradient(weight: Tensor, *, fused: bool, shape: Shape | None = None) -> Tensor:
    """The gradient of `weight`, in the weight's own type where it is not `fused`; `shape`: where it differs."""
    shape = weight.shape if shape is None else shape
    if not fused:
        return weight.tape.empty(shape, weight.dtype, "wgrad")
    name = f"dummy weight gradient of {' × '.join(map(str, shape))}"
    return weight.tape.cached(name, shape, weight.dtype, weight.storage.stage)
