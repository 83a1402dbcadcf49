"""What must hold of every model and run: growth, sums, and that the chain is the walk."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from actplan import answers as estimate
from actplan.basics.units import BF16, FP16, FP32
from actplan.model import Attention, GatedDeltaNet, Layer, Mlp, Model
from actplan.profile import segmented
from actplan.stacks.transformers.model import walk
from actplan.training import Run
from actplan.training.policies import Layers, NoCheckpoint, Policy, parse_policy

CHAIN_TOLERANCE = 0.005
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    groups, kv = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    return Attention(
        num_attention_heads=groups * kv,
        num_key_value_heads=kv,
        head_dim=draw(st.sampled_from([16, 64, 96])),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        output_gate=draw(st.booleans()),
        rope=draw(st.booleans()),
    )


@st.composite
def deltanets(draw: st.DrawFn) -> GatedDeltaNet:
    keys, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return GatedDeltaNet(
        num_key_heads=keys,
        num_value_heads=keys * groups,
        key_head_dim=32,
        value_head_dim=draw(st.sampled_from([32, 64])),
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    kinds = draw(st.lists(st.one_of(attentions(), deltanets()), min_size=1, max_size=2, unique=True))
    norm = draw(st.sampled_from(["rms", "rms_zero_centered"]))
    mlp = Mlp(intermediate_size=draw(st.integers(1, 8)) * 64, fused_gate_up=draw(st.booleans()))
    layers = [Layer(kind=f"k{i}", mixer=mixer, mlp=mlp, norm=norm) for i, mixer in enumerate(kinds)]
    repeats = draw(st.integers(1, 4))
    return Model(
        name="random",
        title="random",
        source="test",
        hidden_size=draw(st.sampled_from([64, 256])),
        vocab_size=draw(st.integers(2, 5000)),
        layers=tuple(layers) * repeats,
        norm=norm,
        tie_word_embeddings=draw(st.booleans()),
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    return Run(
        sequence_length=draw(st.integers(1, 700)),
        micro_batch_size=draw(st.integers(1, 3)),
        dtype=draw(st.sampled_from([BF16, FP16, FP32])),
        attention=draw(st.sampled_from(["eager", "sdpa", "flash"])),
        linear_attention=draw(st.sampled_from(["fla", "torch"])),
        kernels=draw(st.sampled_from(["hf", "liger"])),
        loss=draw(st.sampled_from(["naive", "fused", "none"])),
        hold_logits=draw(st.booleans()),
        split_backward=draw(st.booleans()),
    )


POLICIES = st.one_of(
    st.sampled_from(["none", "layer", "block", "sqrt"]),
    st.builds("{}:{}".format, st.sampled_from(["every", "one-in", "first", "heaviest"]), st.integers(1, 9)),
).map(parse_policy)


@given(models(), runs(), POLICIES)
@SLOW
def test_the_chain_is_the_walk(model: Model, run: Run, policy: Policy) -> None:
    # at fewer tokens, weight gradients in flight outweigh all activations
    run = msgspec.structs.replace(run, sequence_length=run.sequence_length + 1000)
    ours = segmented(model, run, policy)
    real = walk(model, run, ours.segments)
    assert ours.saved_bytes == real.saved_bytes
    for chain, walked in (
        (ours.end_forward_bytes, real.end_forward_bytes),
        (ours.peak_forward_bytes, real.peak_forward_bytes),
        (ours.peak_backward_bytes, real.peak_backward_bytes),
    ):
        assert abs(chain - walked) <= max(CHAIN_TOLERANCE * walked, 64 * 512)


@given(models(), runs(), st.integers(1, 300), st.integers(1, 3))
@SLOW
def test_memory_grows_with_length_and_batch(model: Model, run: Run, tokens: int, sequences: int) -> None:
    longer = msgspec.structs.replace(run, sequence_length=run.sequence_length + tokens)
    larger = msgspec.structs.replace(run, micro_batch_size=run.micro_batch_size + sequences)
    here = segmented(model, run, NoCheckpoint())
    for more in (longer, larger):
        there = segmented(model, more, NoCheckpoint())
        assert there.saved_bytes > here.saved_bytes
        assert there.peak_bytes >= here.peak_bytes


@given(models(), runs(), POLICIES)
@SLOW
def test_checkpointing_keeps_no_more(model: Model, run: Run, policy: Policy) -> None:
    checkpointed, stored = segmented(model, run, policy), segmented(model, run, NoCheckpoint())
    assert checkpointed.saved_bytes <= stored.saved_bytes
    assert 0 <= checkpointed.recompute_flops_fraction <= 1 / 3


@given(models(), runs(), POLICIES)
@SLOW
def test_parts_add_up(model: Model, run: Run, policy: Policy) -> None:
    said = estimate.estimate(model, msgspec.structs.replace(run, checkpoint=policy))
    autograd = said.estimates.autograd
    outside = sum(size for size in msgspec.structs.astuple(autograd.outside_layers) if size is not msgspec.UNSET)
    assert autograd.saved_bytes == sum(autograd.layer_saved_bytes) + outside
    rows = estimate.ledger(model, msgspec.structs.replace(run, checkpoint=policy)).ledger or ()
    assert autograd.saved_bytes == sum(row.bytes * row.count for row in rows)
    for row in said.segmentations:
        for part in (row.textbook, row.autograd):
            assert part.peak_bytes == part.boundary_bytes + part.stored_bytes + part.working_bytes
            assert part.boundary_bytes >= 0
            assert part.stored_bytes >= 0
    none = next(row for row in said.segmentations if row.policy == "none")
    assert (none.num_segments, none.recompute_flops_fraction, none.textbook.reduction_ratio) == (0, 0.0, 1.0)


@given(POLICIES)
def test_policies_read_back(policy: Policy) -> None:
    assert parse_policy(str(policy)) == policy


@given(POLICIES, st.integers(1, 80), st.integers(1, 8))
def test_segments_are_disjoint_and_in_order(policy: Policy, count: int, block: int) -> None:
    assume(count % block == 0)
    segments = policy.segments(Layers(count, block, [7 * i % 11 for i in range(count)]))
    flat = [i for first, last in segments for i in range(first, last + 1)]
    assert flat == sorted(set(flat))
    assert all(0 <= i < count for i in flat)
