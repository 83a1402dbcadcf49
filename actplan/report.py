"""The one result object, and its JSON (`schema_version: 1`, integer bytes, no key ever null).

A field that a command does not compute is UNSET and left out of the JSON. Key names are frozen.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

SCHEMA_VERSION = 1


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of every part of a report."""


class ModelInfo(Part):
    """The planned model."""

    name: str
    title: str
    source: str
    num_layers: int
    pattern: str
    num_parameters: int
    layer_kinds: dict[str, int]


class RunInfo(Part):
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


class Residual(Part):
    """The residual stream only: B·T·hidden·layers·bytes."""

    saved_bytes: int


class Textbook(Part):
    """The shape count of the model taken as uniformly full attention."""

    saved_bytes: int
    bytes_per_token_per_layer: int
    ratio_to_residual: float


class OutsideLayers(Part):
    """What is saved outside the layers."""

    embedding: int
    final_norm: int
    head: int
    loss: int


class Autograd(Part):
    """What PyTorch's autograd keeps, and how high allocation goes."""

    saved_bytes: int
    layer_saved_bytes: tuple[int, ...]
    outside_layers: OutsideLayers
    ratio_to_residual: float
    end_forward_bytes: int
    peak_forward_bytes: int
    peak_backward_bytes: int


class Accounting(Part):
    """One segmentation under one accounting. Reductions are against keeping everything (0 and 1)."""

    boundary_bytes: int
    stored_bytes: int
    working_bytes: int
    peak_bytes: int
    reduction_bytes: int
    reduction_ratio: float


class Checkpointed(Part):
    """The chosen policy's row of the segmentation table."""

    policy: str
    textbook: Accounting
    autograd: Accounting


class Estimates(Part):
    """The three estimates, side by side."""

    residual: Residual
    textbook: Textbook
    autograd: Autograd
    checkpointed: Checkpointed


class Segmentation(Part):
    """One row of the segmentation table."""

    policy: str
    num_segments: int
    recompute_flops_fraction: float
    textbook: Accounting
    autograd: Accounting


class LedgerRow(Part):
    """One kind of saved tensor, `count` of them alike."""

    module: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    count: int
    reason: str


class PeakRow(Part):
    """One kind of allocation that is alive at the peak."""

    module: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    count: int


class Peak(Part):
    """Where the peak is: the phase (forward or backward), the stage, and what is alive there."""

    phase: str
    stage: str
    bytes: int
    alive: tuple[PeakRow, ...] | UnsetType = UNSET


class Note(Part):
    """Something a reader must know. `code` is a stable word."""

    code: str
    message: str


class Report(Part):
    """What a command found."""

    schema_version: int = SCHEMA_VERSION
    model: ModelInfo | UnsetType = UNSET
    run: RunInfo | UnsetType = UNSET
    estimates: Estimates | UnsetType = UNSET
    segmentations: tuple[Segmentation, ...] | UnsetType = UNSET
    peak: Peak | UnsetType = UNSET
    ledger: tuple[LedgerRow, ...] | UnsetType = UNSET
    notes: tuple[Note, ...] = ()


def to_json(report: object) -> bytes:
    """The report as one JSON document, indented for people."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2)
