"""What can run a plan, one class a framework: which segments it can be set to, and under which words.

| `--only` | plans |
|---|---|
| any | any consecutive segments of checkpointable stages, menus |
| torch | the same over layers: embedding, norms and head stay stored |
| hf | one flag a layer, as Transformers has it; `every_n_layers` is one of these |
| torchtitan | `full`; selective every k-th layer (before 0.3); selective per op, one setting for all layers |
| megatron | `full` + `uniform`, groups of k; `full` + `block`, the first N; `selective`, one for all layers |

A new framework is a class in a file of its own and one line of the table below.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...basics.errors import InputError
from .framework import Framework
from .megatron import Megatron
from .pytorch import Anything, PyTorch
from .torchtitan import Torchtitan
from .transformers import Transformers

_ALL = (Anything(), PyTorch(), Transformers(), Torchtitan(), Megatron())
FRAMEWORKS: Mapping[str, Framework] = MappingProxyType({one.name: one for one in _ALL})
"""Name -> framework, in the order in which they are named to users."""


def framework(name: str, where: str = "--only") -> Framework:
    """Return the framework of a name.

    Raises:
        InputError: there is none of that name; `where` is the option that gave it.
    """
    if name not in FRAMEWORKS:
        raise InputError(f"unknown framework {name!r}", where=where, choices=FRAMEWORKS, got=name)
    return FRAMEWORKS[name]


def check_per_op(about: Framework) -> None:
    """Raise InputError where a framework cannot keep single outputs of a layer."""
    if not about.per_op:
        allowed = f"with --only {', '.join(name for name, one in FRAMEWORKS.items() if one.per_op)}"
        raise InputError(f"{about.name} cannot keep single outputs", where="--per-op", allowed=allowed)


__all__ = ["FRAMEWORKS", "Framework", "check_per_op", "framework"]
