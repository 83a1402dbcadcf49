"""Tiny configurations of models of images and text, one for each way that an image becomes tokens."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
QWEN: dict[str, Any] = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}


def composite(model_type: str, text_type: str, vision_type: str, **more: Any) -> dict[str, Any]:
    """A configuration of a tower and a language model, `more` of which may change either."""
    own = {"text_config": more.pop("text", {}), "vision_config": more.pop("vision", {})}
    return {
        "model_type": model_type,
        "text_config": {"model_type": text_type, **TEXT, **own["text_config"]},
        "vision_config": {"model_type": vision_type, **VISION, **own["vision_config"]},
        "image_token_id": 5,
        **more,
    }


CASES: dict[str, tuple[dict[str, Any], int]] = {
    # rows of patches, merged 2 by 2, with features of three blocks added behind the first layers
    "qwen3_vl": (
        composite(
            "qwen3_vl", "qwen3_vl_text", "qwen3_vl", text={"rope_parameters": MROPE, "num_hidden_layers": 6},
            vision={**QWEN, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
            video_token_id=6, vision_start_token_id=7, vision_end_token_id=8,
        ),
        12,
    ),
    # the same with attention in windows
    "qwen2_5_vl": (
        composite(
            "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_vl", text={"rope_parameters": MROPE},
            vision={**QWEN, "window_size": 56, "fullatt_block_indexes": [1, 3]},
            video_token_id=6, vision_start_token_id=7, vision_end_token_id=8,
        ),
        20,
    ),
    # an image of one size, pooled to a number of tokens; its tokens see each other, which needs a mask
    "gemma3": (
        composite(
            "gemma3", "gemma3_text", "siglip_vision_model", mm_tokens_per_image=4, image_token_index=5,
            text={"sliding_window": 4096, "layer_types": ["sliding_attention", "full_attention"] * 2},
        ),
        8,
    ),
    # an image of any size, merged 2 by 2
    "mistral3": (composite("mistral3", "mistral", "pixtral", spatial_merge_size=2, image_token_index=5,
                           vision={"head_dim": 16, "image_size": 112}), 8),
    # an image of one size; hidden states of a layer inside the tower
    "llava": (composite("llava", "llama", "clip_vision_model", image_token_index=5), 16),
    # tokens merged by a pixel shuffle, the images of a sequence in a dimension of their own
    "idefics3": (composite("idefics3", "llama", "idefics3_vision", scale_factor=2), 8),
    "internvl": (
        composite("internvl", "qwen2", "internvl_vision", downsample_ratio=0.5,
                  vision={"image_size": [56, 56], "patch_size": [14, 14]}),
        4,
    ),
    "paligemma": (composite("paligemma", "gemma", "siglip_vision_model", projection_dim=64, image_token_index=5), 16),
    "glm4v": (
        composite(
            "glm4v", "glm4v_text", "glm4v_vision",
            text={"rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}},
            vision={**QWEN, "num_heads": 2, "image_size": 56},
        ),
        12,
    ),
}  # fmt: skip
"""model_type -> (configuration, tokens of images in a sequence)."""
