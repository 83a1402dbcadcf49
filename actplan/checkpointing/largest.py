"""The longest sequence, the largest batch, the deepest model that fits, with and without checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from msgspec.structs import replace

from ..basics.errors import InputError
from ..profile.profile import Profile
from ..report import Extent, Largest
from ..training import Run
from ..training.policies import NoCheckpoint
from .candidates import candidates
from .planner import dominated_by, named, unnamed

Axis = Literal["seq", "batch", "layers"]
AXES: tuple[str, ...] = get_args(Axis)
MOST = {"seq": 1 << 40, "batch": 1 << 40, "layers": 512}
"""Where the search stops."""
MOST_SOLVED = 160
"""Layers up to which the cheapest schedule is looked for; beyond it, one of lowest peak."""
GROWTH = 8


def largest(
    profile: Profile,
    limit: int,
    axis: str,
    *,
    only: str = "any",
    per_op: bool | None = None,
    reserved_bytes: int = 0,
) -> Largest:
    """The largest value of `axis` whose peak is within the limit, everything else as it is.

    With checkpointing every schedule of the framework counts. A longer stack of layers repeats the model's block;
    what its weights take is not part of the limit.
    """
    if axis not in AXES:
        raise InputError(f"unknown axis {axis[:64]!r}", where="--max", choices=AXES, got=axis)
    room, run = limit - reserved_bytes, profile.given
    unit = _unit(run) if axis == "seq" else 1
    sizes = {"seq": run.sequence_length, "batch": run.micro_batch_size, "layers": profile.layers.count}
    start = sizes[axis] // unit

    def lowest(count: int) -> int:
        return candidates(scaled(profile, axis, count * unit), only, per_op=False).lowest.peak_bytes

    def stored(count: int) -> int:
        return scaled(profile, axis, count * unit).under(NoCheckpoint()).peak_bytes

    most = MOST[axis] // unit
    deep, flat = search(lowest, room, start, most), search(stored, room, start, most)
    parts: dict[str, object] = {}
    if deep:
        about = candidates(scaled(profile, axis, deep * unit), only, per_op=per_op)
        solved = about.layers <= MOST_SOLVED
        point = (about.within(room) if solved else None) or about.lowest
        policy, chosen = named(about, point) if solved else unnamed(point)
        parts["with_checkpointing"] = Extent(
            value=deep * unit,
            policy=str(policy),
            peak_bytes=chosen.peak_bytes,
            recompute_flops_fraction=chosen.recompute_flops_fraction,
        )
        parts["dominated_by"] = dominated_by(chosen)
    if flat:
        parts["without_checkpointing"] = Extent(
            value=flat * unit, policy="none", peak_bytes=stored(flat), recompute_flops_fraction=0.0
        )
        parts["ratio"] = deep / flat
    return Largest(
        axis=axis,
        limit_bytes=limit,
        reserved_bytes=reserved_bytes,
        only=only,
        **parts,  # type: ignore[arg-type]
    )


def scaled(profile: Profile, axis: str, value: int) -> Profile:
    """Return the profile at that sequence length, batch, or number of layers."""
    if axis == "layers":
        return profile.deepened(value)
    setting = {"seq": "sequence_length", "batch": "micro_batch_size"}[axis]
    return profile.with_run(replace(profile.given, **{setting: value}))


def _unit(run: Run) -> int:
    """What a sequence length must be a multiple of on this mesh."""
    return run.mesh.cp * (run.mesh.tp if run.mesh.sp else 1)


def search(peak: Callable[[int], int], room: int, start: int, most: int) -> int:
    """The largest count from 1 to `most` with peak(count) ≤ room, 0 if there is none; `peak` grows with count.

    Peaks are nearly straight lines, so the next guess is where the line through the two ends meets the limit; every
    third guess is the middle, for where they are not.
    """
    low, at_low, high, at_high = 0, 0, most + 1, 0
    guess, tries = max(1, min(start, most)), 0
    while high - low > 1:
        needed, tries = peak(guess), tries + 1
        if needed <= room:
            low, at_low = guess, needed
        else:
            high, at_high = guess, needed
        if not at_high:
            guess = min(max(low + 1, low * room // max(at_low, 1)), GROWTH * low, most)
        elif tries % 3 == 0 and high - low > 8:
            guess = (low + high) // 2
        else:
            guess = low + (high - low) * (room - at_low) // max(at_high - at_low, 1)
        guess = max(low + 1, min(guess, high - 1))
    return low
