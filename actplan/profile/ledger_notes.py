"""Where a ledger's numbers are from, how well they were checked, and what its ending, images and left-out parts mean
for them: notes, and no verdict without a loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ..basics.errors import InputError
from ..basics.units import format_gib, parse_dtype
from ..report import Note
from .ledger_file import Ledger, Parameter


def check_verdict(ledger: Ledger) -> None:
    """Raise InputError where a ledger cannot say whether training fits: it ends without a loss, and nobody asked for
    that. A verdict on it would leave out the head, its gradients and states, the logits and their gradients."""
    end = ledger.end
    if end.loss or end.asked:
        return
    what = "neither head nor loss" if not end.head else "no loss"
    why = f" ({end.reason})" if end.reason else ""
    raise InputError(
        f"no verdict on a traced step with {what}{why}",
        where="--ledger",
        allowed="a budget without --limit and --gpu",
        hint="trace the class that is trained, or a function that returns its loss (`actplan trace --python`); a "
        "pipeline stage whose loss another one makes is traced with --loss none",
    )


def provenance(ledger: Ledger, tokens: int) -> tuple[Note, ...]:
    """Return the notes on a ledger. tokens: of a micro-batch."""
    return (*_checked(ledger), *_ending_notes(ledger, tokens))


def _checked(ledger: Ledger) -> Iterator[Note]:
    versions = ", ".join(f"{name} {version}" for name, version in ledger.versions.items())
    yield Note(
        code="traced",
        message=f"every tensor is from a trace of the real model ({versions}), fitted to batch and length; kernels, "
        f"types and loss are the trace's",
    )
    for check in ledger.checked:
        yield Note(
            code="trace-checked",
            message=f"at {check.batch} × {check.seq:,} tokens, which the fit had not seen, saved bytes were off by "
            f"{check.saved_error_bytes:,} and peaks by {check.peak_error:.2%}",
        )
    for note in ledger.notes:
        yield Note(code="trace-note", message=note)


def _ending_notes(ledger: Ledger, tokens: int) -> Iterator[Note]:
    """What is not in the numbers. tokens: of a micro-batch."""
    yield from _ending(ledger, tokens)
    for part in ledger.left_out:
        yield Note(
            code="left-out",
            message=f"{part.name} ({part.num_parameters:,} parameters) is not in the class that was traced, and not in "
            f"these numbers",
        )
    idle = sum(entry.count * _idle(entry.parameters) for entry in ledger.weights)
    if idle:
        yield Note(
            code="idle-parameters",
            message=f"{idle:,} parameters take no part in the traced step: their weights count, and gradients and "
            f"optimizer states only in recipes that make them for every parameter (ZeRO, Megatron)",
        )
    if ledger.images is not None:
        one = ledger.images
        yield Note(
            code="image-tokens",
            message=f"{one.tokens:,} tokens of each sequence stand for {one.count} "
            f"image{'s' if one.count > 1 else ''}; the pixel values that the caller holds "
            f"({one.input_bytes:,} bytes a sequence) are not in it",
        )


def _ending(ledger: Ledger, tokens: int) -> Iterator[Note]:
    end = ledger.end
    if end.loss:
        return
    why = "as asked (--loss none)" if end.asked else end.reason or "it has none"
    size = ""
    if not end.head and end.hidden_size and end.vocabulary:
        dtype = parse_dtype(ledger.run.get("dtype", "bf16"), "--ledger")
        weights, logits = end.hidden_size * end.vocabulary, tokens * end.vocabulary * dtype.itemsize
        size = (
            f"; a head of {end.hidden_size:,} × {end.vocabulary:,} would have {weights:,} parameters and logits of "
            f"{format_gib(logits)} GiB"
        )
    missing = "the loss is" if end.head else "head and loss are"
    yield Note(code="no-loss", message=f"{missing} not in these numbers, {why}{size}")


def _idle(parameters: Sequence[Parameter]) -> int:
    return sum(prod(parameter.shape) for parameter in parameters if parameter.idle)
