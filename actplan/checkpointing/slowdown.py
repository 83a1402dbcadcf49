"""How much longer a step takes with recomputation, as a range.

low: FLOPs run again over those of the step (forward + backward, no recomputation): the replay runs at the rate of the
rest of the step.

high: low, and what the replay allocates is written once and READS times read at memory bandwidth, hidden by nothing:
norms, activations and rotations do few FLOPs, so rebuilding them costs traffic. Bytes become FLOPs at
FLOPS_PER_BYTE = utilisation × peak FLOP/s ÷ bytes/s: 0.5 × 989 · 10^12 ÷ 3.35 · 10^12 = 148 for H100 SXM
(H200: 103, B200: 140, A100: 76; NVIDIA's data sheets, dense bf16).

Left out: launch overhead of small kernels, collectives that a replay repeats, and transfers.
"""

from __future__ import annotations

from ..report import Slowdown

READS = 2
FLOPS_PER_BYTE = 148


def slowdown(flops: int, rebuilt_bytes: int, step_flops: int) -> Slowdown:
    """The range for that much recomputation in a step of `step_flops`."""
    if not step_flops:
        return Slowdown(low=0.0, high=0.0)
    traffic = (1 + READS) * rebuilt_bytes * FLOPS_PER_BYTE
    return Slowdown(low=flops / step_flops, high=(flops + traffic) / step_flops)
