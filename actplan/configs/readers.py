"""The reader of each framework, and two readings of one job as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .files import Source
from .reading import Reading, merged

Reader = Callable[[Mapping[str, Any], Source], Reading]


def joined(earlier: Reading, later: Reading) -> Reading:
    """Return two readings of one job; a launcher's file completes a trainer's, whichever comes first."""
    from .hugging_face import attached
    from .precision import settle

    launchers = ("deepspeed", "accelerate")
    if later.tool in launchers and earlier.tool not in launchers:
        return _renamed(attached(earlier, later), earlier, later)
    if earlier.tool in launchers and later.tool not in launchers:
        return _renamed(attached(later, earlier), earlier, later)
    made = merged(earlier, later)
    settle(made) if earlier.tool in launchers else None
    return made


def _renamed(made: Reading, earlier: Reading, later: Reading) -> Reading:
    made.tool = f"{earlier.tool} + {later.tool}"
    made.files = (*earlier.files, *later.files)
    return made


def reader(tool: str) -> Reader:
    """Return the reader of a framework's mapping."""
    from importlib import import_module

    modules = {"ms-swift": "swift", "megatron-bridge": "bridge"}
    module = import_module(f"{__package__}.{modules.get(tool, tool)}")
    if tool == "deepspeed":
        return lambda values, source: module.read(values, source, source.where)
    return module.read  # type: ignore[no-any-return]
