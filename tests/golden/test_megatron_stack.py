"""Megatron-Core with Transformer Engine: every layer's saved bytes and both peaks, against the framework run on fake
tensors; Korthikanti et al.'s formulas, from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_harness import refused, result
from megatron_records import RECORDS, VARIANTS, Args, model_of, place, run_of, traced
from msgspec.structs import replace

from actplan.answers import budget_of
from actplan.autograd import Tape
from actplan.memory.setup import Setup
from actplan.profile import segmented
from actplan.stacks import stack_of
from actplan.stacks.walking import Walk
from actplan.training.policies import EveryK, EveryLayer, FirstN, Layers, Modules, NoCheckpoint, Policy

PIPELINED = {name for name, record in RECORDS.items() if record["args"]["pp"] > 1}


def walked(args: Args, *, policy: Policy | None = None, in_place: bool = False) -> Walk:
    """Under a dispatch mode, as the records were made, gradients are added out of place."""
    model, run = model_of(args), run_of(args)
    chosen = run.checkpoint if policy is None else policy
    segments = chosen.segments(Layers(model.num_layers, 1, [0] * model.num_layers))
    return stack_of(run).walk(model, run, segments, tape=Tape(in_place=in_place))


def saved(walk: Walk) -> dict[str, int]:
    """Bytes of each layer and of each module outside of them."""
    found: dict[str, int] = {}
    for row in walk.tape.ledger:
        if row.owner is None and row.nbytes:
            found[place(row.module)] = found.get(place(row.module), 0) + row.nbytes * row.count
    return found


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_variants(name: str) -> None:
    record, found = VARIANTS[name], walked(VARIANTS[name]["args"])
    assert saved(found) == traced(record)
    assert found.end_forward_bytes == pytest.approx(record["end_forward_bytes"], rel=5e-4)
    assert found.peak_forward_bytes == pytest.approx(record["peak_forward_bytes"], rel=2e-3)
    assert found.peak_backward_bytes == pytest.approx(record["peak_backward_bytes"], rel=5e-4)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_saved_bytes_of_each_layer(name: str) -> None:
    found = saved(walked(RECORDS[name]["args"]))
    if RECORDS[name]["args"]["stage"] == "middle":
        found.pop("embedding", None)  # a stage in the middle has none
    assert found == traced(RECORDS[name])


@pytest.mark.parametrize("name", sorted(RECORDS.keys() - PIPELINED))
def test_peaks(name: str) -> None:
    record, found = RECORDS[name], walked(RECORDS[name]["args"])
    assert found.end_forward_bytes == pytest.approx(record["end_forward_bytes"], rel=5e-5)
    assert found.peak_forward_bytes == pytest.approx(record["peak_forward_bytes"], rel=2e-4)
    assert found.peak_backward_bytes == pytest.approx(record["peak_backward_bytes"], rel=2e-4)


@pytest.mark.parametrize(("name", "stage"), [(name, RECORDS[name]["args"]["stage"]) for name in sorted(PIPELINED)])
def test_pipeline_stages(name: str, stage: str) -> None:
    """Micro-batches in flight of a stage before the last, in the budget's activations."""
    record = RECORDS[name]
    args = {**record["args"], "pp": 1, "no_logits": False}
    run = run_of(args)
    run = replace(run, mesh=replace(run.mesh, pp=record["args"]["pp"]))
    found, _ = budget_of(model_of(args), run, Setup(recipe="megatron-bf16"))
    phases = {phase.phase: phase.activations_bytes for phase in found.stages[0 if stage == "first" else 2].phases}
    assert phases["forward_loss"] == pytest.approx(record["peak_forward_bytes"], rel=1e-6)
    assert phases["backward"] == pytest.approx(record["peak_backward_bytes"], rel=1e-6)


CHAINED = ["llama8b-te-nologits-full", "gpt3-6.7b-local-tp4-sp-nologits-nogradfusion", "gpt2xl-te-unfused"]
POLICIES = [NoCheckpoint(), EveryLayer(), EveryK(2), EveryK(3), FirstN(2), Modules(("core_attn", "mlp"))]
KEPT = [
    name
    for name, record in RECORDS.items()
    if not record["args"]["experts"] and not record["args"]["mask"] and record["args"]["stage"] != "middle"
]


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_from_step_to_step(name: str) -> None:
    """Workspaces, dummy gradients, Megatron's buffer; without rotary tables and offsets, which are small and made
    here by no op."""
    tables = ("cat", "arange", "index_select", "_to_copy", "cos", "sin", "floor_divide", "triu")
    known = [size for what, size in RECORDS[name]["persistent"] if not any(f"aten.{op}" in what for op in tables)]
    caches: dict[str, int] = {}
    for (_stage, cache), size in walked(RECORDS[name]["args"]).tape.caches.items():
        caches[cache] = max(size, caches.get(cache, 0))
    assert sum(caches.values()) == pytest.approx(sum(known), rel=0.001)


@pytest.mark.parametrize("name", CHAINED)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_chain_is_the_walk(name: str, policy: Policy) -> None:
    args = RECORDS[name]["args"]
    model, run = model_of(args), replace(run_of(args), checkpoint=policy)
    segments = policy.segments(Layers(model.num_layers, 1, [0] * model.num_layers))
    whole, chain = stack_of(run).walk(model, run, segments), segmented(model, run, policy)
    assert chain.end_forward_bytes == whole.end_forward_bytes
    assert chain.peak_forward_bytes == whole.peak_forward_bytes
    assert chain.peak_backward_bytes == whole.peak_backward_bytes


# --- from outside ---------------------------------------------------------------------------------------------

HIDDEN, HEADS, SEQUENCE, BATCH = 6144, 48, 2048, 4
SPEC = f"""
name: gpt
hidden_size: {HIDDEN}
vocab_size: 51200
layers: 2 x full_attention
norm: layer
residual: {{dropout: 0.1}}
embedding: {{max_position_embeddings: {SEQUENCE}, dropout: 0.1}}
attention: {{num_attention_heads: {HEADS}, num_key_value_heads: {HEADS}, head_dim: 128, dropout: 0.1, qkv_bias: true,
  out_bias: true, rope: false}}
mlp: {{intermediate_size: {4 * HIDDEN}, activation: gelu, bias: true, gated: false}}
"""
STATISTICS = 16
"""Bytes a token of fp32 statistics that two LayerNorms keep, and the paper leaves out."""


@pytest.mark.parametrize(
    ("options", "hidden_part", "attention_part"),
    [
        ((), 34, 5),
        (("--tp", "8"), 10 + 24 / 8, 5 / 8),
        (("--tp", "8", "--sp"), 34 / 8, 5 / 8),
        (("--tp", "8", "--sp", "--checkpoint", "modules:core_attn"), 34 / 8, 0),
        (("--checkpoint", "layer"), 2, 0),
    ],
    ids=["one GPU", "tensor", "sequence", "selective", "full"],
)
def test_korthikanti(tmp_path: Path, options: tuple[str, ...], hidden_part: float, attention_part: float) -> None:
    """Korthikanti et al. 2022 (arXiv 2205.05198), table 2: bytes of activations a layer. Attention as there, its
    products in torch (equation 1's 5 · a · s / h)."""
    spec = tmp_path / "gpt.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    found = result(
        *("estimate", "--model", str(spec), "--stack", "megatron", "--stack-set", "transformer_impl=local"),
        *("--seq", str(SEQUENCE), "--batch", str(BATCH), *options),
    )
    sbh = SEQUENCE * BATCH * HIDDEN
    divided = 8 if "--sp" in options else 1
    statistics = 0 if "layer" in options else STATISTICS * SEQUENCE * BATCH // divided
    expected = sbh * (hidden_part + attention_part * HEADS * SEQUENCE / HIDDEN) + statistics
    assert found["estimates"]["autograd"]["layer_saved_bytes"][1] == expected


@pytest.mark.parametrize(("preset", "limit"), [("llama-3-8b", "14GiB"), ("qwen3-30b-a3b", "23GiB")])
def test_a_plan_is_one_of_megatrons(preset: str, limit: str) -> None:
    """Uniform, block or selective, what selective runs again by Megatron's own names."""
    options = ("--preset", preset, "--stack", "megatron", "--seq", "4096", "--batch", "1")
    found = result("plan", *options, "--limit", limit)["plan"]
    policy = found["policy"]
    assert policy == ("first:13" if preset == "llama-3-8b" else "modules:moe_act,layernorm")
    again = result("estimate", *options, "--checkpoint", policy)
    assert again["peak"]["bytes"] == found["peak_bytes"]


def test_a_plan_for_others_is_an_error() -> None:
    said = refused("plan", "--preset", "llama-3-8b", "--stack", "megatron", "--limit", "14GiB", "--only", "hf")
    assert "--only: --stack megatron does not run plans for hf; allowed: megatron" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--attention", "sdpa"), "--attention: --stack megatron has no attention sdpa; allowed: cudnn, flash, eager"),
        (("--loss", "fused"), "--loss: --loss fused is not Megatron's"),
        (("--kernels", "liger"), "--kernels: --stack megatron has no kernels liger"),
        (("--checkpoint", "segments:0-2"), "--checkpoint: Megatron-Core does not recompute so"),
        (("--checkpoint", "modules:self_attn"), "no part 'self_attn' to recompute"),
        (("--stack-set", "transformer_imp=local"), "did you mean 'transformer_impl'?"),
        (("--stack-set", "transformer_impl=locale"), "transformer_impl: invalid enum value 'locale'"),
        (("--hold-logits",), "--hold-logits: not planned with --stack megatron"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_megatron_does_not_do_is_an_error(options: tuple[str, ...], said: str) -> None:
    assert said in refused("estimate", "--preset", "llama-3-8b", "--stack", "megatron", *options)
