"""The training frameworks: a folder for each, which says what the framework runs (docs/adding-a-stack.md).

A run names its stack. What reads a model's walk reaches it through `stack_of` alone.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ..basics.errors import InputError
from ..training import Run, StackName
from ..training.run import STACKS

if TYPE_CHECKING:
    from .stack import Stack

_BUILT: dict[StackName, str] = {"transformers": "transformers", "megatron": "megatron", "torchtitan": "torchtitan"}
"""Stack -> its module below this one, which calls it `STACK`."""


def stack_of(run: Run) -> Stack:
    """Return the stack that a run names.

    Raises:
        InputError: there is none of that name, or it is not built yet.
    """
    return _stack(run.stack)


@cache
def _stack(name: StackName) -> Stack:
    if name not in _BUILT:
        if name not in STACKS:
            raise InputError(f"unknown stack {str(name)[:64]!r}", where="--stack", choices=STACKS, got=str(name)[:64])
        raise InputError(f"{name} is not planned yet", where="--stack", allowed=", ".join(_BUILT))
    found: Stack = import_module(f".{_BUILT[name]}", __name__).STACK
    return found
