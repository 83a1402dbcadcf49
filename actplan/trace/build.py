"""From a configuration, or a user's own function, to a model and its inputs, on fake tensors."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..basics.errors import InputError
from ..basics.files import parse_json, read_text
from ..basics.units import parse_dtype
from ..profile.ledger_file import Ending, Images, LeftOut
from ..profile.ledger_file.structs import UNASKED
from .branches import RealSchedules, with_values
from .classes import (
    head_of,
    is_composite,
    language_stacks,
    left_out,
    training_class,
)
from .options import TraceOptions
from .patches import FLASH
from .stages import stacks

_NOT_ARCHITECTURE = (
    "architectures", "auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version",
)  # fmt: skip


@dataclass(slots=True)
class Built:
    """A model ready to run, and how to run it."""

    name: str
    model: Any
    forward: Callable[[], Any]
    model_type: str | None = None
    config: Any = None
    loss: str = "naive"
    notes: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    images: Images | None = None


def is_python(source: Any) -> bool:
    """True for `module:function` and for a callable; anything else is a configuration."""
    if isinstance(source, str):
        return ":" in source and not source.endswith(".json") and not Path(source).exists()
    return callable(source) and not hasattr(source, "model_type")


def torch_dtype(text: str) -> Any:
    return getattr(torch, parse_dtype(text).name)


# -- a user's own module


def build_python(source: Any, options: TraceOptions) -> Built:
    """`module:function`, or the function, which returns (module, inputs) or (module, inputs, loss
    function)."""
    function = _import(source) if isinstance(source, str) else source
    with RealSchedules():
        made = function(**_accepted(function, options))
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise InputError("the function must return (nn.Module, inputs) or (nn.Module, inputs, loss)", where=str(source))
    model, inputs, loss = made[0], made[1], made[2] if len(made) == 3 else None
    model.train()

    def forward() -> Any:
        if isinstance(inputs, dict):
            out = model(**inputs)
        else:
            out = model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
        return out if loss is None else loss(out)

    return Built(_name(source), model, forward, loss="custom")


def _accepted(function: Any, options: TraceOptions) -> dict[str, Any]:
    """`batch` and `seq`, where the function takes them."""
    parameters = inspect.signature(function).parameters
    every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given = {"batch": options.batch, "seq": options.seq, "dtype": torch_dtype(options.dtype)}
    return {key: value for key, value in given.items() if every or key in parameters}


def _import(source: str) -> Any:
    module_name, _, attribute = source.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"cannot import {module_name!r}: {error}", where="--python") from error
    if not callable(getattr(module, attribute, None)):
        raise InputError(
            f"{module_name} has no function {attribute!r}",
            where="--python",
            choices=[name for name, value in vars(module).items() if callable(value) and not name.startswith("_")],
            got=attribute,
        )
    return getattr(module, attribute)


def _name(source: Any) -> str:
    return source if isinstance(source, str) else getattr(source, "__qualname__", "model")


# -- a Transformers configuration


def load_config(source: Any, overrides: dict[str, Any] | None = None) -> Any:
    """A `config.json`, a folder holding one, a dict, or a configuration object. Of a composite that Transformers does
    not know, the language model's part. `overrides` go into that part."""
    from transformers import CONFIG_MAPPING, AutoConfig

    if not isinstance(source, (str, Path, dict)):
        return source
    raw = dict(source) if isinstance(source, dict) else _read_json(Path(source))
    where = "configuration" if isinstance(source, dict) else str(source)
    text = raw.get("text_config")
    if isinstance(text, dict):
        text = {**text, **(overrides or {})}
        raw = {**raw, "text_config": text} if raw.get("model_type") in CONFIG_MAPPING else text
    else:
        raw.update(overrides or {})
    raw = _architecture(raw)
    model_type = raw.pop("model_type", None)
    if not isinstance(model_type, str):
        raise InputError("the configuration names no model_type", where=where)
    try:
        return AutoConfig.for_model(model_type, **raw)
    except ValueError as error:
        raise InputError(str(error).splitlines()[0], where=where) from error


def _architecture(raw: dict[str, Any]) -> dict[str, Any]:
    """A configuration, and those inside it, without what is no architecture."""
    kept = {key: value for key, value in raw.items() if key not in _NOT_ARCHITECTURE}
    return {key: _architecture(value) if _is_config(key, value) else value for key, value in kept.items()}


def _is_config(key: str, value: Any) -> bool:
    return key.endswith("_config") and isinstance(value, dict)


def _read_json(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    raw = parse_json(read_text(file), str(file))
    if not isinstance(raw, dict):
        raise InputError("the configuration is not an object", where=str(file))
    return raw


def build_transformers(source: Any, options: TraceOptions) -> Built:
    """A model with random, unallocated weights, in training mode, and a closure that runs its loss."""
    described = load_config(source, options.overrides)
    auto, config = training_class(described, options)
    notes: list[str] = []
    with RealSchedules():
        model = _instantiate(auto, config, options, notes)
        missing = left_out(described, model)
    model.train()
    if options.num_layers is not None:
        truncate(model, options.num_layers)
    config = model.config
    built = Built(config.model_type, model, lambda: None, config.model_type, config, options.loss, notes)
    built.left_out = missing
    if is_composite(config):
        notes.append(f"traced as {type(model).__name__}, {_with_images(model, config, options)}")
    built.forward = _runner(built, options)
    return built


def _with_images(model: Any, config: Any, options: TraceOptions) -> str:
    from .inputs import takes_image

    if options.image_tokens:
        return f"with images of {options.image_tokens:,} tokens in a sequence"
    return "with one image beside a sequence" if takes_image(model, config) else "on text alone"


def resized(built: Built, options: TraceOptions) -> Built:
    """The same model with inputs of another size."""
    again = replace(built)
    again.forward = _runner(again, options)
    return again


def _instantiate(factory: Any, config: Any, options: TraceOptions, notes: list[str]) -> Any:
    attention = {"flash": FLASH}.get(options.attention, options.attention)
    dtype = torch_dtype(options.dtype)
    try:
        return factory.from_config(config, attn_implementation=attention, dtype=dtype)
    except ValueError as error:
        if attention == "eager" or "attention" not in str(error):
            raise
        notes.append(f"{config.model_type} has no {options.attention} attention: eager is used")
        return factory.from_config(config, attn_implementation="eager", dtype=dtype)


def truncate(model: Any, count: int) -> None:
    """Keep the first `count` layers of the decoder (or of each stack of checkpointable layers); a tower beside a
    language model stays whole."""
    modules = dict(model.named_modules())
    chosen = language_stacks(model, stacks(model))
    for path in chosen:
        stack = modules[path]
        if isinstance(stack, torch.nn.ModuleList) and len(stack) > count and _is_main_stack(stack, model):
            parent, _, attribute = path.rpartition(".")
            setattr(modules[parent], attribute, torch.nn.ModuleList(list(stack)[:count]))
    towers = [path for path in stacks(model) if path not in chosen]
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        if any(path.startswith(name) or name.startswith(path) for path in towers):
            continue
        if config is not None and getattr(config, "num_hidden_layers", 0) > count:
            config.num_hidden_layers = count


def _is_main_stack(stack: Any, model: Any) -> bool:
    from transformers.modeling_layers import GradientCheckpointingLayer

    if all(isinstance(layer, GradientCheckpointingLayer) for layer in stack):
        return True
    return len(stack) == getattr(getattr(model, "config", None), "num_hidden_layers", -1)


def _runner(built: Built, options: TraceOptions) -> Callable[[], Any]:
    from .inputs import model_inputs

    model, config = built.model, built.config
    inputs, built.images = model_inputs(model, config, options)
    head = head_of(model)
    labels = inputs.get("input_ids")
    if built.loss != "none" and (head is None or labels is None):
        built.notes.append(f"{config.model_type} {UNASKED}")
        built.loss = "none"
    base = getattr(model, getattr(model, "base_model_prefix", "") or "", model)
    if built.loss == "naive":
        run = _naive(model, inputs, labels, options.hold_logits)
    elif built.loss == "fused":
        if base is model:
            raise InputError(f"{type(model).__name__} has no body apart from its head", where="--loss", allowed="naive")
        run = _fused(base, head, inputs, labels)
    else:

        def run() -> Any:
            return hidden_states(base(**inputs))

    return run if built.images is None else with_values(run)


def ending(built: Built, options: TraceOptions, *, loss: bool) -> Ending:
    """How the step ends. loss: whether it returned a single number."""
    text = _text_config(built.config)
    sizes = (getattr(text, "hidden_size", 0), getattr(text, "vocab_size", 0))
    hidden, vocabulary = (size if isinstance(size, int) and size > 0 else 0 for size in sizes)
    asked = options.loss == "none"
    if loss or asked:
        reason = ""
    elif built.config is None:
        reason = "the function returned no single number"
    else:
        reason = f"Transformers has no class with a language-model loss for {built.config.model_type}"
    return Ending(loss, loss, asked and not loss, hidden, vocabulary, reason)


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _naive(model: Any, inputs: dict[str, Any], labels: Any, hold: bool) -> Callable[[], Any]:
    def forward() -> Any:
        out = model(**inputs, labels=labels)
        return (out.loss, out.logits) if hold else out.loss

    return forward


def _fused(base: Any, head: Any, inputs: dict[str, Any], labels: Any) -> Callable[[], Any]:
    from .kernels_liger import fused_linear_cross_entropy

    def forward() -> Any:
        hidden = hidden_states(base(**inputs))
        flat = hidden.view(-1, hidden.shape[-1])
        return fused_linear_cross_entropy(flat, head.weight, labels.view(-1), getattr(head, "bias", None))

    return forward


def hidden_states(out: Any) -> Any:
    """The last hidden states of a model's output, else its first tensor that has a gradient, or could have one where
    none is recorded."""
    last = getattr(out, "last_hidden_state", None)
    if last is not None:
        return last
    recorded = torch.is_grad_enabled()
    for tensor in torch.utils._pytree.tree_leaves(dict(out) if hasattr(out, "keys") else out):
        if isinstance(tensor, torch.Tensor) and (tensor.requires_grad if recorded else tensor.is_floating_point()):
            return tensor
    raise InputError("the model returns no tensor that has a gradient")
