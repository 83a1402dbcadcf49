"""Where to checkpoint: named schedules, the frontier of peak against recomputation, the plan."""

from .files import parse_chain, read_chain
from .named import no_checkpoint, segmented, under
from .nested import solve_nested
from .offload import offload_checkpointed, offload_stored
from .planner import Frontier, Plan, Point, frontier, plan
from .single_level import Suffixes, solve
from .tables import working_set

__all__ = [
    "Frontier",
    "Plan",
    "Point",
    "Suffixes",
    "frontier",
    "no_checkpoint",
    "offload_checkpointed",
    "offload_stored",
    "parse_chain",
    "plan",
    "read_chain",
    "segmented",
    "solve",
    "solve_nested",
    "under",
    "working_set",
]
