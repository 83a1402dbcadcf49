"""`actplan trace`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..basics.errors import ActplanError, InputError
from ..basics.files import whole_number
from ..basics.units import parse_count
from ..memory.setup import Setup
from ..training import Run
from ..training.policies import EveryK, EveryLayer, NoCheckpoint
from .grouping import grouped
from .model_options import ModelOptions
from .options import RunOptions
from .output import OutputOptions

if TYPE_CHECKING:
    from ..profile.ledger_file import Ledger
    from ..trace import TraceOptions

MAX_SHOWN = 20
"""Differences that a comparison prints; JSON has them all."""


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    budget: Setup,
    output: OutputOptions,
    *,
    python: Annotated[
        str | None,
        Option("--python", metavar="MODULE:FUNCTION", help="A function of your own: (module, inputs[, loss])."),
    ] = None,
    autocast: Annotated[
        str | None, Option("--autocast", metavar="DTYPE", help="Trace under torch.autocast of this type.")
    ] = None,
    image_tokens: Annotated[
        str | None,
        Option(
            "--image-tokens", metavar="N", help="Of each sequence, N tokens stand for images (default: text alone)."
        ),
    ] = None,
    whole: Annotated[
        bool, Option("--whole", help="Trace every layer at this very size; no fit from few layers and lengths.")
    ] = False,
    compare: Annotated[
        bool, Option("--compare", help="Analytic against traced, tensor by tensor; exit 1 where they differ.")
    ] = False,
    snapshot: Annotated[
        str | None,
        Option("--snapshot", metavar="FILE", help="Read a CUDA memory snapshot (torch.cuda.memory._dump_snapshot)."),
    ] = None,
) -> int:
    """Run a real PyTorch model on fake tensors, without weights or GPU, and record what autograd keeps.

    Fits every tensor's size to batch and length from a few layers and lengths; `-o ledger.yaml` writes what
    `estimate --ledger` reads. Needs `pip install 'actplan[trace]'`.
    """
    if sum((compare, snapshot is not None, python is not None)) > 1:
        raise InputError("--compare, --snapshot and --python each say what to do", allowed="one of them")
    images = 0 if image_tokens is None else parse_count(image_tokens, "--image-tokens")
    if images and (compare or snapshot is not None or python is not None):
        raise InputError("images belong to a configuration", where="--image-tokens", allowed="with --model alone")
    if snapshot is not None:
        from .snapshot import show as show_snapshot

        return show_snapshot(snapshot, model, run, budget, output)
    if budget != Setup():
        raise InputError("a budget stands beside a snapshot", where="trace", allowed="--snapshot; `estimate --ledger`")
    run.check_trace()
    if compare:
        return _compare(model, run, output)
    source = python or _path(model)
    settings = run.run(None)
    options = dataclasses.replace(_options(settings, run, autocast, _num_layers(model)), image_tokens=images)
    if whole or not isinstance(settings.checkpoint, NoCheckpoint):
        return _traced(source, options, output, python)
    return _fitted(source, options, settings, output, python)


@contextmanager
def _in_words(python: str | None) -> Iterator[None]:
    """What the user's function, or the framework for a configuration that it cannot build or run, raises, as InputError
    with the line of the user's code. What the model prints goes to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except ActplanError:
        raise
    except Exception as error:
        from .mistakes import explained

        said = explained(error, where="--model" if python is None else "--python", python=python is not None)
        if said is None:
            raise
        raise said from error


def _path(model: ModelOptions) -> str:
    if model.model is None:
        raise InputError("no model is named", where="--model", allowed="a config.json or the folder that holds one")
    return model.model


def _num_layers(model: ModelOptions) -> int | None:
    """`--set num_layers=N` is the one setting of a traced model."""
    chosen: int | None = None
    for text in model.settings or ():
        name, _, value = text.partition("=")
        if name.strip() not in ("num_layers", "num_hidden_layers") or not (value := value.strip()).isdecimal():
            raise InputError(f"{text[:64]!r} cannot be set on a traced model", where="--set", allowed="num_layers=N")
        chosen = whole_number(value, "--set num_layers")
    return chosen


def _options(settings: Run, run: RunOptions, autocast: str | None, num_layers: int | None) -> TraceOptions:
    from ..trace import TraceOptions

    policy = settings.checkpoint
    if not isinstance(policy, NoCheckpoint | EveryLayer | EveryK):
        raise InputError(f"{policy} cannot be traced", where="--checkpoint", allowed="none, layer or every:K")
    return TraceOptions(
        batch=settings.micro_batch_size,
        seq=settings.sequence_length,
        dtype=str(settings.dtype),
        attention=settings.attention,
        linear_attention=settings.linear_attention,
        kernels=settings.kernels,
        loss=settings.loss,
        checkpoint=str(policy),
        autocast=autocast,
        num_layers=num_layers,
        native=settings.device,
        hold_logits=settings.hold_logits,
    )


def _fitted(source: str, options: TraceOptions, settings: Run, output: OutputOptions, python: str | None) -> int:
    """Few layers and lengths; written as a ledger where a file is named, else shown at the run's size."""
    from .progress import spoken

    with _in_words(python), spoken() as say:
        from ..trace import fit_ledger

        ledger = fit_ledger(source, options, say=say)
    if output.output is not None and output.output.endswith((".yaml", ".yml")):
        from ..profile.ledger_file import write_ledger

        write_ledger(ledger, output.output)
        _say_written(ledger, output.output)
        return 0
    from ..profile.ledger_file import LedgerModel
    from .estimate import show

    return show(LedgerModel(ledger, source), settings, Setup(), output)


def _say_written(ledger: Ledger, path: str) -> None:
    """The last line: what is in the file, and what reads it."""
    spans = [span for span in ledger.pattern if ledger.stages[span.stage].role == "layer"]
    layers, kinds = sum(span.count for span in spans), len({span.stage for span in spans})
    what = f"{ledger.num_parameters:,} parameters, {layers} layers of {kinds} kind{'s' * (kinds != 1)}"
    print(f"actplan: written {path}: {what}; read by `actplan estimate --ledger {path}`", file=sys.stderr)


def _traced(source: str, options: TraceOptions, output: OutputOptions, python: str | None) -> int:
    """The whole model, as it is, at this size."""
    from ..trace import views as view
    from .progress import spoken

    with _in_words(python), spoken() as say:
        from ..trace import trace_model

        say(f"tracing {source} at batch {options.batch}, length {options.seq}")
        traced = trace_model(source, options)
    report = view.report(traced, options)
    output.emit(report, lambda: view.blocks(report), lambda: view.sheet(report))
    return 0


def _language_model(settings: Run, run: RunOptions, num_layers: int) -> TraceOptions:
    """What the analytic side counts of a composite."""
    return dataclasses.replace(_options(settings, run, None, num_layers), language_model=True)


def _compare(model: ModelOptions, run: RunOptions, output: OutputOptions) -> int:
    from ..trace import views as view
    from .comparison import comparison

    planned = model.load()
    found = comparison(_path(model), planned, run.run(planned), lambda s, n: _language_model(s, run, n))
    output.emit(found, lambda: view.comparison(found, MAX_SHOWN), lambda: view.comparison_sheet(found))
    return 1 if found["differences"] or found["peak_differences"] else 0
