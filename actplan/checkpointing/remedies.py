"""What would make a model fit where no checkpointing does: every change is tried, none is guessed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..basics.errors import InputError
from ..model import GatedDeltaNet
from ..report import PlanRemedy
from ..training import Run
from .candidates import Candidates, candidates
from .solvers import solve_nested

NESTED_WORK = 500_000
"""Additions that the search for nested checkpoints may take."""


def remedies(about: Candidates, room: int) -> tuple[PlanRemedy, ...]:
    """Changes that lower the lowest peak, in order of what they cost: first those that change no result."""
    lowest = about.lowest.peak_bytes
    found = []
    for change, flags, peak in _tried(about):
        if peak is not None and peak < lowest:
            found.append(PlanRemedy(change=change, flags=flags, lowest_peak_bytes=peak, fits=peak <= room))
    return tuple(found)


def _tried(about: Candidates) -> Iterator[tuple[str, str, int | None]]:
    run = about.profile.run
    free = list(_free(about))
    for change, flags, changed in free:
        yield change, flags, _lowest(about, replace(run, **changed))
    if len(free) > 1:
        together = {key: value for _, _, changed in free for key, value in changed.items()}
        yield "all of these", " ".join(flags for _, flags, _ in free), _lowest(about, replace(run, **together))
    if not about.framework.any_segments:
        peak = candidates(about.profile, "any").lowest.peak_bytes
        yield "segments of any length (torch.utils.checkpoint)", "--only any", peak
    if about.framework.nested:
        yield "checkpoints within checkpoints (use_reentrant=False)", "", _nested(about)
    if run.micro_batch_size > 1:
        half = run.micro_batch_size // 2
        yield "half the micro-batch", f"--batch {half}", _lowest(about, replace(run, micro_batch_size=half))
    mesh = run.mesh
    yield (
        "twice the tensor-parallel ranks, with sequence parallelism",
        f"--tp {2 * mesh.tp} --sp",
        _lowest(about, replace(run, mesh=replace(mesh, tp=2 * mesh.tp, sp=True))),
    )
    yield (
        "twice the context-parallel ranks",
        f"--cp {2 * mesh.cp}",
        _lowest(about, replace(run, mesh=replace(mesh, cp=2 * mesh.cp))),
    )
    if run.sequence_length > 1:
        half = run.sequence_length // 2
        yield "half the sequence", f"--seq {half}", _lowest(about, replace(run, sequence_length=half))


def _free(about: Candidates) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Changes of kernels, which compute the same."""
    run, model = about.profile.run, about.profile.architecture
    if model is None:
        return
    if run.loss_kind.logits_sized:
        yield "a fused loss", f"--loss {run.fused_loss}", {"loss": run.fused_loss}
    if run.kernels == "hf" and model.liger:
        yield "Liger's kernels", "--kernels liger", {"kernels": "liger"}
    if run.attention == "eager":
        yield "a flash attention kernel", "--attention flash", {"attention": "flash"}
    hybrid = any(isinstance(layer.mixer, GatedDeltaNet) for layer in model.layers)
    if hybrid and run.linear_attention == "torch":
        yield "flash-linear-attention", "--linear-attention fla", {"linear_attention": "fla"}


def _lowest(about: Candidates, run: Run) -> int | None:
    """The lowest peak under another run; None where the model does not allow it."""
    try:
        return candidates(about.profile.with_run(run), about.framework.name, per_op=False).lowest.peak_bytes
    except InputError:
        return None


def _nested(about: Candidates) -> int | None:
    """The lowest peak of nested checkpoints of whole layers that a quick search finds."""
    chain = about.profile.chain(checkpointed=True, first_stored=False)
    base = about.profile.measured.context(checkpointed=True).backward
    allowed = [stage.is_layer for stage in chain.stages]
    points = solve_nested(chain, about.lowest.peak_bytes - base, allowed=allowed, work=NESTED_WORK).points()
    return base + points[0][0] if points else None
