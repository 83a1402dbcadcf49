"""One rank's memory by phase and category, the verdict against a limit, and what a run costs."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .part import Part


class PhaseBytes(Part, frozen=True):
    """One phase of a step: what one rank has allocated at its highest point, by category."""

    phase: str
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    loss_bytes: int
    workspace_bytes: int
    communication_bytes: int
    total_bytes: int
    first_step_total_bytes: int


class Band(Part, frozen=True):
    """A range whose ends have a source, never a silent factor; `typical` where a median of measurements says it."""

    low: int
    high: int
    typical: int | UnsetType = UNSET


class BudgetLine(Part, frozen=True):
    """One term of the static half, with its reason and source."""

    category: str
    name: str
    bytes: int
    phases: tuple[str, ...]
    reason: str
    source: str
    moments: tuple[str, ...] | UnsetType = UNSET
    """Of the backward: at the loss, in the layers, at the end; left out where it is alive in all."""


class WeightsOwed(Part, frozen=True):
    """Under a schedule that splits the backward: the microbatches whose weights wait for their gradients, at most, and
    what is kept for them. graph_bytes: what is kept beside that where their whole graphs wait too."""

    microbatches: int
    bytes: int
    graph_bytes: int


class StageBytes(Part, frozen=True, kw_only=True):
    """One pipeline stage: its layers, the microbatches (of one chunk each) it holds at most, its highest point.

    first_layer, last_layer: left out where it has an end of the model and no layer. chunks: first and last layer of
    each, where there are several; nothing of one without layers. phases: its categories.
    """

    stage: int
    first_layer: int | UnsetType = UNSET
    last_layer: int | UnsetType = UNSET
    in_flight: int
    peak_phase: str
    total_bytes: int
    after_step_bytes: int
    phases: tuple[PhaseBytes, ...]
    chunks: tuple[tuple[int, ...], ...] | UnsetType = UNSET
    weights_owed: WeightsOwed | UnsetType = UNSET


class StreamPool(Part, frozen=True):
    """What the allocator reserves for a stream that does not compute, at its highest."""

    name: str
    bytes: int
    reason: str
    source: str


class Routing(Part, frozen=True):
    """The allocated peak of a rank with experts where all ranks get as many rows, and where one gets them all:
    `worst_imbalance` times the mean."""

    balanced_total_bytes: int
    worst_total_bytes: int
    worst_imbalance: float


class Budget(Part, frozen=True):
    """One rank's memory. `total_bytes` is allocated; with pipeline stages, of the fullest one. `after_step_bytes` stay
    allocated when the step is over, until the gradients are freed."""

    recipe: str
    optimizer: str
    mesh: dict[str, int]
    phases: tuple[PhaseBytes, ...]
    peak_phase: str
    total_bytes: int
    after_step_bytes: int
    reserved_bytes: Band
    framework_bytes: Band
    device_bytes: Band
    host_bytes: int
    lines: tuple[BudgetLine, ...]
    stage: int
    stages: tuple[StageBytes, ...] | UnsetType = UNSET
    schedule: str | UnsetType = UNSET
    routing: Routing | UnsetType = UNSET
    pools: tuple[StreamPool, ...] | UnsetType = UNSET
    recipe_assumed: bool | UnsetType = UNSET
    """Whether no recipe was named, so that the usual one of the run is counted."""


class Remedy(Part, frozen=True):
    """A change that was tried: the device bytes with it, the verdict then, and what it costs.

    fits: whether it runs (`verdict` is not `no`).
    """

    change: str
    device_bytes: Band
    verdict: str
    fits: bool
    recompute_flops_fraction: float
    cost: str
    gpus: int


class Fit(Part, frozen=True):
    """The verdict against a limit.

    Attributes:
        verdict: `fits` where what the run typically takes is within the limit; `tight` where only the least it can
            do with is, so that it runs once the allocator has given back what is free; `no` where even that is not.
        fits: whether it runs: `fits` or `tight`; under `--strict` only `fits`.
        needed_bytes: the two sizes that are compared with the limit, `low` and `typical`; both are the allocated bytes
            under `--fit-on allocated`. `high` is what it would take if there were room.
        headroom_bytes: the limit less what the run typically takes; negative unless the verdict is `fits`.
        setting: the environment variable that leaves a tight run most room.
        blame: the largest category at the peak.
    """

    limit_bytes: int
    verdict: str
    fits: bool
    needed_bytes: Band
    headroom_bytes: int
    fit_on: str
    device: str | UnsetType = UNSET
    setting: str | UnsetType = UNSET
    blame: str | UnsetType = UNSET
    remedies: tuple[Remedy, ...] | UnsetType = UNSET


class Cost(Part, frozen=True):
    """What a run of so many tokens costs, and the share of it that recomputation takes."""

    tokens: int
    gpus: int
    mfu: float
    step_flops_per_token: int
    gpu_hours: float
    recompute_gpu_hours: float
    recompute_share: float
