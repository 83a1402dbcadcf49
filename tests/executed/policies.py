"""Checkpoint policies in the command's words, and their execution by torch.utils.checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from executed.kernels import flash_op
from executed.meters import storage_key
from executed.models import decoder_layers

ATEN = torch.ops.aten
PRODUCTS = {ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default, ATEN.baddbmm.default}
ATTENTION = {
    ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    ATEN._scaled_dot_product_flash_attention.default,
    ATEN._scaled_dot_product_efficient_attention.default,
    ATEN._scaled_dot_product_cudnn_attention.default,
}


class Policy(NamedTuple):
    """Segments of layers, first and last included, that are checkpointed each on its own; by the first layer of a
    segment the words whose outputs are kept; and modules of every layer that are checkpointed, in place of layers."""

    segments: list[tuple[int, int]]
    keeps: dict[int, set[str]]
    modules: tuple[str, ...] = ()


def parse(text: str, layers: int, block: int = 1) -> Policy:
    """Read a policy as docs/checkpointing.md describes its language; `block` is the length of the repeating pattern."""
    word, _, rest = text.partition(":")
    if word == "segments":
        return _segments(rest)
    if word == "modules":
        return Policy([], {}, tuple(rest.split(",")))
    if word == "selective":
        return Policy(_equal(layers, 1), {index: set(rest.split(",")) for index in range(layers)})
    single: dict[str, Callable[[], list[tuple[int, int]]]] = {
        "none": list,
        "layer": lambda: _equal(layers, 1),
        "block": lambda: _equal(layers, block),
        "sqrt": lambda: _equal(layers, math.ceil(math.sqrt(layers))),
        "every": lambda: _equal(layers, int(rest)),
        "one-in": lambda: [(index, index) for index in range(0, layers, int(rest))],
        "first": lambda: [(index, index) for index in range(min(int(rest), layers))],
    }
    return Policy(single[word](), {})


def _equal(layers: int, length: int) -> list[tuple[int, int]]:
    return [(start, min(start + length, layers) - 1) for start in range(0, layers, length)]


def _segments(text: str) -> Policy:
    """`0-3,4-7`, single layers as ranges `0..7:2`, and behind slashes what single layers keep, `mlp+attention@1,3`."""
    plain, *selective = text.split("/")
    segments, keeps = [], {}
    for part in filter(None, plain.split(",")):
        if ".." in part:
            segments += [(index, index) for index in _span(part)]
        else:
            first, _, last = part.partition("-")
            segments.append((int(first), int(last or first)))
    for part in selective:
        words, _, where = part.partition("@")
        for index in (index for span in where.split(",") for index in _span(span)):
            segments.append((index, index))
            keeps[index] = set(words.split("+"))
    return Policy(sorted(segments), keeps)


def _span(text: str) -> range:
    ends, _, step = text.partition(":")
    first, _, last = ends.partition("..")
    return range(int(first), int(last or first) + 1, int(step or 1))


class Execution:
    """A policy laid on a model's decoder layers, non-reentrant, until `remove`.

    The layers of a segment hand their arguments on until the last of them is called, which runs the whole segment
    under one checkpoint, each layer with the arguments that the model gave it.
    """

    def __init__(self, model: Any, policy: Policy) -> None:
        self.policy = policy
        self._path: list[str] = []
        self._caches: list[Any] = []
        self._pending: list[list[Any]] = []
        self._hooks: list[Any] = []
        self._wrapped: list[Any] = []
        if policy.keeps:
            self._watch_modules(model)
        layers = decoder_layers(model)
        for first, last in policy.segments:
            self._wrap(layers[first : last + 1], policy.keeps.get(first))
        for part in (layer.get_submodule(name) for layer in layers for name in policy.modules):
            part.forward = partial(_run_part, part.forward)
            self._wrapped.append(part)

    def kept(self) -> dict[int, int]:
        """Bytes by storage of what selective checkpointing has cached: no saved-tensor hook sees it."""
        held: dict[int, int] = {}
        for entry in tree_leaves([list(per_op.values()) for cache in self._caches for per_op in cache.values()]):
            tensor = getattr(entry, "val", None)
            if isinstance(tensor, torch.Tensor):
                held[storage_key(tensor)] = tensor.untyped_storage().nbytes()
        return held

    def forget(self) -> None:
        """Let go of what only this class holds on to after a forward."""
        self._caches.clear()
        for pending in self._pending:
            pending.clear()

    def remove(self) -> None:
        for layer in self._wrapped:
            del layer.__dict__["forward"]
        for hook in self._hooks:
            hook.remove()

    def _watch_modules(self, model: Any) -> None:
        def enter(module: Any, _inputs: Any) -> None:
            self._path.append(names[module].rpartition(".")[2])

        def leave(_module: Any, _inputs: Any, _out: Any) -> None:
            self._path.pop()

        names = {module: name for name, module in model.named_modules()}
        for module in names:
            self._hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def _wrap(self, layers: list[Any], words: set[str] | None) -> None:
        forwards = [layer.forward for layer in layers]
        pending: list[Any] = []
        self._pending.append(pending)
        for layer in layers[:-1]:
            layer.forward = partial(_hand_on, pending)
        layers[-1].forward = partial(self._run, pending, forwards, words)
        self._wrapped += layers

    def _run(
        self, pending: list[Any], forwards: list[Any], words: set[str] | None, hidden: Any, *a: Any, **k: Any
    ) -> Any:
        calls = [*pending, (a, k)]
        pending.clear()

        def segment(state: Any) -> Any:
            for forward, (args, kwargs) in zip(forwards, calls, strict=True):
                state = forward(state, *args, **kwargs)
                state = state[0] if isinstance(state, tuple) else state
            return state

        more = {"context_fn": partial(self._contexts, words)} if words else {}
        return checkpoint(segment, hidden, use_reentrant=False, preserve_rng_state=False, **more)

    def _contexts(self, words: set[str]) -> Any:
        attention = {*ATTENTION, flash_op()}

        def choose(_ctx: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            here = self._path[-1] if self._path else ""
            named = (op in PRODUCTS and "matmul" in words) or (op in attention and "attention" in words)
            if named or (op in PRODUCTS | attention and here in words):
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        contexts = create_selective_checkpoint_contexts(choose)
        self._caches.append(contexts[0].storage)
        return contexts


def _hand_on(pending: list[Any], hidden: Any, *args: Any, **kwargs: Any) -> Any:
    pending.append((args, kwargs))
    return hidden


def _run_part(forward: Any, *args: Any, hidden_states: Any = None, **kwargs: Any) -> Any:
    """One module under a checkpoint; its hidden states are an input of it, also where they come by name."""
    if hidden_states is not None:
        args = (hidden_states, *args)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


@contextmanager
def executed(model: Any, policy: Policy) -> Iterator[Execution]:
    """Lay the policy on the model for a while."""
    execution = Execution(model, policy)
    try:
        yield execution
    finally:
        execution.remove()
