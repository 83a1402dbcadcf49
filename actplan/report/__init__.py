"""What a command found: the one result object, its parts by subject, and its JSON (`schema_version: 1`, integer bytes,
no key ever null).

A field that a command does not compute is UNSET and left out of the JSON. Key names are frozen.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ..basics import __version__
from .budget import (
    Band,
    Budget,
    BudgetLine,
    Cost,
    Fit,
    PhaseBytes,
    Remedy,
    Routing,
    StageBytes,
    StreamPool,
    WeightsOwed,
)
from .estimates import (
    Accounting,
    Autograd,
    Checkpointed,
    Estimates,
    LedgerRow,
    ModelInfo,
    OutsideLayers,
    OutsideWithLosses,
    Peak,
    PeakRow,
    Residual,
    RunInfo,
    Segmentation,
    Textbook,
)
from .part import Part
from .plan import Alternative, Extent, FrontierPoint, Largest, Plan, PlanRemedy, PlanUnit, Slowdown

SCHEMA_VERSION = 1
STAMP: dict[str, object] = {"schema_version": SCHEMA_VERSION, "actplan_version": __version__}
"""How every JSON object begins."""


class Note(Part, frozen=True):
    """Something a reader must know. `code` is a stable word."""

    code: str
    message: str


class Report(Part, frozen=True, kw_only=True):
    """What a command found. selective: policies that keep single outputs, beside those of whole layers."""

    schema_version: int = SCHEMA_VERSION
    actplan_version: str = __version__
    model: ModelInfo | UnsetType = UNSET
    run: RunInfo | UnsetType = UNSET
    estimates: Estimates | UnsetType = UNSET
    segmentations: tuple[Segmentation, ...] | UnsetType = UNSET
    selective: tuple[Segmentation, ...] | UnsetType = UNSET
    peak: Peak | UnsetType = UNSET
    ledger: tuple[LedgerRow, ...] | UnsetType = UNSET
    budget: Budget | UnsetType = UNSET
    fit: Fit | UnsetType = UNSET
    cost: Cost | UnsetType = UNSET
    plan: Plan | UnsetType = UNSET
    largest: Largest | UnsetType = UNSET
    frontier: tuple[tuple[int, int | float], ...] | UnsetType = UNSET
    frontier_points: tuple[FrontierPoint, ...] | UnsetType = UNSET
    alternatives: tuple[Alternative, ...] | UnsetType = UNSET
    notes: tuple[Note, ...] = ()


class Sweep(Part, frozen=True):
    """The rows of a sweep, one a point: where it lies, then its sizes in bytes, or the reason that there are none."""

    schema_version: int = SCHEMA_VERSION
    actplan_version: str = __version__
    rows: tuple[dict[str, object], ...] = ()


def to_json(report: object) -> bytes:
    """The report as one JSON document, indented for people."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2)


__all__ = [
    "SCHEMA_VERSION",
    "STAMP",
    "Accounting",
    "Alternative",
    "Autograd",
    "Band",
    "Budget",
    "BudgetLine",
    "Checkpointed",
    "Cost",
    "Estimates",
    "Extent",
    "Fit",
    "FrontierPoint",
    "Largest",
    "LedgerRow",
    "ModelInfo",
    "Note",
    "OutsideLayers",
    "OutsideWithLosses",
    "Part",
    "Peak",
    "PeakRow",
    "PhaseBytes",
    "Plan",
    "PlanRemedy",
    "PlanUnit",
    "Remedy",
    "Report",
    "Residual",
    "Routing",
    "RunInfo",
    "Segmentation",
    "Slowdown",
    "StageBytes",
    "StreamPool",
    "Sweep",
    "Textbook",
    "WeightsOwed",
    "to_json",
]
