"""From a configuration, or a user's own function, to a model and its inputs, on fake tensors."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from ..units import parse_dtype
from .branches import RealSchedules
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
    """A `config.json`, a folder holding one, a dict, or a configuration object. A composite's language
    model."""
    from transformers import AutoConfig

    if not isinstance(source, (str, Path, dict)):
        return source
    raw = dict(source) if isinstance(source, dict) else _read_json(Path(source))
    where = "configuration" if isinstance(source, dict) else str(source)
    raw = dict(raw["text_config"]) if isinstance(raw.get("text_config"), dict) else raw
    raw.update(overrides or {})
    for key in _NOT_ARCHITECTURE:
        raw.pop(key, None)
    model_type = raw.pop("model_type", None)
    if not isinstance(model_type, str):
        raise InputError("the configuration names no model_type", where=where)
    try:
        return AutoConfig.for_model(model_type, **raw)
    except ValueError as error:
        raise InputError(str(error).splitlines()[0], where=where) from error


def _read_json(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"cannot read the configuration: {error}", where=str(file)) from error
    if not isinstance(raw, dict):
        raise InputError("the configuration is not an object", where=str(file))
    return raw


def build_transformers(source: Any, options: TraceOptions) -> Built:
    """A model with random, unallocated weights, in training mode, and a closure that runs its loss."""
    config = load_config(source, options.overrides)
    notes: list[str] = []
    with RealSchedules():
        model = _instantiate(config, options, notes)
    model.train()
    if options.num_layers is not None:
        truncate(model, options.num_layers)
    built = Built(config.model_type, model, lambda: None, config.model_type, config, options.loss, notes)
    built.forward = _runner(built, options)
    return built


def resized(built: Built, options: TraceOptions) -> Built:
    """The same model with inputs of another size."""
    again = Built(built.name, built.model, built.forward, built.model_type, built.config, built.loss, built.notes)
    again.forward = _runner(again, options)
    return again


def _instantiate(config: Any, options: TraceOptions, notes: list[str]) -> Any:
    factory = _factory(config, options)
    attention = {"flash": FLASH}.get(options.attention, options.attention)
    dtype = torch_dtype(options.dtype)
    try:
        return factory.from_config(config, attn_implementation=attention, dtype=dtype)
    except ValueError as error:
        if attention == "eager" or "attention" not in str(error):
            raise
        notes.append(f"{config.model_type} has no {options.attention} attention: eager is used")
        return factory.from_config(config, attn_implementation="eager", dtype=dtype)


def _factory(config: Any, options: TraceOptions) -> Any:
    """The first class for text with a loss of its own; else the bare model."""
    import transformers as hf

    for auto in (hf.AutoModelForCausalLM, hf.AutoModelForSeq2SeqLM, hf.AutoModelForMaskedLM):
        if type(config) in auto._model_mapping:
            return auto
    return hf.AutoModel


def truncate(model: Any, count: int) -> None:
    """Keep the first `count` layers of the decoder (or of each stack of checkpointable layers)."""
    modules = dict(model.named_modules())
    for path in stacks(model):
        stack = modules[path]
        if isinstance(stack, torch.nn.ModuleList) and len(stack) > count and _is_main_stack(stack, model):
            parent, _, attribute = path.rpartition(".")
            setattr(modules[parent], attribute, torch.nn.ModuleList(list(stack)[:count]))
    for module in (model, *model.modules()):
        config = getattr(module, "config", None)
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
    inputs = model_inputs(model, config, options)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    labels = inputs.get("input_ids")
    if built.loss != "none" and (head is None or labels is None):
        built.notes.append(f"{config.model_type} has no language-model loss: traced to its outputs")
        built.loss = "none"
    if built.loss == "naive":
        return _naive(model, inputs, labels, options.hold_logits)
    base = getattr(model, getattr(model, "base_model_prefix", "") or "", model)
    if built.loss == "fused":
        return _fused(base, head, inputs, labels)
    return lambda: hidden_states(base(**inputs))


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
