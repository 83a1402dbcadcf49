"""Transformers' configuration classes of state-space models; see `families` for the rules that readers follow."""

from __future__ import annotations

from ..errors import InputError
from .families import reader
from .family_parts import Fields, layers, num_layers, trunk
from .hf_config import Config


@reader("mamba2")
def mamba2(config: Config) -> Fields:
    """configuration_mamba2.py: 128 heads of 64, 8 groups, fp32 residuals when absent; every layer is a mixer and
    nothing else, and Liger has no patch for it."""
    heads, head_dim = config.size("num_heads", 128), config.size("head_dim", 64)
    expand = config.size("expand", 2)
    if config.required("hidden_size") * expand != heads * head_dim:
        raise InputError(
            f"{heads} heads of {head_dim} are not {expand} × hidden_size {config.required('hidden_size')}",
            where=config.path("num_heads"),
            hint="Transformers refuses it too",
        )
    fp32 = config.flag("residual_in_fp32", True)
    return {
        **trunk(config),
        **layers(["mamba2"] * num_layers(config)),
        "residual": {"type": "mixer_only", **({"fp32": True} if fp32 else {})},
        "embedding": {"positions": "none"},
        "head": {"fp32": True},
        "naming": "mamba2",
        "mamba2": {
            "num_heads": heads,
            "head_dim": head_dim,
            "state_size": config.size("state_size", 128),
            "n_groups": config.size("n_groups", 8),
            "conv_kernel": config.size("conv_kernel", 4),
            "chunk_size": config.size("chunk_size", 256),
            **({"use_bias": True} if config.flag("use_bias", False) else {}),
            **({} if config.flag("use_conv_bias", True) else {"use_conv_bias": False}),
        },
        "liger": [],
    }


__all__ = ["mamba2"]
