"""Activation checkpointing of whole layers: non-reentrant, one segment of K consecutive layers at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .branches import Branches
from .patches import replaced
from .stages import stacks


@dataclass(slots=True)
class Call:
    """How a layer was called in the rehearsal."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@contextmanager
def checkpointed(model: Any, length: int, rehearse: Callable[[], Any]) -> Iterator[set[int]]:
    """Each run of `length` layers of a stack is one checkpointed segment inside the block (0: none).

    Yields the storages of tensors that only the rehearsal made: for segments longer than one layer the later
    layers' own arguments (masks, tables of another kind of attention) are known only after a run.
    """
    with ExitStack() as stack:
        if length < 1:
            yield set()
            return
        modules = dict(model.named_modules())
        groups = [
            [modules[p] for p in paths[i : i + length]]
            for paths in stacks(model).values()
            for i in range(0, len(paths), length)
        ]
        calls = _rehearse(modules, groups, rehearse) if length > 1 else {}
        for layers in groups:
            _wrap(stack, layers, calls)
        yield {t.untyped_storage()._cdata for call in calls.values() for t in _tensors(call.kwargs)}


def _wrap(stack: ExitStack, layers: list[Any], calls: dict[int, Call]) -> None:
    first, rest = layers[0], layers[1:]
    forwards = [layer.forward for layer in layers]

    def run(*args: Any, **kwargs: Any) -> Any:
        parts: list[Callable[..., Any]] = [partial(forwards[0], **kwargs)]
        parts += [
            _behind(
                forward,
                *calls[id(layer)].args[1:],
                **_own_arguments(calls[id(layer)], calls[id(first)], kwargs),
            )
            for forward, layer in zip(forwards[1:], rest, strict=True)
        ]
        return checkpoint(partial(_chain, parts), *args, use_reentrant=False, preserve_rng_state=False)

    stack.enter_context(replaced(first, "forward", run))
    for layer in rest:
        stack.enter_context(replaced(layer, "forward", _pass_through))


def _behind(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """A later layer as a function of the hidden states that the one before it hands on."""
    return lambda hidden: forward(hidden, *args, **kwargs)


def _chain(parts: list[Callable[..., Any]], hidden: Any, *args: Any) -> Any:
    out = parts[0](hidden, *args)
    for part in parts[1:]:
        out = part(out[0] if isinstance(out, tuple) else out)
    return out


def _pass_through(hidden: Any, *args: Any, **kwargs: Any) -> Any:
    return hidden


def _own_arguments(call: Call, first: Call, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The layer's keyword arguments: this run's where the segment's first layer was given the same object."""
    same = {id(value): key for key, value in first.kwargs.items()}
    return {key: kwargs[same[id(v)]] if id(v) in same else v for key, v in call.kwargs.items()}


def _rehearse(modules: dict[str, Any], groups: list[list[Any]], run: Callable[[], Any]) -> dict[int, Call]:
    calls: dict[int, Call] = {}

    def note(layer: Any, args: Any, kwargs: Any) -> None:
        calls[id(layer)] = Call(args, kwargs)

    hooks = [x.register_forward_pre_hook(note, with_kwargs=True) for group in groups for x in group]
    with torch.no_grad(), Branches():
        run()
    for hook in hooks:
        hook.remove()
    return calls


def _tensors(kwargs: dict[str, Any]) -> list[Any]:
    return [t for t in torch.utils._pytree.tree_leaves(kwargs) if isinstance(t, torch.Tensor)]
