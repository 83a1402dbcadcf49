"""What fits: the cheapest schedule within a limit, the whole trade-off, the largest length, batch or depth."""

from .largest import largest
from .planner import frontier, plan

__all__ = ["frontier", "largest", "plan"]
