"""The whole budget of a rank: sums, phases, pipeline stages, and that every axis is monotone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from actplan.basics.errors import InputError
from actplan.memory.budget import Job, budget
from actplan.model import Model
from actplan.model.reading import load_model
from actplan.profile import profile_of
from actplan.report import Budget
from actplan.training import Run
from actplan.training.mesh import Mesh
from actplan.training.policies import parse_policy
from actplan.training.recipes import RECIPES, load_recipe

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "loss", "workspace", "communication")
PLAIN = sorted(name for name, recipe in RECIPES.items() if recipe.base is None and "lora" not in name)


def small(layers: int = 8) -> Model:
    return load_model("llama-3.2-1b", preset=True, overrides=[f"num_layers={layers}", "hidden_size=512"])


MODEL = small()


def found(run: Run, recipe: str = "bf16", model: Model = MODEL, microbatches: int | None = None) -> Budget:
    return budget(profile_of(model, run), Job(recipe=load_recipe(recipe), microbatches=microbatches))


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    tp = draw(st.sampled_from([1, 2, 4]))
    return Mesh(
        dp=draw(st.sampled_from([1, 2, 8])),
        tp=tp,
        sp=tp > 1 and draw(st.booleans()),
        cp=draw(st.sampled_from([1, 2])),
        pp=draw(st.sampled_from([1, 2, 4])),
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    return Run(
        sequence_length=draw(st.integers(4, 64)) * 8,
        micro_batch_size=draw(st.integers(1, 3)),
        loss=draw(st.sampled_from(["naive", "fused"])),
        checkpoint=parse_policy(draw(st.sampled_from(["none", "layer", "every:2", "first:3"]))),
        mesh=draw(meshes()),
    )


@given(runs(), st.sampled_from(PLAIN))
@SLOW
def test_categories_sum_to_the_total_of_every_phase(run: Run, recipe: str) -> None:
    try:
        said = found(run, recipe)
    except InputError:
        assume(False)
    for phase in said.phases:
        sizes = [getattr(phase, f"{name}_bytes") for name in CATEGORIES]
        assert all(size >= 0 for size in sizes)
        assert phase.total_bytes == sum(sizes)
        assert phase.first_step_total_bytes <= phase.total_bytes
    assert said.total_bytes == max(phase.total_bytes for phase in said.phases)
    assert said.total_bytes <= said.reserved_bytes.low <= said.reserved_bytes.high
    assert said.device_bytes.low == said.reserved_bytes.low + said.framework_bytes.low


@given(runs(), st.sampled_from(["bf16", "fsdp", "megatron-bf16-dist"]))
@SLOW
def test_more_of_anything_needs_no_less(run: Run, recipe: str) -> None:
    here = found(run, recipe).total_bytes
    longer = msgspec.structs.replace(run, sequence_length=2 * run.sequence_length)
    larger = msgspec.structs.replace(run, micro_batch_size=run.micro_batch_size + 1)
    assert found(longer, recipe).total_bytes >= here
    assert found(larger, recipe).total_bytes >= here


@pytest.mark.parametrize("degree", ["tp", "cp", "pp"])
@pytest.mark.parametrize("recipe", ["bf16", "megatron-bf16"])
def test_every_degree_divides(degree: str, recipe: str) -> None:
    totals = [
        found(Run(sequence_length=2048, mesh=Mesh(**{degree: n})), recipe, microbatches=1).total_bytes
        for n in (1, 2, 4)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > totals[-1]


@pytest.mark.parametrize("recipe", ["fsdp", "zero-1", "zero-3", "megatron-bf16-dist"])
def test_data_ranks_divide_what_is_sharded(recipe: str) -> None:
    totals = [found(Run(sequence_length=256, mesh=Mesh(dp=n)), recipe).total_bytes for n in (2, 4, 16)]
    assert totals == sorted(totals, reverse=True)


def test_a_mesh_of_ones_is_no_mesh() -> None:
    assert found(Run(sequence_length=512, mesh=Mesh(dp=1, tp=1, cp=1, pp=1))) == found(Run(sequence_length=512))


def test_the_first_pipeline_stage_holds_most_microbatches_and_the_last_the_loss() -> None:
    said = found(Run(sequence_length=1024, mesh=Mesh(pp=4)), "megatron-bf16")
    assert [stage.in_flight for stage in said.stages] == [4, 3, 2, 1]
    assert [(s.first_layer, s.last_layer) for s in said.stages] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    totals = [stage.total_bytes for stage in said.stages]
    assert totals[1] > totals[2]
    assert said.stage == max(range(4), key=lambda i: totals[i])


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "zbv", "dualpipev", "interleaved-zb", "gpipe", "1f1b"])
@pytest.mark.parametrize("policy", ["none", "layer"])
def test_every_schedule_s_stages_hold_the_whole_model(schedule: str, policy: str) -> None:
    folded = schedule in ("zbv", "dualpipev")
    mesh = Mesh(pp=2, vpp=2 if folded or schedule == "interleaved-zb" else 1)
    run = Run(sequence_length=1024, mesh=mesh, checkpoint=parse_policy(policy))
    said = budget(profile_of(MODEL, run), Job(recipe=load_recipe("megatron-bf16"), schedule=schedule))
    assert said.schedule == schedule
    spans = [span for s in said.stages for span in ([(s.first_layer, s.last_layer)] if s.chunks is UNSET else s.chunks)]
    assert sorted(i for first, last in spans for i in range(first, last + 1)) == list(range(MODEL.num_layers))
    assert folded == ((0, 1) in spans and said.stages[0].last_layer == MODEL.num_layers - 1)
    for phase in said.phases:
        sizes = [getattr(phase, f"{name}_bytes") for name in CATEGORIES]
        assert phase.total_bytes == sum(sizes)


def test_what_waits_for_weights_is_the_inputs_and_output_gradients_of_linears() -> None:
    """Counted by hand for a Llama: q, k, v share an input, gate and up another; each product has its own gradient."""
    run = Run(sequence_length=1024, loss="none", mesh=Mesh(pp=4))
    said = budget(profile_of(MODEL, run), Job(recipe=load_recipe("megatron-bf16"), schedule="zb-h1"))
    attention, mlp = MODEL.layers[0].mixer, MODEL.layers[0].mlp
    query = attention.num_attention_heads * attention.head_dim
    key = attention.num_key_value_heads * attention.head_dim
    inputs = MODEL.hidden_size + query + MODEL.hidden_size + mlp.intermediate_size
    gradients = query + 2 * key + MODEL.hidden_size + 2 * mlp.intermediate_size + MODEL.hidden_size
    layers = MODEL.num_layers // 4
    for stage, part in enumerate(said.stages[:-1]):
        owed = 0 if part.weights_owed is UNSET else part.weights_owed.bytes
        assert owed == stage * layers * (inputs + gradients) * 1024 * 2


@given(runs(), st.sampled_from(["zb-h1", "zb-h2"]))
@SLOW
def test_zero_bubble_needs_no_less_than_1f1b_on_the_first_stage(run: Run, schedule: str) -> None:
    run = replace(run, mesh=Mesh(pp=4))
    job = Job(recipe=load_recipe("megatron-bf16"))
    plain = budget(profile_of(MODEL, run), job)
    split = budget(profile_of(MODEL, run), replace(job, schedule=schedule))
    assert split.stages[0].total_bytes >= plain.stages[0].total_bytes


def test_terms_that_never_live_at_once_are_not_added() -> None:
    """With layers checkpointed the loss is gone when a layer is recomputed."""
    run = Run(sequence_length=4096, checkpoint=parse_policy("layer"))
    said = found(run)
    backward = next(phase for phase in said.phases if phase.phase == "backward")
    about = profile_of(MODEL, run).under(run.checkpoint)
    if about.evaluation.backward_stage <= MODEL.num_layers:
        assert backward.loss_bytes == 0
    step = next(phase for phase in said.phases if phase.phase == "optimizer_step")
    assert (step.activations_bytes, step.loss_bytes) == (0, 0)


def test_a_7b_model_in_pure_bf16_peaks_in_the_step() -> None:
    """Multi-tensor AdamW needs one more parameter-sized buffer (torch/optim/adam.py, _multi_tensor_adam)."""
    model = load_model("llama-2-7b", preset=True)
    run = Run(sequence_length=2048, checkpoint=parse_policy("layer"), loss="fused")
    said = budget(profile_of(model, run), Job(recipe=load_recipe("bf16")))
    assert said.peak_phase == "optimizer_step"
    step = said.phases[-1]
    weights = 6_738_415_616 * 2
    assert step.parameters_bytes == step.gradients_bytes == weights
    assert step.optimizer_bytes == 2 * weights
    assert weights <= step.workspace_bytes < weights * 1.01


def test_sizes_that_do_not_divide_are_named() -> None:
    with pytest.raises(InputError, match=r"--tp: .*32.* cannot be divided by 3"):
        found(Run(sequence_length=512, mesh=Mesh(tp=3)))
    with pytest.raises(InputError, match="8 layers cannot be divided into 3"):
        found(Run(sequence_length=512, mesh=Mesh(pp=3)))
    with pytest.raises(InputError, match=r"--cp: the sequence length \(1,000\) cannot be divided by 16"):
        found(Run(sequence_length=1000, mesh=Mesh(cp=16)))


def test_what_is_reduced_at_the_end_is_not_there_at_the_loss() -> None:
    """FSDP's buffers of the reduction exist while layers run backward, the root's when they are through."""
    run = Run(sequence_length=2048, mesh=Mesh(dp=8))
    said = found(run, "fsdp")
    lines = {line.name: line for line in said.lines}
    backward = next(phase for phase in said.phases if phase.phase == "backward")
    assert backward.loss_bytes > 0
    assert lines["reduce-scatter buffers"].moments == ("layers",)
    assert lines["root's reduce-scatter buffer"].moments == ("end",)
    assert backward.communication_bytes == lines["gathered root"].bytes + lines["gathered last layer"].bytes


@pytest.mark.parametrize("policy", ["layer", "every:2", "first:3", "selective:attention"])
def test_without_a_recipe_in_the_way_the_step_is_the_estimate(policy: str) -> None:
    """Activations, loss and gradients of a forward are the estimate's peak of the forward."""
    run = Run(sequence_length=1024, checkpoint=parse_policy(policy))
    about = profile_of(MODEL, run)
    chosen = about.under(run.checkpoint)
    forward = found(run).phases[0]
    assert forward.activations_bytes + forward.loss_bytes == chosen.peak_forward_bytes


def test_boundaries_in_host_memory_leave_the_device() -> None:
    run = Run(sequence_length=4096, checkpoint=parse_policy("layer"), loss="fused")
    plain = budget(profile_of(MODEL, run), Job(recipe=load_recipe("bf16")))
    moved = budget(profile_of(MODEL, run), Job(recipe=load_recipe("bf16"), offload_activations=True))
    boundary = 4096 * 512 * 2
    assert moved.host_bytes == 8 * boundary
    forward = (plain.phases[0].activations_bytes, moved.phases[0].activations_bytes)
    assert 0 < forward[0] - forward[1] <= 8 * boundary
    none = msgspec.structs.replace(run, checkpoint=parse_policy("none"))
    same = budget(profile_of(MODEL, none), Job(recipe=load_recipe("bf16"), offload_activations=True))
    assert same.total_bytes == budget(profile_of(MODEL, none), Job(recipe=load_recipe("bf16"))).total_bytes
