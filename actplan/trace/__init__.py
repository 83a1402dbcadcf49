"""The truth beside the estimate: run a real PyTorch model on fake tensors and record what it keeps.

Needs the extra `trace` (torch, transformers). Importing this package does not load them; the functions do,
and say in one line what to install when they are missing. `snapshot`, `options`, `result` and `compare`
never need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..basics.errors import MissingExtraError
from .compare import Difference, compare
from .options import TraceOptions
from .result import SavedTensor, StageRecord, TraceResult
from .snapshot import SnapshotPeaks, read_snapshot

if TYPE_CHECKING:
    from ..profile.ledger_file import Ledger

__all__ = [
    "Difference",
    "SavedTensor",
    "SnapshotPeaks",
    "StageRecord",
    "TraceOptions",
    "TraceResult",
    "compare",
    "fit_ledger",
    "read_snapshot",
    "require_torch",
    "trace_model",
]


def require_torch(*, transformers: bool = True) -> None:
    """Raise `MissingExtraError`, naming what to install, unless the extra `trace` is there."""
    wanted = ("torch", "transformers") if transformers else ("torch",)
    missing = [name for name in wanted if not _installed(name)]
    if missing:
        raise MissingExtraError(
            f"tracing needs {' and '.join(missing)}, not installed here: pip install 'actplan[trace]'"
        )


def trace_model(source: Any, options: TraceOptions | None = None) -> TraceResult:
    """Run one training step of `source` on fake tensors and record it; see `run.trace_model`."""
    require_torch(transformers=not _is_python(source))
    from .run import trace_model as run

    return run(source, options or TraceOptions())


def fit_ledger(source: Any, options: TraceOptions | None = None, **kwargs: Any) -> Ledger:
    """Trace `source` at a few lengths and batches and fit a ledger; see `fit.fit_ledger`."""
    require_torch(transformers=not _is_python(source))
    from .fit import fit_ledger as fit

    return fit(source, options or TraceOptions(), **kwargs)


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ValueError:  # a module set aside in sys.modules
        return False


def _is_python(source: Any) -> bool:
    return callable(source) or (isinstance(source, str) and ":" in source and not source.endswith(".json"))
