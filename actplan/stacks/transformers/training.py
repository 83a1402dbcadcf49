"""Which parameters of a run are trained, and by what its linears are run."""

from __future__ import annotations

from collections.abc import Callable

from ...autograd import Tape
from ...basics.errors import InputError
from ...basics.units import FP16
from ...training import Frozen, Run
from .scope import TRAINED_COPY, ExpertWeight, Projection, plain_linear


def trains(run: Run) -> Callable[[str], bool]:
    """Whether the parameter of a path gets a gradient."""
    frozen, adapters = run.frozen, run.adapters is not None or run.quantised is not None
    if adapters:
        from .lora import is_adapter

    def trained(path: str) -> bool:
        if adapters and not (is_adapter(path) or TRAINED_COPY in path):
            return False
        return not freezes(frozen, path)

    return trained


def check_scaled(tape: Tape, run: Run) -> None:
    """Raise InputError where autocast to fp16 trains a weight in fp16: loss scaling unscales gradients in fp32 alone
    (torch/amp/grad_scaler.py, `_unscale_grads_`: "Attempting to unscale FP16 gradients")."""
    if run.autocast_dtype is not FP16:
        return
    wrong = next((path for path, p in tape.parameters.items() if p.requires_grad and p.dtype is FP16), None)
    if wrong is not None:
        raise InputError(
            f"loss scaling refuses fp16 gradients, and {wrong} is trained in fp16",
            where="--lora-save" if TRAINED_COPY in wrong else "--lora-dtype",
            allowed="--base-dtype fp32" if TRAINED_COPY in wrong else "fp32",
        )


def freezes(frozen: Frozen, path: str) -> bool:
    """Whether `frozen` names this parameter."""
    if frozen.only and not any(_names(part, path) for part in frozen.only):
        return True
    index = layer_index(path)
    if index is not None and index < frozen.first_layers:
        return True
    return any(_names(part, path) for part in frozen.parts)


def _names(part: str, path: str) -> bool:
    return f".{part}." in f".{path}."


def layer_index(path: str) -> int | None:
    """The number of the layer that a path lies in."""
    return next((int(word) for word in path.split(".") if word.isdigit()), None)


def role(run: Run, i: int) -> tuple[object, ...]:
    """What tells layer i from a layer of its kind that is trained otherwise."""
    frozen, lora = run.frozen, run.adapters
    left = () if run.quantised is None else run.quantised.skips
    named = tuple(part for part in (*frozen.parts, *frozen.only, *left) if _numbers(part, i))
    return (i < frozen.first_layers, named, lora is not None and lora.layers is not None and i in lora.layers)


def _numbers(part: str, i: int) -> bool:
    return str(i) in part.split(".")


def projection(run: Run) -> Projection:
    """Plain linears, quantised ones, adapters on either."""
    base: Projection = plain_linear
    if run.quantised is not None:
        from .quantised import quantised_linear

        base = quantised_linear(run.quantised, run.dtype)
    elif run.fake_quantised is not None:
        from .fake_quantised import fake_quantised_linear

        base = fake_quantised_linear(run.fake_quantised)
    if run.adapters is None:
        return base
    from .lora import adapted

    return adapted(run.adapters, base, quantised=run.quantised)


def expert_weight(run: Run) -> ExpertWeight | None:
    """What reads the stacked weights of experts, None where they are parameters as any other."""
    if run.quantised is None or not run.quantised.experts:
        return None
    from .quantised import quantised_experts

    return quantised_experts(run.quantised, run.dtype)
