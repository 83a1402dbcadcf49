"""What a file was read as: values, where each came from, and what became of every field in the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

Outcome = Literal["read", "ignored", "unplanned", "unknown"]
"""read: it decides something. ignored: it changes no memory, or the framework itself never reads it. unplanned: it
changes memory and actplan cannot plan it. unknown: no key that is known of this framework."""


class Became(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one field of a file: `says` is what it was read as, or why it was not."""

    field: str
    value: str
    outcome: Outcome
    says: str
    file: str = ""


class Default(msgspec.Struct, frozen=True):
    """A value that stands in no file: the framework's own, with the file of the framework that decides it."""

    field: str
    value: Any
    source: str


class Reading(msgspec.Struct, kw_only=True):
    """A configuration as it was read.

    Attributes:
        tool: whose file it is.
        read: values by the names of `vocabulary.FIELDS`; what is not decided is not there.
        whole_defaults, partial_defaults: values that no key decides, and parts of values (`defaults_used`).
        explicit: the names of `read` for which some key stood in the file.
        facts: what a second file needs to settle what two files decide together (types of weights, the launcher).
        fields: what became of every key.
        unreadable: settings that matter and that the vocabulary has no word for.
        assumed: what is taken for granted about files that are not there.
        contradictions: what two fields or files say of one thing, and which of them counts.
        model: the model's hub id or path. document: a specification of the model, where the file holds its sizes.
        more: options of actplan that follow from the file beyond the vocabulary, by their names.
        gpus: ranks of the job, where the file says.
    """

    tool: str
    files: tuple[str, ...] = ()
    read: dict[str, Any] = msgspec.field(default_factory=dict)
    explicit: set[str] = msgspec.field(default_factory=set)
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    fields: list[Became] = msgspec.field(default_factory=list)
    whole_defaults: dict[str, Default] = msgspec.field(default_factory=dict)
    partial_defaults: list[Default] = msgspec.field(default_factory=list)
    unreadable: list[str] = msgspec.field(default_factory=list)
    contradictions: list[str] = msgspec.field(default_factory=list)
    assumed: list[str] = msgspec.field(default_factory=list)
    model: str | None = None
    document: dict[str, Any] | None = None
    more: dict[str, str] = msgspec.field(default_factory=dict)
    gpus: int | None = None

    def set(self, field: str, value: object, default: str | None = None) -> None:
        """Decide a field; `default` is the source of a value for which nothing stands in the file."""
        self.read[field] = value
        if default is None:
            self.explicit.add(field)
            self.whole_defaults.pop(field, None)
        else:
            self.explicit.discard(field)
            self.whole_defaults[field] = Default(field, value, default)

    @property
    def defaults_used(self) -> list[Default]:
        """Every value, or part of one, that is the framework's own."""
        return [*self.whole_defaults.values(), *self.partial_defaults]

    def note_default(self, field: str, value: object, source: str) -> None:
        """Say that a value, or a part of it, is the framework's own."""
        made = Default(field, value, source)
        if made not in self.partial_defaults:
            self.partial_defaults.append(made)

    def plain(self, values: Mapping[str, object]) -> None:
        """Decide fields that follow from what the framework is, and that no key of it would change."""
        for field, value in values.items():
            self.read.setdefault(field, value)

    def with_outcome(self, *outcomes: Outcome) -> list[Became]:
        """Return the fields that became one of these."""
        return [one for one in self.fields if one.outcome in outcomes]


def merged(earlier: Reading, later: Reading) -> Reading:
    """Return two files of one job as one reading: the later wins where it says something, and where neither does.

    A value that is only the later framework's default never replaces what the earlier file says.
    """
    made = Reading(
        tool=earlier.tool if earlier.tool == later.tool else f"{earlier.tool} + {later.tool}",
        files=tuple(dict.fromkeys((*earlier.files, *later.files))),
        facts={**earlier.facts, **later.facts},
        fields=[*earlier.fields, *later.fields],
        unreadable=[*earlier.unreadable, *later.unreadable],
        contradictions=[*earlier.contradictions, *later.contradictions],
        assumed=[*earlier.assumed, *later.assumed],
        model=later.model or earlier.model,
        document=later.document or earlier.document,
        more={**earlier.more, **later.more},
        gpus=later.gpus or earlier.gpus,
    )
    for field in _ordered((*earlier.read, *later.read)):
        takes_later = field in later.read and (field in later.explicit or field not in earlier.explicit)
        source = later if takes_later or field not in earlier.read else earlier
        made.read[field] = source.read[field]
        if field in source.explicit:
            made.explicit.add(field)
        if field in source.whole_defaults:
            made.whole_defaults[field] = source.whole_defaults[field]
        made.partial_defaults += [one for one in source.partial_defaults if one.field.partition(".")[0] == field]
        both = field in earlier.explicit and field in later.explicit
        if both and earlier.read[field] != later.read[field]:
            made.contradictions.append(
                f"{field}: {earlier.read[field]} in {earlier.files[-1]}, {later.read[field]} in {later.files[-1]}, "
                "which comes later and wins"
            )
    return made


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def count_microbatches(reading: Reading, gpus: int | None = None) -> None:
    """Decide the micro-batches of a step by the batch and the ranks, where they divide and nothing else says so."""
    read = reading.read
    whole, micro, ranks = read.get("global_batch_size"), read.get("micro_batch_size"), gpus or reading.gpus
    if "microbatches" in read or not (whole and micro and ranks):
        return
    inner = read.get("tp", 1) * read.get("cp", 1) * read.get("pp", 1)
    experts = read.get("ep", 1) * read.get("etp", read.get("tp", 1) if read.get("ep", 1) > 1 else 1)
    stage = ranks // read.get("pp", 1)
    if ranks % inner or stage % experts or whole % (micro * (ranks // inner)):
        return
    read["microbatches"] = whole // (micro * (ranks // inner))
    reading.explicit.add("microbatches")
