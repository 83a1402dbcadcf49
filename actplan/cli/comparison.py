"""What `trace --compare` compares: a few layers of a model, run on shapes and run by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..autograd import Tape
from ..model import Model
from ..profile import segmented
from ..stacks import stack_of
from ..stacks.walking import Walk
from ..training import Run

if TYPE_CHECKING:
    from ..trace import TraceOptions, TraceResult

PEAK_TOLERANCE = 0.001
Options = Callable[[Run, int], "TraceOptions"]


def comparison(source: str, model: Model, run: Run, options: Options) -> dict[str, Any]:
    """Where the two differ: tensors, to the byte, and peaks, by more than 0.1 %.

    A model is cut to as many of its first layers as it takes to see every kind once.
    """
    from ..trace import compare, trace_model

    count = shortest(model)
    sliced = replace(model, layers=model.layers[:count])
    ours = _run(sliced, run)
    theirs = trace_model(source, options(run, count))
    differences = compare(_rows(ours), _traced_rows(theirs))
    return {
        "model": model.name,
        "num_layers": count,
        "saved_bytes": {"analytic": ours.saved_bytes, "traced": theirs.saved_bytes},
        "layers": _layers(ours, theirs, sliced),
        "differences": [
            {
                "stage": d.stage,
                "module": d.module,
                "shape": list(d.shape),
                "dtype": d.dtype,
                "analytic_bytes": d.left_bytes,
                "traced_bytes": d.right_bytes,
                "analytic_count": d.left_count,
                "traced_count": d.right_count,
            }
            for d in differences
        ],
        "peaks": {name: [ours_, theirs_] for name, ours_, theirs_ in _peaks(ours, theirs)},
        "peak_differences": [
            name for name, ours_, theirs_ in _peaks(ours, theirs) if abs(ours_ - theirs_) > PEAK_TOLERANCE * theirs_
        ],
    }


def shortest(model: Model) -> int:
    """Layers from the first one on that show every kind."""
    seen = set()
    for i, layer in enumerate(model.layers):
        seen.add(layer)
        if len(seen) == len(set(model.layers)):
            return i + 1
    return model.num_layers


def _run(model: Model, run: Run) -> Walk:
    return stack_of(run).walk(model, run, segmented(model, run, run.checkpoint).segments, tape=Tape())


Row = tuple[str, str, tuple[int, ...], str, int, int]


def _rows(ours: Walk) -> list[Row]:
    return [("", row.module or "<loss>", row.shape, row.dtype, row.nbytes, row.count) for row in ours.tape.ledger]


def _traced_rows(theirs: TraceResult) -> list[Row]:
    return [("", _of_text(module) or "<loss>", *rest) for _, module, *rest in theirs.rows()]  # type: ignore[misc]


def _of_text(module: str) -> str:
    """A module's path in the text model alone, where a wrapper without a class for it was traced whole."""
    return module.replace("model.language_model.", "model.", 1)


def _layers(ours: Walk, theirs: TraceResult, model: Model) -> list[dict[str, Any]]:
    sizes = [0] * model.num_layers
    for row in ours.tape.ledger:
        if 0 < row.stage <= model.num_layers:
            sizes[row.stage - 1] += row.nbytes * row.count
    return [
        {"layer": i, "kind": layer.kind, "analytic_bytes": size, "traced_bytes": traced}
        for i, (layer, size, traced) in enumerate(zip(model.layers, sizes, theirs.layer_saved_bytes, strict=True))
    ]


def _peaks(ours: Walk, theirs: TraceResult) -> Iterator[tuple[str, int, int]]:
    for name in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        yield name, getattr(ours, name), getattr(theirs, name)
