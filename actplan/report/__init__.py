"""The one result object, and its JSON (`schema_version: 1`, integer bytes, no key ever null).

A field that a command does not compute is UNSET and left out of the JSON. Key names are frozen.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

SCHEMA_VERSION = 1


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of every part of a report."""


class ModelInfo(Part, frozen=True):
    """The planned model."""

    name: str
    title: str
    source: str
    num_layers: int
    pattern: str
    num_parameters: int
    layer_kinds: dict[str, int]


class RunInfo(Part, frozen=True):
    """The run's settings, as they were resolved."""

    sequence_length: int
    micro_batch_size: int
    dtype: str
    stack: str
    attention: str
    linear_attention: str
    kernels: str
    loss: str
    checkpoint: str
    checkpoint_dtype: str
    precision: str | UnsetType = UNSET
    adapters: str | UnsetType = UNSET
    lora_dtype: str | UnsetType = UNSET
    lora_dropout: float | UnsetType = UNSET
    base_dtype: str | UnsetType = UNSET
    quantised: str | UnsetType = UNSET
    fake_quantised: str | UnsetType = UNSET
    loss_chunks: int | UnsetType = UNSET
    hold_logits: bool | UnsetType = UNSET
    mtp: bool | UnsetType = UNSET
    padding: bool | UnsetType = UNSET
    expert_imbalance: float | UnsetType = UNSET
    context_attention: str | UnsetType = UNSET


class Residual(Part, frozen=True):
    """The residual stream only: B·T·hidden·layers·bytes."""

    saved_bytes: int


class Textbook(Part, frozen=True):
    """The shape count of the model taken as uniformly full attention."""

    saved_bytes: int
    bytes_per_token_per_layer: int
    ratio_to_residual: float


class OutsideLayers(Part, frozen=True):
    """What is saved outside the layers."""

    embedding: int
    final_norm: int
    head: int
    loss: int


class OutsideWithLosses(OutsideLayers, frozen=True):
    """The same where there are further losses: all that multi-token prediction and early exits keep."""

    mtp: int | UnsetType = UNSET
    exits: int | UnsetType = UNSET


class Autograd(Part, frozen=True):
    """What PyTorch's autograd keeps, and how high allocation goes."""

    saved_bytes: int
    layer_saved_bytes: tuple[int, ...]
    outside_layers: OutsideLayers
    ratio_to_residual: float
    end_forward_bytes: int
    peak_forward_bytes: int
    peak_backward_bytes: int


class Accounting(Part, frozen=True):
    """One segmentation under one accounting. Reductions are against keeping everything (0 and 1)."""

    boundary_bytes: int
    stored_bytes: int
    working_bytes: int
    peak_bytes: int
    reduction_bytes: int
    reduction_ratio: float


class Checkpointed(Part, frozen=True):
    """The chosen policy's row of the segmentation table."""

    policy: str
    autograd: Accounting
    textbook: Accounting | UnsetType = UNSET


class Estimates(Part, frozen=True):
    """The three estimates, side by side."""

    residual: Residual
    autograd: Autograd
    checkpointed: Checkpointed
    textbook: Textbook | UnsetType = UNSET


class Segmentation(Part, frozen=True):
    """One row of the segmentation table."""

    policy: str
    num_segments: int
    recompute_flops_fraction: float
    autograd: Accounting
    textbook: Accounting | UnsetType = UNSET


class LedgerRow(Part, frozen=True):
    """One kind of saved tensor, `count` of them alike."""

    module: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    count: int
    reason: str


class PeakRow(Part, frozen=True):
    """One kind of allocation that is alive at the peak."""

    module: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    count: int


class Peak(Part, frozen=True):
    """Where the peak is: the phase (forward or backward), the stage, and what is alive there."""

    phase: str
    stage: str
    bytes: int
    alive: tuple[PeakRow, ...] | UnsetType = UNSET


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


class StageBytes(Part, frozen=True):
    """One pipeline stage: its layers, the microbatches (of one chunk each) it holds at most, its highest point.

    chunks: first and last layer of each, where there are several. phases: its categories.
    """

    stage: int
    first_layer: int
    last_layer: int
    in_flight: int
    peak_phase: str
    total_bytes: int
    phases: tuple[PhaseBytes, ...]
    chunks: tuple[tuple[int, int], ...] | UnsetType = UNSET
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
    """One rank's memory. `total_bytes` is allocated; with pipeline stages, of the fullest one."""

    recipe: str
    optimizer: str
    mesh: dict[str, int]
    phases: tuple[PhaseBytes, ...]
    peak_phase: str
    total_bytes: int
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


class Slowdown(Part, frozen=True):
    """How much longer a step takes, as a share of it: at the rate of the rest, and with traffic that nothing hides."""

    low: float
    high: float


class PlanUnit(Part, frozen=True):
    """Consecutive layers, counted from 0, and what is done with them; of a measured chain, its stages.

    kind: stored; checkpointed, as one segment; selective, each on its own with outputs kept; modules, these parts of
    each layer on their own; choice, of a stage's menu.
    """

    kind: str
    first_stage: int
    last_stage: int
    keeps: tuple[str, ...] | UnsetType = UNSET
    modules: tuple[str, ...] | UnsetType = UNSET
    choice: str | UnsetType = UNSET
    inner: tuple[PlanUnit, ...] | UnsetType = UNSET


class Alternative(Part, frozen=True):
    """A policy that a person would choose by rule, and whether it fits."""

    policy: str
    name: str
    peak_bytes: int
    recompute_cost: int | float
    recompute_flops_fraction: float
    slowdown: Slowdown | UnsetType = UNSET
    fits: bool | UnsetType = UNSET


class PlanRemedy(Part, frozen=True):
    """A change that was tried: the lowest peak that checkpointing then reaches. `flags` is empty where none exists."""

    change: str
    flags: str
    lowest_peak_bytes: int
    fits: bool


class Plan(Part, frozen=True):
    """The cheapest schedule within the limit; where none fits, the lowest peak, what decides it and what helps."""

    limit_bytes: int
    reserved_bytes: int
    only: str
    per_op: bool
    feasible: bool
    dominated_by: str
    policy: str | UnsetType = UNSET
    units: tuple[PlanUnit, ...] | UnsetType = UNSET
    peak_bytes: int | UnsetType = UNSET
    recompute_cost: int | float | UnsetType = UNSET
    recompute_flops_fraction: float | UnsetType = UNSET
    slowdown: Slowdown | UnsetType = UNSET
    optimality: str | UnsetType = UNSET
    lowest_peak_bytes: int | UnsetType = UNSET
    lowest_policy: str | UnsetType = UNSET
    remedies: tuple[PlanRemedy, ...] | UnsetType = UNSET
    alternatives: tuple[Alternative, ...] = ()


class FrontierPoint(Part, frozen=True):
    """One point of the trade-off, with its schedule."""

    peak_bytes: int
    recompute_cost: int | float
    recompute_flops_fraction: float
    policy: str
    slowdown: Slowdown | UnsetType = UNSET


class Extent(Part, frozen=True):
    """The largest value that fits, and the policy and peak there."""

    value: int
    policy: str
    peak_bytes: int
    recompute_flops_fraction: float


class Largest(Part, frozen=True):
    """How long, large or deep a model can be trained within the limit; a side is left out where nothing fits."""

    axis: str
    limit_bytes: int
    reserved_bytes: int
    only: str
    with_checkpointing: Extent | UnsetType = UNSET
    without_checkpointing: Extent | UnsetType = UNSET
    ratio: float | UnsetType = UNSET
    dominated_by: str | UnsetType = UNSET


class Note(Part, frozen=True):
    """Something a reader must know. `code` is a stable word."""

    code: str
    message: str


class Report(Part, frozen=True):
    """What a command found."""

    schema_version: int = SCHEMA_VERSION
    model: ModelInfo | UnsetType = UNSET
    run: RunInfo | UnsetType = UNSET
    estimates: Estimates | UnsetType = UNSET
    segmentations: tuple[Segmentation, ...] | UnsetType = UNSET
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


def to_json(report: object) -> bytes:
    """The report as one JSON document, indented for people."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2)
