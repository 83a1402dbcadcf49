"""Estimates of activation memory: the model and run that they are of, segmentations, saved tensors and the peak."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .part import Part


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
    """The run's settings, as they were resolved.

    Attributes:
        mesh: the degrees of parallelism, 1 where there is none; `sp` is 1 with sequence parallelism.
        recipe: how weights are trained; without a budget, what a budget would assume.
    """

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
    mesh: dict[str, int] | UnsetType = UNSET
    recipe: str | UnsetType = UNSET
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
    compile: str | UnsetType = UNSET
    expert_imbalance: float | UnsetType = UNSET
    context_attention: str | UnsetType = UNSET
    stack_options: dict[str, object] | UnsetType = UNSET


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
    """The three estimates, side by side. weights_bytes: of this rank, as the run holds them, which no estimate has."""

    residual: Residual
    autograd: Autograd
    checkpointed: Checkpointed
    textbook: Textbook | UnsetType = UNSET
    weights_bytes: int | UnsetType = UNSET


class Segmentation(Part, frozen=True):
    """One row of the segmentation table. fused_loss_peak_bytes: autograd's peak if the loss were a fused one."""

    policy: str
    num_segments: int
    recompute_flops_fraction: float
    autograd: Accounting
    textbook: Accounting | UnsetType = UNSET
    fused_loss_peak_bytes: int | UnsetType = UNSET


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
