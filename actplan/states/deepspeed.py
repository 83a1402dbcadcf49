"""DeepSpeed's own estimators, as its documentation publishes them, to set beside ours.

docs/code-docs/source/memory.rst; deepspeed/runtime/zero/stage_1_and_2.py and stage3.py,
`estimate_zero*_model_states_ mem_needs`. They print 2^30 as GB. They count more than the ZeRO paper: fp16
gradients whole (ZeRO-2), fp32 gradients of the step.
"""

from __future__ import annotations

from fractions import Fraction


def zero2_device_bytes(parameters: int, ranks: int, *, offload_optimizer: bool = False) -> int:
    """2 bytes a parameter with the optimizer offloaded, else 4 and 16 divided."""
    return 2 * parameters if offload_optimizer else 4 * parameters + 16 * parameters // ranks


def zero2_host_bytes(parameters: int, ranks_per_node: int, *, offload_optimizer: bool = False) -> int:
    """Of one node: the models being made in fp32, or 16 bytes a parameter, half as much again for buffers."""
    each = max(4 * ranks_per_node, 16) if offload_optimizer else 4 * ranks_per_node
    return int(Fraction(3, 2) * parameters * each)


def zero3_device_bytes(
    parameters: int,
    largest_layer: int,
    ranks: int,
    *,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
) -> int:
    """The largest layer gathered with its gradients (4 bytes), and 18, 2 or 0 bytes a parameter divided."""
    each = 0 if offload_parameters else 2 if offload_optimizer else 18
    return 4 * largest_layer + each * parameters // ranks
