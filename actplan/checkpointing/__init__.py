"""What fits: the cheapest schedule within a limit, the whole trade-off, the largest length, batch or depth."""

from .largest import largest
from .planner import frontier, frontier_points, plan, rules

__all__ = ["frontier", "frontier_points", "largest", "plan", "rules"]
