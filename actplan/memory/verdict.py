"""Whether a budget fits, and what is to blame when it does not."""

from __future__ import annotations

from msgspec.structs import replace

from ..profile.profile import Profile
from ..report import Budget, Fit, PhaseBytes
from ..training import Run
from .gpus import EXPANDABLE
from .job import Job
from .remedies import remedies
from .target import Target

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "loss", "workspace", "communication")


def fit(about: Profile, run: Run, job: Job, found: Budget, target: Target) -> Fit:
    """The verdict; where it does not fit, the category to blame and what would help."""
    verdict = target.verdict(found)
    parts: dict[str, object] = {} if target.device is None else {"device": target.device}
    if verdict != "fits":
        parts["blame"] = blame(found)
        if verdict == "tight" and job.allocator == "default":
            parts["setting"] = EXPANDABLE
        # what runs already is helped by what makes it fit, and by nothing less
        goal = replace(target, strict=target.strict or verdict == "tight")
        parts["remedies"] = remedies(about, run, job, found, goal)
    return Fit(
        limit_bytes=target.limit_bytes,
        verdict=verdict,
        fits=target.fits(found),
        needed_bytes=target.needed(found),
        headroom_bytes=target.limit_bytes - target.typical(found),
        fit_on=target.fit_on,
        **parts,  # type: ignore[arg-type]
    )


def blame(found: Budget) -> str:
    """The largest category at the peak."""
    phase = next(phase for phase in found.phases if phase.phase == found.peak_phase)
    return max(CATEGORIES, key=lambda name: _category(phase, name))


def _category(phase: PhaseBytes, name: str) -> int:
    return int(getattr(phase, f"{name}_bytes"))
