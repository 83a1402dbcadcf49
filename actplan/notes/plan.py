"""What a reader of a plan should know beside the numbers. Codes are stable words."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from ..basics.units import format_gib
from ..checkpointing.candidates import Candidates, candidates
from ..checkpointing.largest import MOST
from ..checkpointing.slowdown import FLOPS_PER_BYTE, READS
from ..profile.profile import Profile
from ..report import Largest, Note, Plan
from ..training.policies import EveryK, EveryLayer

Said = Iterator[tuple[str, str]]


def plan_notes(profile: Profile, found: Plan) -> tuple[Note, ...]:
    """All that apply to a plan."""
    about = candidates(profile, found.only, per_op=found.per_op)
    parts = (_per_op(about, found), _last(found), _kept(profile, found), *_of_model(about), _time(found))
    return tuple(Note(code=code, message=message) for part in parts for code, message in part)


def frontier_notes(profile: Profile, only: str, per_op: bool | None) -> tuple[Note, ...]:
    """All that apply to a whole frontier."""
    about = candidates(profile, only, per_op=per_op)
    return tuple(Note(code=code, message=message) for part in _of_model(about) for code, message in part)


def largest_notes(found: Largest) -> tuple[Note, ...]:
    """What the search for the largest leaves out."""
    notes = []
    if found.axis == "layers":
        notes.append(
            Note(
                code="weights-not-counted",
                message="weights, gradients and optimizer states grow with the layers and are not part of the limit",
            )
        )
        if found.with_checkpointing and found.with_checkpointing.value == MOST["layers"]:
            message = f"the search stops at {MOST['layers']} layers: more fit"
            notes.append(Note(code="search-stopped", message=message))
    return tuple(notes)


def _per_op(about: Candidates, found: Plan) -> Said:
    """How much better single outputs are than whole layers."""
    if not about.per_op or not found.feasible or not about.whole:
        return
    fitting = [p.flops for p in about.whole if p.peak_bytes <= found.limit_bytes - found.reserved_bytes]
    step = 3 * about.profile.measured.flops
    if fitting and step and min(fitting) > (found.recompute_cost or 0):
        yield (
            "per-op",
            f"choosing single outputs to keep costs {(found.recompute_cost or 0) / step:.1%} of the step's FLOPs; the "
            f"best choice of whole layers costs {min(fitting) / step:.1%} (--no-per-op)",
        )


def _last(found: Plan) -> Said:
    units = found.units or ()
    if len(units) > 1 and units[-1].kind == "stored":
        yield (
            "last-stored",
            "the last layers are stored: their backward comes first, so to recompute them saves nothing",
        )


def _kept(profile: Profile, found: Plan) -> Said:
    """In a hybrid, the kinds of layer that are stored."""
    units = [unit for unit in found.units or () if unit.kind == "stored"]
    stored = {profile.kinds[i] for unit in units for i in range(unit.first_stage, unit.last_stage + 1)}
    kinds = set(profile.kinds)
    if stored and len(stored) < len(kinds):
        yield (
            "hybrid",
            f"of the kinds of layer here, {', '.join(sorted(stored))} is stored: a byte there saves most FLOPs",
        )


def _of_model(about: Candidates) -> Iterator[Said]:
    yield _floor(about)
    yield _uniform(about)


def _floor(about: Candidates) -> Said:
    under = about.under
    floor, lowest = under(EveryLayer()).peak_bytes, about.lowest.peak_bytes
    if lowest < floor and about.framework.long_segments:
        yield (
            "per-layer-floor",
            f"each layer on its own cannot go below {format_gib(floor)} GiB (all {about.layers} boundaries and one "
            f"layer); segments of several layers reach {format_gib(lowest)}",
        )


def _uniform(about: Candidates) -> Said:
    """Equal segments: where their optimum is."""
    n, under = about.layers, about.under
    if n < 4 or not about.framework.long_segments:
        return
    best = min(range(1, n + 1), key=lambda k: under(EveryK(k) if k > 1 else EveryLayer()).peak_bytes)
    stages = [layer.stage for layer in about.profile.measured.layers]
    x, s = stages[0].x, sum(stage.s for stage in stages) / n
    yield (
        "best-uniform",
        f"of equal segments, {best} layers each reach the lowest peak; sqrt(n·x/(x+s)) = {sqrt(n * x / (x + s)):.1f} "
        f"balances boundaries and working set (n {n} layers, x a boundary, s what a layer keeps), not sqrt(n) = "
        f"{sqrt(n):.0f}" + (": here the head and loss hide the difference" if best > 3 * sqrt(n * x / (x + s)) else ""),
    )


def _time(found: Plan) -> Said:
    if found.feasible and found.recompute_cost:
        yield (
            "slow-down",
            "slower by the share of FLOPs run again, up to that and the traffic of rebuilding tensors: "
            f"each rebuilt byte written once and read {READS} times, at {FLOPS_PER_BYTE} FLOPs a byte (H100 at half "
            "its peak)",
        )
