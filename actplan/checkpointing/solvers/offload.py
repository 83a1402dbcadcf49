"""Boundaries moved to host memory, as further choices of a stage.

A transfer takes bytes / bandwidth seconds each way. What compute hides of it is free; the rest is waited for,
and counted at `cost_per_second` in the chain's unit (10^9 where costs are ns, the sustained FLOP/s where they
are FLOPs). Bandwidths are one way, and the defaults are round figures under the links' nominal rates: 63 GB/s
for PCIe 5.0 x16, 450 GB/s for NVLink-C2C on GH200.

Left out: pinned host memory itself, and one transfer queueing behind another.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from ...profile.chain import Chain, Choice
from .tables import tabulate, working_set


def transfer_seconds(size: int, bytes_per_second: int) -> Fraction:
    """Seconds that `size` bytes take one way."""
    return Fraction(size, bytes_per_second)


def exposed_cost(transfer: Fraction, compute_seconds: float | Fraction, cost_per_second: int) -> int:
    """The part of a transfer that compute does not hide, in the chain's unit, rounded up."""
    return ceil(max(Fraction(0), transfer - Fraction(compute_seconds)) * cost_per_second)


def offload_stored(
    chain: Chain,
    index: int,
    *,
    bytes_per_second: int,
    forward_seconds: float,
    backward_seconds: float,
    cost_per_second: int,
) -> Choice:
    """Stage `index` stored, its boundary moved out behind its forward and back behind its backward.

    The boundary is the first tensor saved and so the last used: it is fetched while the backward runs.
    """
    stage, after = chain.stages[index], chain.boundary(index + 1)
    one_way = transfer_seconds(stage.x, bytes_per_second)
    cost = exposed_cost(one_way, forward_seconds, cost_per_second)
    cost += exposed_cost(one_way, backward_seconds, cost_per_second)
    here = stage.s + stage.x + after
    return Choice(stage.s, here + stage.tf, cost, "offload", backward=here + stage.tb)


def offload_checkpointed(
    chain: Chain, index: int, *, bytes_per_second: int, forward_seconds: float, cost_per_second: int
) -> Choice:
    """Stage `index` checkpointed, its boundary on the host: nothing of it stays on the device.

    The way out hides behind the stage's forward. The way back is waited for, since the replay begins with it:
    fetching it early would need its bytes during the stage after.
    """
    stage = chain.stages[index]
    one_way = transfer_seconds(stage.x, bytes_per_second)
    cost = stage.r - stage.skip + exposed_cost(one_way, forward_seconds, cost_per_second)
    cost += exposed_cost(one_way, 0.0, cost_per_second)
    need = working_set(tabulate(chain, menus=False), index, index)
    return Choice(0, need, cost, "checkpoint+offload")
