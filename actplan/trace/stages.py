"""Which module a tensor belongs to: the layer, or the module outside every layer; and where the layers
are."""

from __future__ import annotations

from typing import Any

from .classes import is_composite


def stage_of(path: str) -> str:
    """`model.layers.3.mlp.act_fn` -> `model.layers.3`; a path without a number is its own stage."""
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: i + 1])
    return path


def is_layer(stage: str) -> bool:
    return stage.rpartition(".")[2].isdigit()


def stacks(model: Any) -> dict[str, list[str]]:
    """The outermost numbered containers (`nn.ModuleList`, `nn.Sequential`) and the paths of their layers; in a model of
    images and text only those whose layers Transformers checkpoints (a projector's linears, and what merges a tower's
    features, are no layers)."""
    found: dict[str, list[str]] = {}
    modules = dict(model.named_modules())
    for path in modules:
        if path and is_layer(path) and stage_of(path) == path:
            found.setdefault(path.rpartition(".")[0], []).append(path)
    if not is_composite(getattr(model, "config", None)):
        return found
    from transformers.modeling_layers import GradientCheckpointingLayer

    kept = {
        stack: paths
        for stack, paths in found.items()
        if all(isinstance(modules[path], GradientCheckpointingLayer) for path in paths)
    }
    return kept or found


def layer_paths(model: Any) -> list[str]:
    return [path for paths in stacks(model).values() for path in paths]


_LAYER_NUMBERS = ("layer_idx", "layer_id", "layer_index", "layer_number", "idx", "block_idx")


def layer_signature(layer: Any) -> tuple[Any, ...]:
    """What tells one kind of layer from another: classes, parameter shapes and plain attributes, its number
    apart."""
    rows: list[Any] = []
    for name, module in layer.named_modules():
        plain = tuple(
            (key, value)
            for key, value in sorted(vars(module).items())
            if isinstance(value, (bool, int, float, str)) and not key.startswith("_") and key not in _LAYER_NUMBERS
        )
        shapes = tuple(
            (key, tuple(p.shape), str(p.dtype), p.requires_grad) for key, p in module.named_parameters(recurse=False)
        )
        rows.append((name, type(module).__name__, plain, shapes))
    return tuple(rows)


def layer_kinds(model: Any) -> dict[str, list[str]]:
    """Kind of every layer of every stack, equal signatures alike: stack -> kinds in order ("a", "b", …)."""
    modules = dict(model.named_modules())
    names: dict[tuple[Any, ...], str] = {}
    kinds: dict[str, list[str]] = {}
    for stack, paths in stacks(model).items():
        for path in paths:
            signature = (stack, layer_signature(modules[path]))
            if signature not in names:
                names[signature] = f"{_kind_name(modules[path])}"
                if list(names.values()).count(names[signature]) > 1:
                    names[signature] += f"-{len(names)}"
            kinds.setdefault(stack, []).append(names[signature])
    return kinds


def _kind_name(layer: Any) -> str:
    for key in ("layer_type", "attention_type"):
        value = getattr(layer, key, None)
        if isinstance(value, str):
            return value
    return type(layer).__name__
