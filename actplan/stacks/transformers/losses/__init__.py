"""The losses as their frameworks run them: which function, and under which runs it cannot run."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from ....autograd import Tensor
from ....basics.errors import InputError
from ....model import Model
from ....training import LOSSES, Run
from ..scope import Scope

Ending = tuple[Tensor, list[Tensor]]
"""The loss, and the logits that the caller holds (none where it does not)."""


class LossFunction(Protocol):
    """What runs a loss.

    Args:
        states: the hidden states [B, T, hidden], alone in a list: a function takes them out where its framework lets
            go of them before the loss is computed.
        ids: token ids [B, T], which are the labels too.
        own: the module whose output projection it uses, None for the model's own.
    """

    def __call__(
        self, m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None, /
    ) -> Ending: ...


def function(run: Run) -> LossFunction:
    """What runs the loss of `run`; a module of its own is imported with its first use. Where the vocabulary is divided,
    the naive one is `run.divided_loss`."""
    divided = run.loss == "naive" and run.mesh.tp > 1
    kind = LOSSES[run.divided_loss] if divided else run.loss_kind
    module, _, name = kind.runs.partition(":")
    return cast(LossFunction, getattr(import_module(f"actplan.stacks.transformers.{module}"), name))


def check(model: Model, run: Run) -> None:
    """Refuse a loss under a mesh, a model or a length that its framework has no way to run.

    Raises: InputError.
    """
    kind = run.loss_kind
    if run.mesh.tp > 1 and not kind.divided:
        able = [name for name, other in LOSSES.items() if other.divided]
        wrong = f"{kind.words} runs on a whole vocabulary, which tensor parallelism divides"
        raise InputError(wrong, where="--loss", allowed=f"--tp 1, or {', '.join(able)}")
    if kind.needs_tp and run.mesh.tp == 1:
        wrong = f"{kind.words}: tensor-parallel ranks divide the vocabulary, and there is one"
        raise InputError(wrong, where="--loss", allowed="--tp 2 or more, or --loss naive")
    if kind.alone and (run.mtp or model.exits):
        wrong = f"{kind.words} is run once, on the model's own hidden states"
        raise InputError(wrong, where="--loss", allowed="no multi-token prediction and no early exits with it")
    if kind.gradients_in_forward and run.local_length % run.loss_chunks:
        raise InputError(
            f"{kind.words} cuts {run.local_length:,} tokens of a sequence into {run.loss_chunks} equal chunks",
            where="--loss-chunks",
            allowed="a number that divides the tokens of a sequence on one rank",
        )


__all__ = ["Ending", "LossFunction", "check", "function"]
