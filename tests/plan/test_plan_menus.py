"""Selective checkpointing: every choice of a menu, and any mixture of them, against the whole-model walk."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_models import ATTENTION, DELTA, model, models, runs

from actplan import answers as estimate
from actplan.basics.errors import InputError
from actplan.model import GatedDeltaNet, Layer, Model, Moe
from actplan.model.reading import load_model
from actplan.ops.deltanet import delta_rule_flops
from actplan.profile import profile_of, segmented
from actplan.profile.profile import Segmented
from actplan.stacks.transformers.model import walk
from actplan.training import Run
from actplan.training.policies import (
    Explicit,
    KeptOutputs,
    Segment,
    Selective,
    Words,
    parse_policy,
)

TOLERANCE = 0.005
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def agrees(model: Model, run: Run, ours: Segmented) -> None:
    """The chain is the walk: saved bytes and FLOPs exactly, peaks within half a percent."""
    real = walk(model, run, ours.segments, keeps=ours.keeps)
    assert ours.saved_bytes == real.saved_bytes
    assert ours.evaluation.cost == sum(stage.replayed_flops for stage in real.stages)
    for chain, walked in (
        (ours.end_forward_bytes, real.end_forward_bytes),
        (ours.peak_forward_bytes, real.peak_forward_bytes),
        (ours.peak_backward_bytes, real.peak_backward_bytes),
    ):
        # closures of checkpoints hold a mask: a chain counts it also where only layers that ignore it are checkpointed
        slack = max(TOLERANCE * walked, 64 * 512)
        assert -slack <= chain - walked <= slack + ours.measured.dropped.backward


@given(models(), runs(), st.data())
@SLOW
def test_any_mixture_is_the_walk(model: Model, run: Run, data: st.DataObject) -> None:
    about = profile_of(model, run)
    segments: list[Segment] = []
    keeps: dict[int, Words] = {}
    at = 0
    while at < model.num_layers:
        what = data.draw(st.sampled_from(["stored", "segment", "selective", "selective"]))
        last = min(at + data.draw(st.integers(0, 2)), model.num_layers - 1) if what == "segment" else at
        if what != "stored":
            segments.append((at, last))
        if what == "selective":
            keeps[at] = data.draw(st.sampled_from(about.menus.sets(at)))
        at = last + 1
    agrees(model, run, Segmented(about, tuple(segments), keeps))


@pytest.mark.parametrize("words", ["attention", "attention,matmul", "up_proj", "gate_proj,up_proj,q_proj"])
def test_one_setting_for_all_layers(words: str) -> None:
    hybrid, run = model(*[DELTA, DELTA, ATTENTION] * 2), Run(sequence_length=256)
    ours = segmented(hybrid, run, parse_policy(f"selective:{words}"))
    agrees(hybrid, run, ours)
    assert ours.saved_bytes > segmented(hybrid, run, parse_policy("layer")).saved_bytes


def test_menus_are_in_order_of_worth() -> None:
    """FLOPs fall as bytes grow, the last product is in none, and the largest set replays no product: what is left is
    the delta rule, which no policy can keep."""
    for name in ("qwen-27b", "llama-3-8b"):
        big, run = load_model(name, preset=True), Run()
        menus = profile_of(big, run).menus
        for layer in {kind: i for i, kind in enumerate(big.layers)}.values():
            sets = menus.sets(layer)
            found = menus.kept([(layer, words) for words in sets])
            assert all(a < b for a, b in itertools.pairwise(sets))
            assert [one.kept for one in found] == sorted({one.kept for one in found})
            assert [one.flops for one in found] == sorted({one.flops for one in found}, reverse=True)
            mixer = big.layers[layer].mixer
            left = 0
            if isinstance(mixer, GatedDeltaNet):
                heads = mixer.num_value_heads
                left = delta_rule_flops(1, run.sequence_length, heads, mixer.key_head_dim, mixer.value_head_dim)
            assert found[-1].flops == left
            assert not any("down_proj" in words for words in sets)
            assert sets[0] <= {"attention", "out_proj", "o_proj"}


def test_everything_that_is_kept_is_in_the_ledger() -> None:
    run = Run(sequence_length=128, checkpoint=Selective(("attention", "up_proj")))
    rows = estimate.ledger(model(ATTENTION), run, layer=0).ledger or ()
    kept = [row for row in rows if "selective" in row.reason]
    assert {row.module.rpartition(".")[2] for row in kept} == {"self_attn", "up_proj"}
    said = estimate.estimate(model(ATTENTION), run)
    everything = estimate.ledger(model(ATTENTION), run).ledger or ()
    assert said.estimates.autograd.saved_bytes == sum(row.bytes * row.count for row in everything)


@pytest.mark.parametrize(
    ("words", "layer", "said"),
    [
        ("up_prj", ATTENTION, r"'up_prj'.*did you mean 'up_proj'\?.*q_proj"),
        ("linear_attn", DELTA, r"no output of 'linear_attn'.*fla.*can be kept: matmul, in_proj_qkv.*down_proj"),
        ("up_proj,input_layernorm", DELTA, "no output of 'input_layernorm'"),
        ("act_fn", ATTENTION, "no output of 'act_fn'"),
        ("attention", DELTA, "no attention can be kept"),
        ("core_attn", ATTENTION, "modules:core_attn"),
    ],
)
def test_what_cannot_be_kept_is_refused(words: str, layer: Layer, said: str) -> None:
    with pytest.raises(InputError, match=said):
        segmented(model(layer), Run(sequence_length=64), parse_policy(f"selective:{words}"))


def test_attention_of_a_hybrid_is_softmax_attention() -> None:
    """fla's delta rule is no op of the dispatcher: its layers are as under `layer`, and a note says so."""
    hybrid, run = model(DELTA, ATTENTION), Run(sequence_length=256, checkpoint=Selective(("attention",)))
    plain = segmented(hybrid, run, parse_policy("layer"))
    kept = segmented(hybrid, run, run.checkpoint)
    assert kept.layer_saved_bytes[0] == plain.layer_saved_bytes[0]
    assert kept.layer_saved_bytes[1] > plain.layer_saved_bytes[1]
    said = {note.code: note.message for note in estimate.estimate(hybrid, run).notes}
    assert "1 of 2 layers (delta)" in said["nothing-kept"]


def test_the_last_product_can_be_named() -> None:
    """It is never replayed, so to keep it costs its bytes and saves nothing."""
    small, run = model(ATTENTION), Run(sequence_length=256)
    plain, kept = (segmented(small, run, parse_policy(text)) for text in ("layer", "selective:down_proj"))
    assert kept.saved_bytes - plain.saved_bytes == 256 * 128 * 2
    assert kept.evaluation.cost == plain.evaluation.cost


def test_only_ops_that_are_listed_count_among_grouped_products() -> None:
    """`matmul` is no grouped product, and a menu offers none."""
    experts = Layer("moe", ATTENTION.mixer, Moe(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64))
    small, run = model(experts), Run(sequence_length=256)
    matmul, both = (segmented(small, run, parse_policy(f"selective:{w}")) for w in ("matmul", "matmul,grouped_matmul"))
    rows, width = 256 * 2, 2 * 64 + 128
    assert both.saved_bytes - matmul.saved_bytes == 2 * rows * width
    assert not any("experts" in words or "grouped_matmul" in words for words in profile_of(small, run).menus.sets(0))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_lists_of_kept_outputs_read_back(data: st.DataObject) -> None:
    what = data.draw(st.lists(st.sampled_from(["", "s", "a", "b"]), min_size=1, max_size=70))
    chosen = tuple((i, i) for i, kind in enumerate(what) if kind == "s")
    kept = [
        KeptOutputs((kind, "x"), tuple(i for i, k in enumerate(what) if k == kind)) for kind in "ab" if kind in what
    ]
    policy = Explicit(chosen, tuple(kept))
    if chosen or kept:
        assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    [
        *(
            "selective:",
            "selective:a,,b",
            "selective:a-b",
            "segments:0-1/a",
            "segments:/@1",
            "segments:/a@",
            "segments:/a@3..1",
        ),
        *(
            "segments:/a@1..9:0",
            "segments:/a@1/b@1",
            "segments:0-3/a@2",
            "segments:/a@1..99999999999",
            "segments:0..2,1",
        ),
    ],
)
def test_wrong_lists_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_policy(text)


def test_frozen_layers_below_have_nothing_to_keep() -> None:
    from actplan.training import Frozen

    small = model(*[ATTENTION] * 4)
    run = Run(sequence_length=128, frozen=Frozen(first_layers=2, parts=("embed_tokens",)))
    agrees(small, run, segmented(small, run, parse_policy("selective:attention,up_proj")))


def test_one_row_of_the_table_is_the_selective_policy() -> None:
    run = Run(sequence_length=128, checkpoint=Selective(("attention",)))
    table = {row.policy: row for row in estimate.estimate(model(*[ATTENTION] * 4), run).segmentations}
    chosen, layer = table["selective:attention"], table["layer"]
    assert chosen.recompute_flops_fraction < layer.recompute_flops_fraction
    for part in (chosen.textbook, chosen.autograd):
        assert part.peak_bytes == part.boundary_bytes + part.stored_bytes + part.working_bytes
    assert chosen.textbook.peak_bytes > layer.textbook.peak_bytes
