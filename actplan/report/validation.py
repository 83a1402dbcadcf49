"""What `actplan validate` found: predicted against measured, one entry a quantity, and what they come to."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from ..basics import __version__
from . import SCHEMA_VERSION
from .part import Part


class Validated(Part, frozen=True):
    """One quantity of one record.

    error: predicted over measured, less 1. reason: why there is no prediction. command: prints the prediction.
    group: the source in short, by which errors are summed up.
    """

    id: str
    source: str
    group: str
    confidence: float
    expressed: bool
    quantity: str
    measured_bytes: int
    tags: tuple[str, ...]
    reason: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    predicted_bytes: int | UnsetType = UNSET
    error: float | UnsetType = UNSET


class Errors(Part, frozen=True):
    """What the errors of one quantity of one source come to.

    Attributes:
        quantity: without the layer, the phase or the stage that it is of.
        records: with this quantity; `expressed` of them have a prediction.
        median, p90, worst: of the absolute errors; `worst_id` names the record.
        bias: the mean of the errors, with their signs.
    """

    group: str
    quantity: str
    records: int
    expressed: int
    median: float | UnsetType = UNSET
    p90: float | UnsetType = UNSET
    worst: float | UnsetType = UNSET
    worst_id: str | UnsetType = UNSET
    bias: float | UnsetType = UNSET


class Refused(Part, frozen=True):
    """How many records of a source cannot be expressed for one reason."""

    group: str
    reason: str
    records: int


class Summary(Part, frozen=True):
    """All records: how many, how many have a prediction, and the errors by source and quantity.

    `trusted` is one line over published records with a confidence of at least `trusted_from`; what is compiled is apart
    from it, and so is what the allocator reserved where allocation was measured too.
    """

    records: int
    expressed: int
    trusted_from: float
    trusted: Errors
    sources: tuple[Errors, ...]
    refused: tuple[Refused, ...]


class Validation(Part, frozen=True, kw_only=True):
    """What `actplan validate` prints as JSON."""

    schema_version: int = SCHEMA_VERSION
    actplan_version: str = __version__
    records: tuple[Validated, ...] = ()
    summary: Summary
