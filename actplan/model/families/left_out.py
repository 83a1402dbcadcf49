"""Parameters of the parts that a configuration mentions and the planned text model does not have."""

from __future__ import annotations

from typing import Any

from ..reading.hf_config import Config

Fields = dict[str, object]


def qwen3_5_vision(config: Config) -> Fields:
    """The vision tower of `vision_config`: Transformers' modeling_qwen3_5.py, Qwen3_5VisionModel.

    patch_embed: a 3-d convolution with bias. pos_embed: an embedding. depth × block: two LayerNorms, qkv
    and proj with biases, fc1 and fc2 with biases. merger: a LayerNorm, then two linears over merge² patches
    side by side. The rotary tables are no parameters. Absent fields take Qwen3_5VisionConfig's defaults.
    """
    vision = config.section("vision_config") or Config({}, config.path("vision_config"))
    h, inner = vision.size("hidden_size", 1152), vision.size("intermediate_size", 4304)
    merged = h * vision.size("spatial_merge_size", 2) ** 2
    patch = vision.size("in_channels", 3) * vision.size("temporal_patch_size", 2) * vision.size("patch_size", 16) ** 2
    block = 2 * _layer_norm(h) + _linear(h, 3 * h) + _linear(h, h) + _linear(h, inner) + _linear(inner, h)
    count = (
        _linear(patch, h)
        + vision.size("num_position_embeddings", 2304) * h
        + vision.size("depth", 27) * block
        + _layer_norm(h)
        + _linear(merged, merged)
        + _linear(merged, vision.size("out_hidden_size", 3584))
    )
    return {"name": "vision tower", "num_parameters": count}


def qwen3_vl_vision(config: Config) -> Fields:
    """Qwen3-VL's tower (modeling_qwen3_vl.py, Qwen3VLVisionModel): Qwen3.5's, and beside its merger one more for each
    of `deepstack_visual_indexes`, whose LayerNorm is as wide as the patches that it merges."""
    vision = config.section("vision_config") or Config({}, config.path("vision_config"))
    merged = vision.size("hidden_size", 1152) * vision.size("spatial_merge_size", 2) ** 2
    listed = vision.get("deepstack_visual_indexes")
    count = len(listed) if isinstance(listed, list) else 3
    merger = _layer_norm(merged) + _linear(merged, merged) + _linear(merged, vision.size("out_hidden_size", 3584))
    plain = qwen3_5_vision(config)["num_parameters"]
    assert isinstance(plain, int)
    return {"name": "vision tower", "num_parameters": plain + count * merger}


def gemma3_vision(config: Config) -> Fields:
    """Gemma 3's SigLIP tower and projector: modeling_siglip.py, SiglipVisionModel; modeling_gemma3.py,
    Gemma3MultiModalProjector.

    embeddings: a convolution with bias and an embedding of positions. encoder: blocks of two LayerNorms, four
    projections and two linears, all with biases. post_layernorm. head (`vision_use_head`): one query,
    attention over the patches, a LayerNorm and a feed-forward network. Absent fields take
    SiglipVisionConfig's defaults.
    """
    text = config.section("text_config") or Config({}, config.path("text_config"))
    text_hidden = text.required("hidden_size")
    vision = config.section("vision_config") or Config({}, config.path("vision_config"))
    h, inner = vision.size("hidden_size", 768), vision.size("intermediate_size", 3072)
    patch = vision.size("patch_size", 16)
    side = vision.size("image_size", 224) // patch
    block = 2 * _layer_norm(h) + 4 * _linear(h, h) + _linear(h, inner) + _linear(inner, h)
    head = h + 4 * _linear(h, h) + _layer_norm(h) + _linear(h, inner) + _linear(inner, h)
    tower = (
        _linear(vision.size("num_channels", 3) * patch * patch, h)
        + side * side * h
        + vision.size("num_hidden_layers", 12) * block
        + _layer_norm(h)
        + (head if vision.flag("vision_use_head", True) else 0)
    )
    return {"name": "vision tower", "num_parameters": tower + h * text_hidden + h}


def _predicted(num_parameters: int, depths: int, kind: str, *, own_embedding: bool = False) -> Fields:
    """What a run leaves out without `--mtp`, and what it is made of with it."""
    own = {"own_embedding": True} if own_embedding else {}
    return {
        "left_out": [{"name": "multi-token prediction", "num_parameters": num_parameters}],
        "mtp": {"num_layers": depths, "kind": kind, **own},
    }


def multi_token_prediction(config: Config, fields: dict[str, Any]) -> Fields:
    """The multi-token-prediction module, if there is one; Transformers skips it on loading
    (`_keys_to_ignore_on_load_unexpected`).

    As released checkpoints hold it under `mtp.` (vLLM's Qwen3NextMultiTokenPredictor):
    pre_fc_norm_embedding and pre_fc_norm_hidden, fc from both to one hidden state, `mtp_num_hidden_layers`
    full-attention decoder layers, and a final norm. Embedding and head are the model's own, unless
    `mtp_use_dedicated_embeddings` adds an embedding.
    """
    depth = config.count("mtp_num_hidden_layers")
    own_embedding = config.flag("mtp_use_dedicated_embeddings", False)
    if not depth:
        return {}
    h, a = fields["hidden_size"], fields["attention"]
    query, key_value = a["num_attention_heads"] * a["head_dim"], a["num_key_value_heads"] * a["head_dim"]
    biases = 2 * query + 2 * key_value + h if a.get("qkv_bias") else 0
    attention = h * (2 * query + 2 * key_value) + query * h + biases + 2 * a["head_dim"]
    layer = attention + _feed_forward(fields) + 2 * h
    embedding = fields["vocab_size"] * h if own_embedding else 0
    count = 2 * h * h + 3 * h + depth * layer + embedding
    return _predicted(count, depth, "full_attention", own_embedding=own_embedding)


def latent_multi_token_prediction(config: Config, fields: dict[str, Any]) -> Fields:
    """DeepSeek-V3's modules, `model.layers.61` in its checkpoint (arXiv 2412.19437, section 2.2), each: enorm, hnorm,
    eh_proj from both to one hidden state, a decoder layer with experts, and the head's norm. Embedding and head are
    the model's own."""
    depth = config.count("num_nextn_predict_layers")
    if not depth:
        return {}
    h, a = fields["hidden_size"], fields["latent_attention"]
    heads, head_dim = a["num_attention_heads"], a["qk_nope_head_dim"] + a["qk_rope_head_dim"]
    rank = a.get("q_lora_rank")
    queries = h * heads * head_dim if rank is None else rank * (h + 1 + heads * head_dim)
    latent = h * (a["kv_lora_rank"] + a["qk_rope_head_dim"]) + a["kv_lora_rank"]
    expanded = a["kv_lora_rank"] * heads * (a["qk_nope_head_dim"] + a["v_head_dim"])
    biases = (rank or 0) + a["kv_lora_rank"] + a["qk_rope_head_dim"] + h if a.get("bias") else 0
    attention = queries + latent + expanded + heads * a["v_head_dim"] * h + biases
    layer = attention + _feed_forward(fields) + 2 * h
    return _predicted(depth * (2 * h * h + 3 * h + layer), depth, "latent_attention")


def _feed_forward(fields: dict[str, Any]) -> int:
    """Parameters of a layer's experts, router and shared expert, or of its plain network."""
    h, m = fields["hidden_size"], fields.get("moe")
    if m is None:
        return int(3 * h * fields["mlp"]["intermediate_size"])
    shared = 3 * h * m.get("shared_expert_intermediate_size", 0) + (h if m.get("shared_expert_gate") else 0)
    return int(m["num_experts"] * (h + 3 * h * m["moe_intermediate_size"]) + shared)


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _layer_norm(width: int) -> int:
    return 2 * width
