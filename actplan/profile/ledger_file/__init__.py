"""The ledger that `actplan trace -o` writes: read, checked and evaluated at any batch and length, without
torch.

Sizes are written as sums of products over `B` (batch) and `T` (length), as in `10240*B*T + 4*T`; beside them
stand `ceil(T/64)`, `floor(T/2)` and `pow2(B*T/31)`, the power of two at or above ceil(B*T/31), at most B*T.
"""

from __future__ import annotations

from .evaluation import Evaluation, Peaks, StageNumbers, evaluate_ledger
from .file import dump_ledger, load_ledger, write_ledger
from .model import LedgerModel
from .sizes import Size, factor_value, parse
from .structs import (
    VERSION,
    Accumulated,
    Check,
    Ending,
    Images,
    Ledger,
    LeftOut,
    Parameter,
    Point,
    Row,
    Span,
    Stage,
    Weights,
    kind_of,
)

__all__ = [
    "VERSION",
    "Accumulated",
    "Check",
    "Ending",
    "Evaluation",
    "Images",
    "Ledger",
    "LedgerModel",
    "LeftOut",
    "Parameter",
    "Peaks",
    "Point",
    "Row",
    "Size",
    "Span",
    "Stage",
    "StageNumbers",
    "Weights",
    "dump_ledger",
    "evaluate_ledger",
    "factor_value",
    "kind_of",
    "load_ledger",
    "parse",
    "write_ledger",
]
