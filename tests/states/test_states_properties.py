"""What holds for every recipe: sums, monotonicity, a mesh of ones, sizes that do not divide."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actplan.basics.errors import InputError
from actplan.basics.units import BF16, FP32
from actplan.memory.states import (
    CATEGORIES,
    PHASES,
    PipelineSplit,
    States,
    Unit,
    chunk_layers,
    stage_chunks,
    states,
)
from actplan.model import QuantisedBase
from actplan.model.reading import load_model
from actplan.profile.measured import measure
from actplan.profile.parameter import Parameter
from actplan.training import Lora, Run
from actplan.training.mesh import Mesh
from actplan.training.optimizers import OPTIMIZERS, AdamW, Stepped
from actplan.training.recipe_run import under
from actplan.training.recipes import RECIPES, Offload, Recipe, load_recipe
from actplan.training.sharding import Ddp, Fsdp, MegatronDdp, Zero


def model(layers: int = 8, width: int = 256, *, tied: bool = False, experts: int = 0) -> tuple[Unit, ...]:
    """A small decoder, whole on every rank."""

    def parameter(name: str, *shape: int, expert: bool = False) -> Parameter:
        return Parameter(name, shape, BF16, expert, True)

    def layer(i: int) -> Unit:
        own = [parameter("input_layernorm.weight", width)]
        own += [parameter(f"self_attn.{p}_proj.weight", width, width) for p in "qkvo"]
        own += [parameter(f"mlp.{p}_proj.weight", 4 * width, width) for p in ("gate", "up")]
        own += [parameter(f"mlp.experts.{e}.weight", width, width, expert=True) for e in range(experts)]
        return Unit(f"layers.{i}", "layer", tuple(own))

    head = [parameter("norm.weight", width)] + ([] if tied else [parameter("lm_head.weight", 1000, width)])
    embedding = Unit("embedding", "embedding", (parameter("embed_tokens.weight", 1000, width),))
    return (embedding, *(layer(i) for i in range(layers)), Unit("head", "head", tuple(head)))


EVERY = [
    *RECIPES.values(),
    *(replace(RECIPES["bf16"], name=f"bf16-{n}", optimizer=o) for n, o in OPTIMIZERS.items()),
]
names = pytest.mark.parametrize("recipe", EVERY, ids=lambda r: r.name)


@names
@settings(max_examples=15, deadline=None)
@given(dp=st.sampled_from([1, 2, 3, 8]), pp=st.sampled_from([1, 2, 4]), steps=st.sampled_from([1, 4]))
def test_categories_sum_to_the_total(recipe: Recipe, dp: int, pp: int, steps: int) -> None:
    recipe = replace(recipe, accumulation_steps=steps)
    for stage in range(pp):
        found = states(model(tied=True), recipe, Mesh(dp=dp, pp=pp), stage=stage, boundary_bytes=4096)
        for phase in PHASES:
            for first in (False, True):
                parts = [found.bytes(c, phase, first_step=first) for c in CATEGORIES]
                assert sum(parts) == found.total_bytes(phase, first_step=first)
            for category in CATEGORIES:
                pooled = found.pooled_bytes(category, phase)
                assert 0 <= pooled <= found.bytes(category, phase)
            pooled = sum(found.pooled_bytes(category, phase) for category in CATEGORIES)
            assert pooled <= sum(pool.nbytes for pool in found.pools)
        assert all(isinstance(line.nbytes, int) and line.nbytes > 0 for line in found.lines)
        assert all(line.reason and line.source for line in found.lines)
        assert found.optimizer_first_step_bytes <= found.optimizer_bytes


@names
def test_a_mesh_of_ones_is_no_mesh(recipe: Recipe) -> None:
    assert states(model(), recipe, Mesh(1, 1, False, 1, 1, 1, 1, 1)) == states(model(), recipe)


@names
def test_more_data_ranks_never_cost_states(recipe: Recipe) -> None:
    found = [states(model(), recipe, Mesh(dp=dp)).static_bytes for dp in (1, 2, 4, 8, 16)]
    assert all(a >= b * 0.999 for a, b in pairwise(found))


@names
def test_more_layers_and_width_cost_more(recipe: Recipe) -> None:
    for phase in PHASES:
        found = [states(model(n), recipe, Mesh(dp=2)).total_bytes(phase) for n in (1, 2, 4, 8)]
        assert found == sorted(found)
        found = [states(model(width=w), recipe, Mesh(dp=2)).total_bytes(phase) for w in (64, 128, 256)]
        assert found == sorted(found)


@names
def test_pipeline_stages_hold_the_model_once(recipe: Recipe) -> None:
    """Their sum is the model, and a tied embedding once more."""
    plain = replace(recipe, sharding=Ddp())
    whole = states(model(), plain).parameters_bytes
    parts = [states(model(), plain, Mesh(pp=4), stage=s).parameters_bytes for s in range(4)]
    assert sum(parts) == whole
    assert parts[1] == parts[2] < parts[0]
    tied = [states(model(tied=True), plain, Mesh(pp=4), stage=s).parameters_bytes for s in range(4)]
    assert sum(tied) == whole  # the copy on the last stage is as large as the head it replaces


def test_zero_stages_are_ordered() -> None:
    found = [states(model(), load_recipe(f"zero-{n}"), Mesh(dp=8)).static_bytes for n in range(4)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4


def test_experts_are_sharded_over_their_own_ranks() -> None:
    dense, sparse = model(), model(experts=4)
    for dp, ep in ((8, 1), (8, 4)):
        mesh = Mesh(dp=dp, ep=ep)
        extra = (
            states(sparse, load_recipe("fsdp"), mesh).parameters_bytes
            - states(dense, load_recipe("fsdp"), mesh).parameters_bytes
        )
        assert extra == 8 * 4 * 256 * 256 * 4 // mesh.expert_data_ranks


def test_optimizer_in_backward_holds_one_gradient() -> None:
    recipe = replace(load_recipe("bf16"), optimizer_in_backward=True)
    found = states(model(), recipe)
    assert found.gradients_bytes == 1024 * 256 * 2  # the widest matrix
    assert found.bytes("gradients", "optimizer_step") == 0


def test_adamw_temporaries() -> None:
    matrices = [
        Stepped("a.weight", (10, 10), 100, FP32, FP32),
        Stepped("b.weight", (20, 10), 200, FP32, FP32),
    ]
    assert AdamW("foreach").step_bytes(matrices) == 4 * 300
    assert AdamW("loop").step_bytes(matrices) == 4 * 100 + 2 * 4 * 200  # the first one's quotient is held still
    assert AdamW("fused").step_bytes(matrices) == 0


def test_muon_leaves_embeddings_and_head_to_adamw() -> None:
    found = states(model(), load_recipe("fp32", "muon"))
    others = 2 * 1000 * 256 + 9 * 256
    matrices = states(model(), load_recipe("fp32")).parameters_bytes // 4 - others
    assert found.optimizer_bytes == 4 * (matrices + 2 * others)


def test_offload_moves_bytes_to_the_host() -> None:
    for recipe in (load_recipe("zero-3"), load_recipe("fsdp")):
        here = states(model(), recipe, Mesh(dp=4))
        moved = states(model(), replace(recipe, offload=Offload(parameters=True, optimizer=True)), Mesh(dp=4))
        assert moved.static_bytes == 0
        assert moved.host_bytes >= here.static_bytes * 0.999  # the device's allocator rounds each tensor up
        assert moved.communication_bytes("backward") == here.communication_bytes("backward")
    with pytest.raises(InputError, match="FSDP or ZeRO-3"):
        replace(load_recipe("bf16"), offload=Offload(parameters=True))


def test_ddp_buckets_copy_the_gradients() -> None:
    found = states(model(), load_recipe("bf16"), Mesh(dp=2))
    assert found.communication_bytes("backward") == found.gradients_bytes
    views = replace(load_recipe("bf16"), sharding=Ddp(bucket_view=True))
    assert states(model(), views, Mesh(dp=2)).communication_bytes("backward") == 0


LLAMA = load_model("llama-3.2-1b", preset=True, overrides=["num_layers=2"])
"""Hidden 2,048, 32 heads and 8 key and value heads of 64, 8,192 inside, 128,256 words, tied."""


def adapted(recipe: str, lora: Lora) -> States:
    run = under(Run(sequence_length=64, adapters=lora), load_recipe(recipe))
    return states(measure(LLAMA, run), load_recipe(recipe))


def test_lora_trains_only_adapters() -> None:
    found = adapted("lora", Lora(rank=8, targets=("q_proj", "v_proj")))
    adapters = 2 * 8 * ((2048 + 2048) + (2048 + 512))
    assert found.gradients_bytes == 4 * adapters
    assert found.optimizer_bytes == 8 * adapters + 512 * 2 * 2 * 2  # and a step counter for each matrix
    frozen = states(measure(LLAMA, Run(sequence_length=64)), load_recipe("bf16")).parameters_bytes
    assert found.parameters_bytes == frozen + 4 * adapters
    dora = adapted("lora", Lora(rank=8, targets=("q_proj", "v_proj"), dora=True))
    assert dora.gradients_bytes - found.gradients_bytes == 4 * 2 * (2048 + 512)
    with pytest.raises(InputError, match="q_proj"):
        adapted("lora", Lora(rank=8, targets=("q_prj",)))


def test_qlora_quantises_matrices_only() -> None:
    by_name = {line.name: line.nbytes for line in adapted("qlora", Lora(rank=8)).lines}
    counts = 2 * [2048 * 2048, 512 * 2048, 512 * 2048, 2048 * 2048, *[8192 * 2048] * 3]
    assert by_name["nf4-double base"] == sum(counts) // 2
    assert by_name["frozen weights"] == 4 * (128256 * 2048 + 5 * 2048)
    assert by_name["nf4-double scales"] == sum(QuantisedBase(nested=True).scale_bytes((n,)) for n in counts)


def test_pipeline_receive_buffers() -> None:
    """Two hidden states for each chunk that receives."""
    mesh = Mesh(pp=2, vpp=2)
    sizes = [
        states(model(), load_recipe("megatron-bf16"), mesh, stage=s, boundary_bytes=1000).communication_bytes(
            "after_step"
        )
        for s in (0, 1)
    ]
    assert sizes == [2 * 1000, 4 * 1000]


@pytest.mark.parametrize(
    ("layers", "mesh", "split", "expected"),
    [
        (12, Mesh(pp=4), None, ((3,), (3,), (3,), (3,))),
        (12, Mesh(pp=4, vpp=3), None, ((1, 1, 1),) * 4),
        (12, Mesh(pp=4), PipelineSplit(first=2, last=2), ((2,), (4,), (4,), (2,))),
        (11, Mesh(pp=4), PipelineSplit(last=2), ((3,), (3,), (3,), (2,))),
        (6, Mesh(pp=4, vpp=2), PipelineSplit(embedding=True, loss=True), ((0, 1), (1, 1), (1, 1), (1, 0))),
    ],
)
def test_layer_split(
    layers: int, mesh: Mesh, split: PipelineSplit | None, expected: tuple[tuple[int, ...], ...]
) -> None:
    """Megatron-LM, get_num_layers_to_build."""
    assert chunk_layers(layers, mesh, split) == expected
    units = [unit for s in range(mesh.pp) for c in stage_chunks(model(layers), mesh, s, split) for unit in c]
    assert sorted(u.name for u in units) == sorted(u.name for u in model(layers))


def test_interleaved_chunks_alternate() -> None:
    chunks = stage_chunks(model(), Mesh(pp=2, vpp=2), 1)
    assert [[u.name for u in chunk] for chunk in chunks] == [
        ["layers.2", "layers.3"],
        ["layers.6", "layers.7", "head"],
    ]


@pytest.mark.parametrize(
    ("recipe", "mesh", "split", "message"),
    [
        (load_recipe("bf16"), Mesh(pp=3), None, "8 layers cannot be divided into 3"),
        (
            load_recipe("bf16"),
            Mesh(pp=4, vpp=3),
            None,
            "the 2 layers of pipeline stage 0 cannot be divided into 3",
        ),
        (load_recipe("bf16"), Mesh(pp=4), PipelineSplit(first=3), "8 layers less 3 cannot be divided into 3"),
        (load_recipe("bf16"), Mesh(pp=2), PipelineSplit(loss=True), "counting embedding and loss, 9"),
        (
            replace(load_recipe("fsdp"), sharding=Fsdp(replicas=3)),
            Mesh(dp=8),
            None,
            "3 HSDP replicas do not divide 8",
        ),
        (
            replace(load_recipe("megatron-bf16-dist"), sharding=MegatronDdp(True, instances=3)),
            Mesh(dp=4),
            None,
            "3 distributed optimizer instances do not divide 4",
        ),
    ],
)
def test_sizes_that_do_not_divide(recipe: Recipe, mesh: Mesh, split: PipelineSplit | None, message: str) -> None:
    with pytest.raises(InputError) as caught:
        states(model(), recipe, mesh, split=split)
    assert message in str(caught.value)


def test_zero3_gathers_within_its_limits() -> None:
    small = replace(load_recipe("zero-3"), sharding=Zero(3, max_live=10_000, persistence_threshold=0))
    line = next(x for x in states(model(), small, Mesh(dp=2)).lines if x.name == "gathered weights")
    assert line.high is not None
    assert line.nbytes <= line.high


def test_gradient_accumulation_keeps_gradients_through_the_forward() -> None:
    once: States = states(model(), load_recipe("bf16"))
    many = states(model(), replace(load_recipe("bf16"), accumulation_steps=4))
    assert once.bytes("gradients", "forward_loss") == 0
    assert many.bytes("gradients", "forward_loss") == once.gradients_bytes


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'megatron-bf16'"):
        load_recipe("megatron-bf1")
    with pytest.raises(InputError, match="did you mean 'adamw8bit'"):
        load_recipe("bf16", "adam8bit")
