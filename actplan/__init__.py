"""actplan: where the memory of a training step goes, and which checkpointing makes it fit.

    import actplan

    model = actplan.load_model("qwen-27b")
    actplan.estimate(model, actplan.Run(sequence_length=8192)).estimates.autograd.saved_bytes

Every function returns the object whose JSON the command of that name prints (`actplan.report`, `to_json`). Names are
imported at first use: `import actplan` loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .basics import __version__
    from .basics.errors import ActplanError, InputError
    from .basics.units import parse_dtype
    from .library import budget, estimate, ledger, plan, sweep
    from .loading import load_ledger, load_model
    from .memory.setup import Setup
    from .report import to_json
    from .training import Frozen, Lora, Run
    from .training.mesh import Mesh
    from .training.policies import parse_policy

_HOMES = {
    "__version__": "basics",
    **dict.fromkeys(("ActplanError", "InputError"), "basics.errors"),
    "parse_dtype": "basics.units",
    **dict.fromkeys(("budget", "estimate", "ledger", "plan", "sweep"), "library"),
    **dict.fromkeys(("load_ledger", "load_model"), "loading"),
    "Setup": "memory.setup",
    "to_json": "report",
    **dict.fromkeys(("Frozen", "Lora", "Run"), "training"),
    "Mesh": "training.mesh",
    "parse_policy": "training.policies",
}
"""Public name -> the module that has it."""

__all__ = [
    "ActplanError",
    "Frozen",
    "InputError",
    "Lora",
    "Mesh",
    "Run",
    "Setup",
    "__version__",
    "budget",
    "estimate",
    "ledger",
    "load_ledger",
    "load_model",
    "parse_dtype",
    "parse_policy",
    "plan",
    "sweep",
    "to_json",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
