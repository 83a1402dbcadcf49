"""Quantised bases and checkpoints, as a user asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_harness import actplan, refused, result

GIB = 1 << 30
SMALL = ("--preset", "llama-3.2-1b", "--set", "num_layers=4", "--seq", "1k")
LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
GEMMA_12B = {
    "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 262208, "sliding_window": 1024,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip


def config(folder: Path, fields: dict[str, Any], **quantization: Any) -> str:
    more = {"quantization_config": quantization} if quantization else {}
    (folder / "config.json").write_text(json.dumps({**fields, **more}))
    return str(folder / "config.json")


def lines(found: Any) -> dict[str, int]:
    return {line["name"]: line["bytes"] for line in found["budget"]["lines"]}


def notes(found: Any) -> dict[str, str]:
    return {note["code"]: note["message"] for note in found["notes"]}


def linears(width: int, key_value: int, inner: int, layers: int) -> list[tuple[int, int]]:
    one = [(width, width), (key_value, width), (key_value, width), (width, width)]
    return layers * [*one, (inner, width), (inner, width), (width, inner)]


@pytest.mark.parametrize("word", ["nf4", "nf4-double", "fp4", "fp4-double", "int8"])
@pytest.mark.parametrize("recipe", ["lora", "qlora"])
def test_every_base_over_every_recipe_of_adapters(word: str, recipe: str) -> None:
    """Two weights a byte and a scale for 64 of them, in fp32 or in 8 bits; one byte a weight and a scale a row."""
    found = result("estimate", *SMALL, "--recipe", recipe, "--quantise", word)
    shapes = linears(2048, 512, 8192, 4)
    values, rows, blocks = sum(a * b for a, b in shapes), sum(a for a, _ in shapes), sum(a * b // 64 for a, b in shapes)
    by_name = lines(found)
    assert by_name[f"{word} base"] == (values if word == "int8" else values // 2)
    scales = {"int8": 4 * rows, "nf4": 4 * blocks + 28 * 64, "fp4": 4 * blocks + 28 * 64}
    double = blocks + sum(4 * -(-(a * b // 64) // 256) for a, b in shapes) + 28 * (64 + 1024 + 4)
    assert by_name[f"{word} scales"] == scales.get(word, double)
    rest = "fp32" if recipe == "qlora" else "bf16"
    assert found["run"]["quantised"] == f"{word}, the rest in {rest}"


def test_a_list_of_bases_is_swept() -> None:
    rows = result("sweep", *SMALL, "--recipe", "lora", "--quantise", "none,nf4,int8")["rows"]
    assert [row["quantised"] for row in rows] == ["none", "nf4", "int8"]
    assert rows[1]["total_bytes"] < rows[0]["total_bytes"]


def test_inputs_that_old_and_8_bit_products_keep() -> None:
    """q, k and v share one input, gate and up another, o and down have one each; checkpointing drops none of them."""
    plain = result("estimate", *SMALL, "--recipe", "lora", "--quantise", "nf4", "--checkpoint", "layer")
    for more in (("--quantise", "int8"), ("--quantise", "nf4", "--bitsandbytes", "0.43.1")):
        found = result("estimate", *SMALL, "--recipe", "lora", *more, "--checkpoint", "layer", "--input-require-grads")
        kept = 4 * 1024 * (2048 + 2048 + 2048 + 8192) * 2
        saved = found["estimates"]["autograd"]["saved_bytes"] - plain["estimates"]["autograd"]["saved_bytes"]
        assert saved == kept
        assert f"{kept / GIB:.2f} GiB in all layers" in notes(found)["quantised-inputs"]
    newer = result("estimate", *SMALL, "--recipe", "lora", "--quantise", "nf4", "--bitsandbytes", "0.43.2")
    assert "quantised-inputs" not in notes(newer)


def test_a_70b_base_in_shards_of_four_cards(tmp_path: Path) -> None:
    """axolotl #1717: 41 GiB of a base whole on each of four cards, a quarter of it in shards; scales stay whole."""
    path = config(tmp_path, LLAMA_70B)
    run = ("--model", path, "--dp", "4", "--lora-rank", "8", "--lora-targets", "all-linear", "--seq", "512")
    run = (*run, "--checkpoint", "layer")
    whole = result("estimate", *run, "--recipe", "qlora")
    values = sum(a * b for a, b in linears(8192, 1024, 28672, 80))
    assert lines(whole)["nf4-double base"] == values // 2
    assert "--recipe qlora-fsdp" in notes(whole)["replicated"]
    sharded = result("estimate", *run, "--recipe", "qlora-fsdp")
    assert lines(sharded)["nf4-double base"] == values // 8
    assert lines(sharded)["nf4-double scales"] == lines(whole)["nf4-double scales"]
    step = next(phase for phase in sharded["budget"]["phases"] if phase["phase"] == "optimizer_step")
    assert step["parameters_bytes"] / GIB == pytest.approx(41.1 / 4, rel=0.03)
    layer = sum(a * b for a, b in linears(8192, 1024, 28672, 1))
    adapters = 8 * sum(a + b for a, b in linears(8192, 1024, 28672, 1))
    assert lines(sharded)["all-gather buffer"] == layer // 2 + 2 * (adapters + 2 * 8192)
    assert "stay whole on every rank" in notes(sharded)["quantised-shards"]
    zero = result("estimate", *run, "--recipe", "zero-3", "--quantise", "nf4-double")
    assert lines(zero)["nf4-double base"] == values // 8
    assert "loads a quantised model whole on each rank" in notes(zero)["quantised-shards"]
    for recipe in ("fsdp", "fsdp-bf16"):
        found = result("estimate", *run, "--recipe", recipe, "--quantise", "nf4-double")
        assert lines(found)["nf4-double base"] == values // 8


def test_8_bits_in_shards_are_fsdps_alone() -> None:
    run = (*SMALL, "--dp", "4", "--lora-rank", "8", "--quantise", "int8")
    found = result("estimate", *run, "--recipe", "fsdp")
    values = sum(a * b for a, b in linears(2048, 512, 8192, 4))
    assert lines(found)["int8 base"] == values // 4
    assert "axolotl's patch only" in notes(found)["quantised-shards"]
    assert "ZeRO-3 divides packed weights of a floating type only" in refused("estimate", *run, "--recipe", "zero-3")
    assert lines(result("estimate", *run, "--recipe", "zero-2"))["int8 base"] == values


def test_an_8_bit_gemma_on_one_h100(tmp_path: Path) -> None:
    """unslothai/unsloth#2366: 14,000 tokens are the most."""
    path = config(tmp_path, GEMMA_12B)
    run = ("--model", path, "--recipe", "lora", "--quantise", "int8", "--lora-rank", "16", "--lora-targets")
    run = (*run, "all-linear", "--loss", "fused", "--checkpoint", "layer", "--gpu", "h100-80gb")
    for tokens, within in (("14000", True), ("16000", False)):
        fit = json.loads(actplan("estimate", *run, "--seq", tokens, "--format", "json").stdout)["fit"]
        # with room for what the allocator reserves at most
        assert (fit["needed_bytes"]["high"] <= fit["limit_bytes"]) is within


def test_experts_that_stay_unquantised_are_named() -> None:
    """axolotl #3439: 127 GiB of peak memory, 23 once experts are quantised; #3787 says 17 to 24."""
    run = ("--preset", "qwen3-30b-a3b", "--recipe", "qlora", "--lora-rank", "16", "--seq", "2048")
    run = (*run, "--checkpoint", "layer", "--gpu", "rtx-5090")
    done = actplan("estimate", *run, "--format", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    said, experts = notes(found)["unquantised-experts"], 48 * 128 * 3 * 768 * 2048
    assert (
        f"48 layers stay in fp32 (prepare_model_for_kbit_training makes them fp32), {4 * experts / GIB:.2f} GiB" in said
    )
    assert "the peak is 21.11 GiB in place of 115.18 GiB" in said
    assert any(remedy["change"] == "--quantise-experts" and remedy["fits"] for remedy in found["fit"]["remedies"])
    packed = result("estimate", *run, "--quantise-experts")
    assert 17 * GIB < packed["budget"]["total_bytes"] < 24 * GIB
    assert packed["fit"]["fits"] is True
    assert lines(packed)["nf4-double base"] > experts // 2
    assert "unquantised-experts" not in notes(packed)
    assert "a layer's are dequantised in its forward, up to 1.12 GiB" in notes(packed)["quantised-experts"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--quantise", "nf4"), "a base in nf4 is frozen: nothing would be trained; allowed: adapters on it"),
        (("--quantise", "nf5", "--lora-rank", "8"), "did you mean 'nf4'?"),
        (("--recipe", "qlora", "--quantise", "none"), "recipe qlora quantises its base"),
        (("--recipe", "lora", "--quantise-experts"), "--quantise-experts: no base is quantised"),
        (("--recipe", "qlora", "--quantise-experts"), "no layer of this model has experts"),
        (("--lora-rank", "8", "--bitsandbytes", "0.42.0"), "--bitsandbytes: no base is quantised"),
        (("--recipe", "qlora", "--bitsandbytes", "new"), "--bitsandbytes: 'new' is no release"),
        (("--recipe", "lora", "--quantise", "int8", "--bitsandbytes", "0.44.1"), "8-bit products before 0.45"),
        (("--recipe", "megatron-bf16", "--lora-rank", "8", "--quantise", "nf4"), "megatron-bf16 has no quantised base"),
        (("--recipe", "lora", "--quantise", "int8", "--pp", "2"), "is not planned on pipeline stages"),
    ],
)
def test_what_cannot_be_is_refused(more: tuple[str, ...], said: str) -> None:
    assert said in refused("estimate", *SMALL, *more)


def test_other_commands_know_the_base_too() -> None:
    rows = result("ledger", *SMALL, "--quantise", "int8", "--lora-rank", "8")["ledger"]
    assert any("on the function's context" in row["reason"] for row in rows)
    assert "nothing would be trained" in refused("plan", *SMALL, "--quantise", "nf4", "--limit", "20GiB")
    run = ("--quantise", "int8", "--lora-rank", "8", "--limit")
    assert result("plan", *SMALL, *run, "20GiB")["plan"]["feasible"] is True


def test_a_checkpoint_of_bitsandbytes_sets_the_base(tmp_path: Path) -> None:
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    path = config(tmp_path, QWEN3, **stored, bnb_4bit_compute_dtype="float16", bnb_4bit_use_double_quant=True)
    model = ("--model", path, "--seq", "1k")
    said = refused("estimate", *model)
    assert "a base in nf4-double is frozen" in said
    assert "--recipe qlora, or --lora-rank" in said
    assert "--quantise none" in said
    assert result("estimate", *model, "--lora-rank", "8")["run"]["quantised"] == "nf4-double, the rest in bf16"
    found = result("estimate", *model, "--recipe", "qlora")
    assert found["run"]["quantised"] == "nf4-double, the rest in fp32"
    assert "products are in fp16 (bnb_4bit_compute_dtype) and planned in bf16" in notes(found)["quantised-checkpoint"]
    assert "nf4-double base" in lines(result("estimate", *model, "--recipe", "lora"))
    assert "the checkpoint is quantised already" in refused(
        "estimate", *model, "--recipe", "lora", "--quantise", "int8"
    )
    plain = result("estimate", *model, "--quantise", "none")
    assert "quantised" not in plain["run"]
    assert "model.dequantize()" in notes(plain)["quantised-checkpoint"]


def test_modules_that_a_checkpoint_leaves_unquantised(tmp_path: Path) -> None:
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    skipped = ["lm_head", "model.layers.1.mlp", "model.layers.2.self_attn.q_proj"]
    path = config(tmp_path, QWEN3, **stored, bnb_4bit_compute_dtype="bfloat16", llm_int8_skip_modules=skipped)
    found = result("estimate", "--model", path, "--seq", "1k", "--recipe", "lora")
    layer = 1024 * (2048 + 1024 + 1024 + 2048) + 3 * 1024 * 3072
    assert lines(found)["nf4 base"] == (4 * layer - 3 * 1024 * 3072 - 1024 * 2048) // 2
    assert "quantised-checkpoint" not in notes(found)


def test_packed_weights_of_an_integer_type_stay_whole_under_fsdp(tmp_path: Path) -> None:
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}
    path = config(tmp_path, QWEN3, **stored, bnb_4bit_quant_storage="uint8")
    run = ("--model", path, "--seq", "1k", "--dp", "4", "--lora-rank", "8")
    found = result("estimate", *run, "--recipe", "fsdp")
    assert "which Accelerate excludes from FSDP" in notes(found)["quantised-shards"]
    assert lines(found)["fp4 base"] == 4 * (1024 * 6144 + 3 * 1024 * 3072) // 2
    assert "bnb_4bit_quant_storage" in refused("estimate", *run, "--recipe", "zero-3")


@pytest.mark.parametrize(
    ("method", "option"),
    [("fp8", "FineGrainedFP8Config"), ("mxfp4", "Mxfp4Config"), ("compressed-tensors", "CompressedTensorsConfig")],
)
def test_checkpoints_that_transformers_dequantises_are_planned_so(tmp_path: Path, method: str, option: str) -> None:
    model = ("--model", config(tmp_path, QWEN3, quant_method=method), "--seq", "1k")
    said = notes(result("estimate", *model))["quantised-checkpoint"]
    assert f"stored in {method} (quantization_config) and planned dequantised" in said
    assert f"{option}(dequantize=True)" in said
    plain = result("estimate", *model, "--set", "quantization_config=null", "--get", "estimates.autograd.saved_bytes")
    assert plain == result("estimate", *model, "--get", "estimates.autograd.saved_bytes")


@pytest.mark.parametrize(
    ("method", "recipe", "said"),
    [
        ("awq", "bf16", "can neither dequantise a checkpoint of this method nor train it but adapters on it"),
        ("gptq", "lora", "trains adapters on such weights as they are, with kernels that are not planned"),
        ("fp8", "lora", "trains adapters on such weights as they are, with kernels that are not planned"),
        ("nvfp4", "lora", "can neither dequantise a checkpoint of this method nor train it"),
        ("modelopt", "bf16", "knows no such method of quantisation"),
        ("fp8", "qlora", "the checkpoint is quantised already, by fp8"),
    ],
)
def test_checkpoints_that_are_not_trained_are_refused(tmp_path: Path, method: str, recipe: str, said: str) -> None:
    model = ("--model", config(tmp_path, QWEN3, quant_method=method), "--seq", "1k")
    message = refused("estimate", *model, "--recipe", recipe)
    assert said in message
    assert "--quantise none" in message or "quantization_config=null" in message
    dequantised = result("estimate", *model, "--recipe", recipe.removeprefix("q"), "--quantise", "none")
    assert "planned dequantised" in notes(dequantised)["quantised-checkpoint"]


def test_mxfp4_under_adapters_is_dequantised(tmp_path: Path) -> None:
    """Mxfp4HfQuantizer trains nothing as it is, so there is one way."""
    model = ("--model", config(tmp_path, QWEN3, quant_method="mxfp4"), "--seq", "1k")
    assert "Mxfp4Config" in notes(result("estimate", *model, "--recipe", "lora"))["quantised-checkpoint"]
