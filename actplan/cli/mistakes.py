"""What a traced model raised, as an error in words with the line of code that it is about."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from types import TracebackType

from ..basics.errors import InputError

FRAMEWORKS = ("torch", "transformers", "huggingface_hub")
OURS = __name__.partition(".")[0]
MAX_SHOWN = 300
_VALUES = (
    "it looks at a tensor's value (.item(), .numpy(), an if or a loop over it), and a trace has shapes, no numbers"
)
_DEVICE = "it asks for a GPU, and a trace runs on the CPU without one"
_KINDS: tuple[tuple[str, str, str | None], ...] = (
    (
        r"DataDependent|_local_scalar_dense|DynamicOutputShape|nonzero|\.numpy\(\) is not supported|"
        r"Cannot call .*item|fake tensor.*(?:numpy|tolist)",
        _VALUES,
        "torch.where in place of a condition, or numbers that are made outside of forward",
    ),
    (r"[Cc][Uu][Dd][Aa]|NVIDIA|HIP", _DEVICE, "tensors made on the device of the input (device=x.device)"),
    (
        r"reduction dim|broadcast|size of tensor|shapes? |must match|mat1 and mat2|split_with_sizes|invalid for input|"
        r"Expected size|dimension",
        "tensors do not fit together",
        "a length taken from the input: a trace runs several batches and lengths (a function is given batch and seq)",
    ),
    (r"Python integer|out of memory|bad allocation", "it makes a tensor of real numbers that is too large", None),
)
"""What an exception's name and text say, the first that applies: in words, and what would run."""


def explained(error: Exception, *, where: str, python: bool) -> InputError | None:
    """The error for what a model's own code or its framework raised; None where our own code did."""
    name, text = type(error).__name__, " ".join(str(error).split())[:MAX_SHOWN]
    line = _line_of_user(error.__traceback__)
    if not python and not _is_framework(error.__traceback__):
        return None
    if python and line is None and _module(error.__traceback__) == OURS:
        return None
    words, allowed = next(
        ((said, allowed) for pattern, said, allowed in _KINDS if re.search(pattern, f"{name}: {text}")), (None, None)
    )
    raised = f"{name}: {text}" if text else name
    problem = raised if words is None else f"{words} ({raised})"
    if not python:
        problem = f"Transformers cannot build or run it: {problem}"
    return InputError(f"{line}: {problem}" if line else problem, where=where, allowed=allowed)


def _line_of_user(trace: TracebackType | None) -> str | None:
    """The innermost line that is neither ours nor a library's, with its code."""
    found = None
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if not _is_library(path):
            found = f"{path.name}, line {trace.tb_lineno}", linecache.getline(str(path), trace.tb_lineno).strip()
        trace = trace.tb_next
    return None if found is None else f"{found[0]}, `{found[1][:80]}`" if found[1] else found[0]


def _is_library(path: Path) -> bool:
    own = Path(__file__).parent.parent
    names = set(path.parts)
    return (
        own in path.parents
        or bool(names & {"site-packages", "dist-packages"})
        or f"{path}".startswith("<")
        or (path.parent.name in ("importlib", "concurrent") or "lib/python3" in f"{path.as_posix()}")
    )


def _is_framework(trace: TracebackType | None) -> bool:
    return _module(trace) in FRAMEWORKS


def _module(trace: TracebackType | None) -> str:
    """The package that raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
