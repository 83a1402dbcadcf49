"""One training step of a real model on fake tensors: forward, backward, and what was kept and alive."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..basics.errors import InputError
from . import build, patches
from .autocast import autocast
from .checkpoint import checkpointed
from .classes import head_of, is_composite
from .options import TraceOptions
from .recorder import Recorder
from .result import Event, TraceResult
from .stages import layer_paths, stacks
from .step import Step
from .summary import forward_events, summarise
from .tensors import storage_key


def trace_model(source: Any, options: TraceOptions) -> TraceResult:
    """Trace one step.

    Args:
        source: a `config.json`, a folder holding one, a dict or a Transformers configuration object; or
            `module:function` or a callable that returns (module, inputs) or (module, inputs, loss).
        options: what to run.
    """
    python = build.is_python(source)
    with (
        quiet(python),
        FakeTensorMode(allow_non_fake_inputs=True),
        patches.framework(options, transformers=not python),
    ):
        built = build.build_python(source, options) if python else build.build_transformers(source, options)
        return trace_built(built, options)


def trace_built(built: build.Built, options: TraceOptions) -> TraceResult:
    """Trace a model that is already built; the fake mode and the framework's patches are the caller's."""
    model = built.model
    owned = {storage_key(t) for t in [*model.parameters(), *model.buffers()]}
    try:
        with ExitStack() as stack:
            names = stack.enter_context(patches.model_kernels(model, options, built.model_type))
            extra = stack.enter_context(checkpointed(model, options.segment_length(), built.forward))
            recorder = Recorder(owned | extra, accumulate_in_place=options.accumulate == "gpu")
            for hook in _hooks(model, recorder, built):
                stack.callback(hook.remove)
            step = _step(built, options, recorder)
        return summarise(recorder, built, options, step, (*names, *_attention_name(options)))
    finally:
        model.zero_grad(set_to_none=True)
        gc.collect()


def trace_forward(built: build.Built, options: TraceOptions) -> tuple[tuple[Event, ...], ...]:
    """The forward alone, keeping nothing, as the first one of a checkpoint: what each stage allocates and frees. The
    fake mode and the framework's patches are the caller's."""
    model = built.model
    owned = {storage_key(t) for t in [*model.parameters(), *model.buffers()]}
    with ExitStack() as stack:
        stack.enter_context(patches.model_kernels(model, options, built.model_type))
        recorder = Recorder(owned, accumulate_in_place=False)
        for hook in _hooks(model, recorder, built):
            stack.callback(hook.remove)
        with recorder.recording(), torch.no_grad(), autocast(options.autocast):
            out = _forward(built, recorder)
            recorder.begin_backward()
            del out
        return forward_events(recorder)


def _step(built: build.Built, options: TraceOptions, recorder: Recorder) -> Step:
    hooks = torch.autograd.graph.saved_tensors_hooks(recorder.pack, recorder.unpack)
    with recorder.recording():
        with hooks, autocast(options.autocast):
            out = _forward(built, recorder)
        held, loss = (out[1:], out[0]) if isinstance(out, tuple) else ((), out)
        del out
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise InputError("the run returned no tensor that has a gradient")
        step = Step(recorder, loss)
        recorder.begin_backward()
        loss.backward(torch.empty_like(loss) if loss.dim() else None)
        del held
    return step


def _forward(built: build.Built, recorder: Recorder) -> Any:
    if built.loss == "fused":
        return _with_loss_mark(built, recorder)
    recorder.mark("embedding")
    return built.forward()


def _with_loss_mark(built: build.Built, recorder: Recorder) -> Any:
    from . import kernels_liger

    function = kernels_liger.fused_linear_cross_entropy

    def marked(*args: Any) -> Any:
        recorder.mark("loss", args[0])
        return function(*args)

    with patches.replaced(kernels_liger, "fused_linear_cross_entropy", marked):
        recorder.mark("embedding")
        return built.forward()


def _hooks(model: Any, recorder: Recorder, built: build.Built) -> list[Any]:
    """Follow which module runs, mark where stages begin, and take note of finished gradients."""
    layers = set(layer_paths(model))
    between = is_composite(getattr(model, "config", None))
    last = layers if between else {paths[-1] for paths in stacks(model).values()}
    head = head_of(model)
    handles: list[Any] = []
    for path, module in model.named_modules():
        handles += _module_hooks(path, module, recorder, layer=path in layers, last=path in last, head=module is head)
    for parameter in model.parameters():
        if parameter.requires_grad:
            handles.append(parameter.register_post_accumulate_grad_hook(recorder.adopt_gradient))
    return handles


def _module_hooks(path: str, module: Any, recorder: Recorder, *, layer: bool, last: bool, head: bool) -> list[Any]:
    def enter(_: Any, args: Any, kwargs: Any) -> None:
        if layer or head:
            recorder.drop_empty_mark()
            recorder.mark(path if layer else "head", first_tensor(args, kwargs))
        recorder.enter_module(path)

    def leave(_: Any, args: Any, out: Any) -> None:
        recorder.leave_module()
        if last or head:
            recorder.mark("loss" if head else f"after {path}", first_tensor((out,), {}))

    return [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave, always_call=True),
    ]


def first_tensor(args: Any, kwargs: Any) -> Any:
    """The hidden states among a module's arguments: the first tensor with a gradient, else the first
    tensor."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    return next((t for t in tensors if t.requires_grad), tensors[0] if tensors else None)


def _attention_name(options: TraceOptions) -> tuple[str, ...]:
    return () if options.attention == "eager" else (f"attention.{options.attention}",)


@contextmanager
def quiet(python: bool) -> Iterator[None]:
    """Transformers' advice about kernels that are stood in for is of no use here."""
    log = logging.getLogger("torch._subclasses.fake_tensor")  # prints a traceback of its own before it raises
    before = log.level
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        stack.callback(log.setLevel, before)
        if python:
            yield
            return
        from transformers.utils import logging as advice

        level = advice.get_verbosity()
        advice.set_verbosity_error()
        try:
            yield
        finally:
            advice.set_verbosity(level)
