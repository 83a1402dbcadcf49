"""The models of the grid: small configurations of several families, as files and as Transformers builds them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

Config = dict[str, Any]

COMMON: Config = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 12000,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
EXPERTS: Config = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "norm_topk_prob": True}
DELTA: Config = {
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 128,
}
CONFIGS: dict[str, Config] = {
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 96, **COMMON},
    "qwen3": {"model_type": "qwen3", "head_dim": 128, **COMMON, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", **COMMON},
    "olmo2": {"model_type": "olmo2", **COMMON, "num_key_value_heads": 16},
    "granite": {
        "model_type": "granite",
        **COMMON,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0156,
        "logits_scaling": 8.0,
    },
    "gemma2": {
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 128,
        "sliding_window": 256,
        **{k: v for k, v in COMMON.items() if k not in ("hidden_act", "tie_word_embeddings")},
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 128,
        "sliding_window": 128,
        **{k: v for k, v in COMMON.items() if k not in ("hidden_act", "tie_word_embeddings")},
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 512,
        "n_head": 8,
        "n_positions": 2048,
        "vocab_size": 9000,
        "activation_function": "gelu_new",
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        **{k: v for k, v in COMMON.items() if k != "num_key_value_heads"},
        "hidden_act": "gelu",
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    },
    "phi": {
        "model_type": "phi",
        **COMMON,
        "num_key_value_heads": 16,
        "hidden_act": "gelu_new",
        "partial_rotary_factor": 0.5,
        "attention_dropout": 0.0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
    },
    "phi3": {"model_type": "phi3", **COMMON, "pad_token_id": 0, "sliding_window": None},
    "glm4": {"model_type": "glm4", **COMMON, "head_dim": 64, "partial_rotary_factor": 0.5, "pad_token_id": 0},
    "stablelm": {"model_type": "stablelm", **COMMON, "partial_rotary_factor": 0.25, "attention_dropout": 0.0},
    "starcoder2": {
        "model_type": "starcoder2",
        **COMMON,
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": None,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
    },
    "cohere2": {"model_type": "cohere2", **COMMON, "head_dim": 96, "sliding_window": 256, "sliding_window_pattern": 4},
    "smollm3": {"model_type": "smollm3", **COMMON, "pad_token_id": 0, "no_rope_layer_interval": 4},
    "mixtral": {
        "model_type": "mixtral",
        **COMMON,
        "intermediate_size": 1024,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "olmoe": {
        "model_type": "olmoe",
        **COMMON,
        "intermediate_size": 512,
        "num_experts": 16,
        "num_experts_per_tok": 4,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", "head_dim": 64, **COMMON, **EXPERTS, "mlp_only_layers": []},
    "qwen3_5": {
        "model_type": "qwen3_5_text",
        **COMMON,
        **DELTA,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e7,
            "rope_type": "default",
        },
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        **COMMON,
        **EXPERTS,
        **DELTA,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "shared_expert_intermediate_size": 512,
        "mlp_only_layers": [],
    },
    # for runs on real CPU tensors
    "tiny": {
        "model_type": "llama",
        **COMMON,
        "hidden_size": 384,
        "intermediate_size": 1152,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 3000,
    },
}
"""Each configuration without its number of layers. None of them is a model of tests/reference/executed_configs."""
HYBRIDS = {"qwen3_5", "qwen3_next"}


def configuration(name: str, layers: int, **changes: Any) -> Config:
    """Give a model of the grid that many layers."""
    raw = {**CONFIGS[name], **changes}
    raw["n_layer" if raw["model_type"] == "gpt2" else "num_hidden_layers"] = layers
    if name in HYBRIDS:
        interval = raw["full_attention_interval"]
        raw["layer_types"] = [
            "linear_attention" if (index + 1) % interval else "full_attention" for index in range(layers)
        ]
    return raw


@cache
def _folder() -> Path:
    return Path(mkdtemp(prefix="actplan-executed-"))


def config_file(name: str, layers: int, **changes: Any) -> str:
    """Write the configuration for the command; return the path."""
    words = [name, str(layers), *(f"{key}={value}" for key, value in sorted(changes.items()))]
    path = _folder() / ("-".join(words) + ".json")
    path.write_text(json.dumps(configuration(name, layers, **changes)), encoding="utf-8")
    return str(path)


def build(name: str, layers: int, attention: str, dtype: Any, device: str = "cpu", **changes: Any) -> Any:
    """Build the model in training mode, with `kernels.py`'s stand-ins where a kernel needs a GPU.

    `attention` is `flash` (the stand-in), or one of Transformers' own words. Inside a FakeTensorMode the weights are
    fake. `device` may name the fake accelerator.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, masking_utils

    from executed import kernels

    # Text without padding needs no mask for sdpa and FlashAttention; Transformers cannot see that on fake tensors.
    masking_utils.is_tracing = lambda *_, **__: False
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    kernels.register_flash_attention()
    raw = configuration(name, layers, **changes)
    config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation={"flash": kernels.FLASH}.get(attention, attention), dtype=dtype
    )
    if device != "cpu":
        move(model, device)
    kernels.install_delta_rule(model)
    model.train()
    return model


def move(model: Any, device: str) -> None:
    """Put fake parameters and buffers on another fake device, with ties kept. `Module.to` cannot: a fake parameter's
    data cannot be exchanged for data of another device."""
    import torch

    moved: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in moved:
                data = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                moved[id(parameter)] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
            module._parameters[name] = moved[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
        if "original_inv_freq" in module.__dict__:  # rotary embeddings hold their buffer under a second name
            module.original_inv_freq = module._buffers.get("inv_freq")


def trunk(model: Any) -> Any:
    """The model below its head."""
    return getattr(model, model.base_model_prefix)


def decoder_layers(model: Any) -> list[Any]:
    """The layers in their order; GPT-2 and others call them `h`."""
    base = trunk(model)
    return list(base.layers if hasattr(base, "layers") else base.h)
