"""torchtitan's TOML: torchtitan/config/job_config.py, models/*/infra/parallelize.py at d0e2545 (0.2, October 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import Fields, Inert, shown
from .files import Source
from .reading import Reading

INERT = Inert(
    """job profiling metrics lr_scheduler checkpoint comm memory_estimation fault_tolerance validation experimental
    debug model.hf_assets_path model.tokenizer_path model.print_after_conversion training.dataset
    training.dataset_path training.max_norm training.steps training.gc_freq training.gc_debug training.seed
    training.deterministic training.debug_moe_force_load_balance optimizer.lr optimizer.beta1 optimizer.beta2
    optimizer.eps optimizer.weight_decay compile.backend compile.components activation_checkpoint.early_stop
    activation_checkpoint.visualize_memory_budget_pareto parallelism.context_parallel_rotate_method
    parallelism.pipeline_parallel_schedule_csv training.warmup_steps""",
    r"(job|profiling|metrics|lr_scheduler|checkpoint|comm|memory_estimation|fault_tolerance|validation|experimental)\..*",
)
_JOB = "torchtitan/config/job_config.py"
_PARALLEL = "torchtitan/models/llama3/infra/parallelize.py"
SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "interleavedzerobubble": "zb-h1",
    "zbvzerobubble": "zbv",
    "loopedbfs": "looped-bfs",
    "dualpipev": "dualpipev",
}
LOOPED = ("interleaved1f1b", "interleavedzerobubble", "zbvzerobubble", "loopedbfs", "dualpipev")


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what a torchtitan configuration says."""
    reading = Reading(tool="torchtitan", files=(source.where,))
    fields = Fields(values, reading, source.where)
    model, training = fields.section("model"), fields.section("training")
    name, flavor = model.word("name", default="llama3"), model.word("flavor", default="debugmodel")
    model.told(f"the model {name} {flavor}")
    reading.model = f"{name} {flavor}"
    assets = str(model.values.get("hf_assets_path") or model.values.get("tokenizer_path") or "")
    reading.facts["model_names"] = [f"{name} {flavor}", assets.rstrip("/").rsplit("/", 1)[-1]]
    mesh = _mesh(fields)
    _sizes(training, fields, mesh)
    _types(training, model, fields)
    _recomputation(fields)
    _optimizer(fields)
    block = fields.section("compile")
    on = block.flag("enable") | training.flag("compile")
    parts = block.words("components") or ["model", "loss"]
    block.decide("compile", on, f"{_JOB} Compile.enable False")
    loss = "naive (compiled, vocab-parallel)" if on and "loss" in parts else "naive (vocab-parallel)"
    if not mesh["parallel_loss"]:
        loss = "naive (compiled)" if on and "loss" in parts else "naive"
    elif mesh["tp"] > 1:
        reading.note_default("loss", "vocabulary-sharded logits",
                             f"{_JOB} disable_loss_parallel False; {_PARALLEL} apply_tp")  # fmt: skip
    reading.set("loss", loss, "torchtitan/components/loss.py cross_entropy_loss on fp32 logits")
    reading.plain({"kernels": "native", "quantised": "none", "task": "pretrain", "extra_models": []})
    reading.set("attention", "flex" if "flex" in flavor.lower() else "sdpa", "the model's flavour")
    reading.set("packing", "packed", "torchtitan/datasets/hf_datasets.py: documents concatenated to seq_len")
    reading.plain({"padding": "max", "trainable": "all", "frozen": []})
    fields.finish(INERT)
    return reading


def _mesh(fields: Fields) -> dict[str, Any]:
    reading, block = fields.reading, fields.section("parallelism")
    degrees: dict[str, int] = {}
    for field, key in (("tp", "tensor_parallel_degree"), ("cp", "context_parallel_degree"),
                       ("pp", "pipeline_parallel_degree"), ("ep", "expert_parallel_degree")):  # fmt: skip
        degrees[field] = block.number(key, default=1, least=1) or 1
        block.decide(field, degrees[field], f"{_JOB} {key} default 1")
    etp = block.number("expert_tensor_parallel_degree", default=1, least=1) or 1
    if etp > 1:
        block.decide("etp", etp)
        if degrees["ep"] == 1:
            reading.contradictions.append(
                "expert_tensor_parallel_degree does nothing with expert_parallel_degree 1; experts are divided by tp"
            )
    block.told("1")
    reading.set("sp", degrees["tp"] > 1, f"{_PARALLEL} apply_tp SequenceParallel norms")
    if degrees["cp"] > 1:
        reading.set("cp_kind", "torch ring (allgather)", f"{_JOB} context_parallel_rotate_method allgather")
    for field, key in (("dp_replicate", "data_parallel_replicate_degree"), ("dp_shard", "data_parallel_shard_degree")):
        size = block.number(key, default=None, least=-1)
        flat = field == "dp_replicate" and size == 1 and degrees["tp"] > 1 and degrees["pp"] == 1
        if size is not None and (size > 1 or flat):  # one copy is worth a word where the mesh has two axes
            block.decide(field, size)
        block.told("derived from the number of ranks" if size == -1 else f"{field}: {shown(size)}")
    _shards(block, degrees["pp"])
    _pipeline(block, degrees["pp"])
    parallel = degrees["tp"] > 1 and not block.flag("disable_loss_parallel")
    block.told("loss: on the ranks' shares of the vocabulary" if parallel else "loss: on whole logits")
    if block.flag("enable_async_tensor_parallel"):
        reading.unreadable.append("enable_async_tensor_parallel true (symmetric-memory buffers)")
    block.told("asynchronous tensor parallelism")
    if block.flag("enable_compiled_autograd"):
        block.unplanned("compiled autograd", "enable_compiled_autograd")
    block.told("eager autograd")
    return {**degrees, "parallel_loss": parallel}


def _shards(block: Fields, pp: int) -> None:
    reading = block.reading
    reshard = block.word("fsdp_reshard_after_forward", default="default")
    stays = reshard == "never" or (reshard == "default" and pp > 1)
    block.told(f"reshard: {reshard}")
    replicate = reading.read.get("dp_replicate", 1)
    sharded = block.values.get("data_parallel_shard_degree", -1) != 1 or reading.read["cp"] > 1
    if not sharded:
        reading.set("sharding", "ddp" if replicate > 1 else "none")
        return
    name = "fsdp2 (parameters stay gathered after forward: like zero-2)" if stays else "fsdp2"
    source = (
        f"{_PARALLEL} apply_fsdp: default policy is reshard_after_forward = not pp_enabled"
        if pp > 1
        else (f"{_PARALLEL} apply_fsdp, policy default: the last layers are kept")
    )
    reading.set("sharding", name, source)
    reading.more["reshard"] = "never" if stays else "always" if reshard == "always" else "default"


def _pipeline(block: Fields, pp: int) -> None:
    reading = block.reading
    schedule = block.word("pipeline_parallel_schedule", default="1F1B")
    low = schedule.lower()
    block.told(f"pipeline: {schedule}")
    layers = block.number("pipeline_parallel_layers_per_stage", default=None, least=1)
    block.told("pipeline: layers of a stage")
    first = block.number("pipeline_parallel_first_stage_less_layers", default=1)
    last = block.number("pipeline_parallel_last_stage_less_layers", default=1)
    block.told("pipeline: what embedding and head count as")
    block.unplanned("stages as lists of modules", "module_fqns_per_model_part", "pipeline_parallel_split_points")
    micro = block.number("pipeline_parallel_microbatch_size", default=1, least=1)
    block.told("micro_batch_size of a pipeline")
    reading.facts["pp_micro"] = micro
    reading.set("vpp", 2 if pp > 1 and low in LOOPED else 1, f'{_JOB} pipeline_parallel_schedule default "1F1B"')
    if pp > 1:
        reading.more["pp_schedule"] = SCHEDULES.get(low, low)
        reading.unreadable.append(
            f"first and last stage hold fewer layers (pipeline_parallel_first_stage_less_layers {first}, last {last})"
        )
        if layers:
            reading.facts["layers_per_stage"] = layers


def _sizes(training: Fields, fields: Fields, mesh: Mapping[str, Any]) -> None:
    reading = fields.reading
    training.decide("sequence_length", training.number("seq_len", default=2048, least=1), f"{_JOB} seq_len 2048")
    local = training.number("local_batch_size", "batch_size", default=8, least=1) or 8
    micro = local
    steps = 1
    if mesh["pp"] > 1:
        micro = min(reading.facts["pp_micro"] or 1, local)
        steps = max(local // micro, 1)
        source = f"{_JOB} pipeline_parallel_microbatch_size default 1"
        reading.note_default("microbatches", f"local_batch_size / pipeline_parallel_microbatch_size = {steps}", source)
    training.decide("micro_batch_size", micro, f"{_JOB} local_batch_size 8")
    whole = training.number("global_batch_size", default=-1, least=-1)
    if whole and whole > 0:
        training.decide("global_batch_size", whole)
    training.told("accumulation: none")
    if not whole or whole <= 0:
        source = f"{_JOB} Training.global_batch_size; torchtitan/train.py"
        reading.set(
            "microbatches", steps, "1: global_batch_size -1 = local_batch_size x data-parallel degree, " + source
        )


def _types(training: Fields, model: Fields, fields: Fields) -> None:
    reading = fields.reading
    kept = training.word("dtype", default="float32")
    runs = training.word("mixed_precision_param", default="bfloat16")
    training.word("mixed_precision_reduce", default="float32")
    half = runs == "bfloat16"
    bf16 = kept == "bfloat16"
    precision = "bf16 weights" if bf16 else "autocast bf16" if half else "fp32"
    source = f"{_JOB} training.dtype float32, mixed_precision_param bfloat16, mixed_precision_reduce float32"
    training.decide("precision", precision, source)
    held = "bf16" if bf16 else "fp32"
    shards = " (sharded)" if reading.read["sharding"].startswith("fsdp2") else ""
    host = training.flag("enable_cpu_offload")
    training.decide("offload", ["params", "grads", "optimizer"] if host else [], f"{_JOB} enable_cpu_offload False")
    detail = {
        "trainable": held + shards,
        "compute": "bf16" if half or bf16 else "fp32",
        "master": "same tensor",
        "grads": f"{held} (reduced in fp32)" if shards else held,
        "states": held + (" on CPU" if host else ""),
    }
    converters = model.words("converters")
    model.told("converters: " + (", ".join(converters) or "none"))
    block = fields.section("quantize")
    linear = block.section("linear")
    eight = linear.section("float8")
    if "float8" in converters or "quantize.linear.float8" in converters:
        gathers = eight.flag("enable_fsdp_float8_all_gather")
        recipe = eight.word("recipe_name") or "tensorwise"
        eight.decide("fp8", {"backend": "torchao", "recipe": recipe, "fsdp_all_gather": gathers})
        if "recipe_name" not in eight.values:
            reading.note_default("fp8.recipe", "tensorwise", f"{_JOB} Float8Linear.recipe_name None")
        filtered = eight.words("filter_fqns")
        detail["compute"] = f"fp8 matmul (torchao {recipe})" + (f" except {', '.join(filtered)}" if filtered else "")
        detail["compute"] += ", bf16 elsewhere"
        if eight.flag("precompute_float8_dynamic_scale_for_fsdp"):
            reading.unreadable.append("precompute_float8_dynamic_scale_for_fsdp true")
        eight.told("fp8")
    elif converters:
        model.unplanned("weights in another format", "converters")
    why = "does nothing without the converter in model.converters"
    for part in (eight, linear.section("mx"), block.section("grouped_mm")):
        part.ignore(why, *(key for key in part.values if key not in part.asked))
    for old in ("float8", "mx"):
        part = fields.section(old)
        part.ignore(why, *part.values)
    reading.read["precision_detail"] = detail


def _recomputation(fields: Fields) -> None:
    reading, block = fields.reading, fields.section("activation_checkpoint")
    mode = block.word("mode", default="selective")
    option = block.values.get("selective_ac_option", "2")
    if mode == "full":
        block.decide("checkpoint", "layer")
        block.ignore(
            "mode full wins: it is not read", "selective_ac_option", "per_op_sac_force_recompute_mm_shapes_by_fqns"
        )
    elif mode == "none":
        block.decide("checkpoint", "none")
        block.ignore("mode is none", "selective_ac_option", "per_op_sac_force_recompute_mm_shapes_by_fqns")
    elif mode == "selective":
        block.get("selective_ac_option")
        word = str(option)
        policy = f"every:{word}" if word.isdigit() else "selective-op (every second mm recomputed)"
        block.decide("checkpoint", policy, f'{_JOB} activation_checkpoint.mode "selective", selective_ac_option "2"')
        if not word.isdigit():
            reading.note_default(
                "checkpoint",
                "per-op policy",
                f"torchtitan/distributed/activation_checkpoint.py _apply_op_sac; saved ops in {_PARALLEL}",
            )
            shapes = block.words("per_op_sac_force_recompute_mm_shapes_by_fqns")
            if shapes and shapes != ["moe.router.gate"]:
                reading.unreadable.append(f"products that are run again always: {', '.join(shapes)}")
            block.told("products of these modules are run again")
    else:
        block.decide("checkpoint", mode)
        block.unplanned("a memory budget is the compiler's partitioner", "memory_budget", "mode")
    block.ignore("is not read in this mode", "memory_budget")


def _optimizer(fields: Fields) -> None:
    reading, block = fields.reading, fields.section("optimizer")
    name = block.word("name", default="AdamW").lower()
    how = block.word("implementation", default="fused")
    block.decide("optimizer", {"adam": "adamw"}.get(name, name), f'{_JOB} Optimizer.name "AdamW"')
    reading.more["optimizer"] = {"fused": "adamw-fused", "for-loop": "adamw-loop"}.get(how, "adamw")
    inside = block.flag("early_step_in_backward")
    block.decide("optimizer_in_backward", inside, f"{_JOB} early_step_in_backward False")
