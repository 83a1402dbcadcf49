"""Falcon-H1 and Nemotron-H beyond the traced records (test_moe_families.py): sizes of published models, chains, what
is refused; and what the segments of a pattern with a beginning of its own are."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from actplan.basics.errors import InputError
from actplan.checkpointing import textbook
from actplan.model import Model
from actplan.model.reading import load_model, resolve
from actplan.model.reading.config_json import document_of_config
from actplan.profile import segmented
from actplan.stacks.transformers.model import walk
from actplan.training import Lora, Run
from actplan.training.policies import Blocks, EveryK, EveryLayer, Layers, NoCheckpoint

FALCON_H1 = {
    "model_type": "falcon_h1", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 4096, "vocab_size": 65537, "mamba_d_ssm": 3072,
    "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 256, "mamba_n_groups": 1, "tie_word_embeddings": False,
}  # fmt: skip
"""Falcon-H1-1.5B's dimensions."""
NEMOTRON_H = {
    "model_type": "nemotron_h", "hidden_size": 4096, "hybrid_override_pattern": "M-M-M-M*-M-M-", "vocab_size": 131072,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504,
    "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
}  # fmt: skip


def read(config: dict[str, Any]) -> Model:
    return resolve(document_of_config(config, name="x", source="x"))


@pytest.mark.parametrize("config", [FALCON_H1, NEMOTRON_H], ids=lambda c: c["model_type"])
@pytest.mark.parametrize("linear", ["fla", "torch"])
def test_the_chain_agrees_with_the_walk(config: dict[str, Any], linear: Any) -> None:
    model = read(config)
    model = replace(model, layers=model.layers[:8])
    run = Run(sequence_length=512, attention="flash", linear_attention=linear)
    for policy in (NoCheckpoint(), EveryLayer(), EveryK(2)):
        ours, oracle = segmented(model, run, policy), walk(model, run, segmented(model, run, policy).segments)
        assert ours.saved_bytes == oracle.saved_bytes
        assert ours.peak_forward_bytes == pytest.approx(oracle.peak_forward_bytes, rel=2e-3)
        assert ours.peak_backward_bytes == pytest.approx(oracle.peak_backward_bytes, rel=2e-3)


def test_layers_of_one_branch() -> None:
    model = read(NEMOTRON_H)
    assert [layer.kind for layer in model.layers[:3]] == ["mamba2", "mlp_only", "mamba2"]
    assert model.layers[1].mixer is None
    assert model.layers[0].mlp is None
    names = [width.name for width in textbook.layer_widths(model, model.layers[1])]
    assert "query" not in names and "up" in names


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**NEMOTRON_H, "hybrid_override_pattern": "M?"}, "hybrid_override_pattern"),
        ({**NEMOTRON_H, "num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ({**FALCON_H1, "projectors_bias": True}, "projectors_bias"),
    ],
)
def test_what_is_not_modelled_is_refused(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        read(config)
    assert str(caught.value).startswith(field)


def test_two_mixers_need_a_residual_that_adds_them() -> None:
    settings = ["kinds={both: {mixer: full_attention, beside: mamba2}}", "layers=2 x both"]
    with pytest.raises(InputError, match="two mixers"):
        load_model("llama-3.2-1b", preset=True, overrides=settings)


def test_a_feed_forward_network_is_a_layer_only_among_layers_of_one_branch() -> None:
    with pytest.raises(InputError, match="mlp_only"):
        load_model("llama-3.2-1b", preset=True, overrides=["layers=full_attention, mlp_only"])


def test_a_block_begins_where_the_pattern_does() -> None:
    deepseek = load_model("deepseek-v3", preset=True)
    assert (deepseek.lead, deepseek.block()) == (3, 1)
    assert deepseek.pattern() == "3 x latent_attention_dense, 58 x latent_attention"
    gemma = load_model("gemma-3-27b", preset=True)
    assert (gemma.lead, gemma.block()) == (0, 6)
    assert gemma.pattern().startswith("10 x [5 x sliding_attention, full_attention], 2 x")
    qwen = load_model("qwen-27b", preset=True)
    assert (qwen.lead, qwen.block()) == (0, 4)


@pytest.mark.parametrize(
    ("count", "block", "lead", "segments"),
    [
        (5, 1, 3, ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4))),
        (7, 2, 3, ((0, 1), (2, 2), (3, 4), (5, 6))),
        (7, 3, 0, ((0, 2), (3, 5), (6, 6))),
        (4, 4, 0, ((0, 3),)),
        (2, 2, 5, ((0, 1),)),
    ],
)
def test_segments_of_blocks(count: int, block: int, lead: int, segments: tuple[tuple[int, int], ...]) -> None:
    assert Blocks().segments(Layers(count, block, [1] * count, lead)) == segments


def test_adapters_that_match_no_linear_say_which_there_are() -> None:
    with pytest.raises(InputError, match=r"no linear is called q_proj or v_proj.*q_b_proj"):
        model = load_model("deepseek-v3", preset=True, overrides=["num_layers=2"])
        segmented(model, Run(sequence_length=64, attention="flash", adapters=Lora()), NoCheckpoint())
