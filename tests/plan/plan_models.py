"""Small models and runs for the planner's tests, at random."""

from __future__ import annotations

from hypothesis import strategies as st

from actplan.model import Attention, GatedDeltaNet, Layer, Mlp, Model
from actplan.training import Run

ATTENTION = Layer("full", Attention(num_attention_heads=4, num_key_value_heads=2, head_dim=32), Mlp(512))
DELTA = Layer("delta", GatedDeltaNet(num_key_heads=2, num_value_heads=4, key_head_dim=32, value_head_dim=32), Mlp(384))


def model(*layers: Layer, vocab: int = 1000) -> Model:
    return Model(name="small", title="small", source="test", hidden_size=128, vocab_size=vocab, layers=layers)


@st.composite
def models(draw: st.DrawFn) -> Model:
    pattern = draw(st.sampled_from([(ATTENTION,), (DELTA, ATTENTION), (DELTA, DELTA, DELTA, ATTENTION)]))
    return model(*(pattern * draw(st.integers(1, 3))), vocab=draw(st.sampled_from([64, 1000, 20000])))


@st.composite
def runs(draw: st.DrawFn) -> Run:
    return Run(
        sequence_length=draw(st.integers(64, 700)),
        micro_batch_size=draw(st.integers(1, 2)),
        attention=draw(st.sampled_from(["eager", "sdpa"])),
        kernels=draw(st.sampled_from(["hf", "liger"])),
        loss=draw(st.sampled_from(["naive", "fused", "none"])),
        precision=draw(st.sampled_from(["pure", "pure", "autocast"])),
    )
