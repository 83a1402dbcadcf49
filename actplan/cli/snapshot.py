"""What a real run recorded, and the plan beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..basics.errors import InputError
from ..memory.setup import Setup
from .model_options import ModelOptions
from .options import RunOptions
from .output import OutputOptions

if TYPE_CHECKING:
    from ..report import Budget


def show(path: str, model: ModelOptions, run: RunOptions, budget: Setup, output: OutputOptions) -> int:
    """The peaks of a snapshot; where a model is named, the budget of its run too, and how far they are apart."""
    from ..report import STAMP
    from ..trace import read_snapshot
    from ..trace import views as view

    peaks = read_snapshot(path)
    found: dict[str, Any] = {
        **STAMP,
        "device": peaks.device,
        "allocated_bytes": peaks.allocated_bytes,
        "reserved_bytes": peaks.reserved_bytes,
        "gap_bytes": peaks.gap_bytes,
        "events": peaks.events,
    }
    if model.preset or model.model or model.ledger:
        from ..answers import budget_of
        from .settled import asked

        plan, _ = budget_of(*asked(model, run, budget))
        found["plan"] = _beside(plan, peaks.allocated_bytes, peaks.reserved_bytes)
    elif budget != Setup():
        raise InputError("no model is named", where="--snapshot", allowed="--preset, --model or --ledger with a recipe")
    output.emit(found, lambda: view.snapshot(found), lambda: view.snapshot_sheet(found))
    return 0


def _beside(plan: Budget, allocated: int, reserved: int) -> dict[str, Any]:
    import msgspec

    band = plan.reserved_bytes
    return {
        "recipe": plan.recipe,
        "allocated_bytes": plan.total_bytes,
        "reserved_bytes": msgspec.to_builtins(band),
        "gap_bytes": {end: size - plan.total_bytes for end, size in msgspec.to_builtins(band).items()},
        "allocated_error": plan.total_bytes / allocated - 1 if allocated else 0.0,
        "reserved_within": band.low <= reserved <= band.high,
    }
