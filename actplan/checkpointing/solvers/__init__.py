"""Where to checkpoint: named schedules, the frontier of peak against recomputation, the plan."""

from .families import FAMILIES, Family, check_family
from .files import parse_chain, read_chain
from .named import (
    blocks,
    every_k,
    every_layer,
    first_n,
    flagged,
    heaviest_n,
    kth_layers,
    no_checkpoint,
    one_in_k,
    segmented,
    sqrt_segments,
)
from .nested import solve_nested
from .offload import offload_checkpointed, offload_stored
from .planner import Frontier, Plan, Point, frontier, plan
from .single_level import Suffixes, solve
from .tables import working_set

__all__ = [
    "FAMILIES",
    "Family",
    "Frontier",
    "Plan",
    "Point",
    "Suffixes",
    "blocks",
    "check_family",
    "every_k",
    "every_layer",
    "first_n",
    "flagged",
    "frontier",
    "heaviest_n",
    "kth_layers",
    "no_checkpoint",
    "offload_checkpointed",
    "offload_stored",
    "one_in_k",
    "parse_chain",
    "plan",
    "read_chain",
    "segmented",
    "solve",
    "solve_nested",
    "sqrt_segments",
    "working_set",
]
