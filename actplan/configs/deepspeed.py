"""DeepSpeed's JSON: deepspeed/runtime/config.py, runtime/zero/config.py and offload_config.py, 0.19.8.

`auto` is filled by the trainer, never by DeepSpeed. The block `activation_checkpointing` configures DeepSpeed's own
checkpoint function and turns nothing on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..basics.errors import InputError
from .fields import Fields, Inert, shown
from .files import Source
from .precision import settle
from .reading import Reading

AUTO = "auto"
INERT = Inert(
    """scheduler gradient_clipping steps_per_print wall_clock_breakdown prescale_gradients cuda_visible_devices
    dump_state comms_logger comms_config monitor_config tensorboard wandb csv_monitor comet flops_profiler
    autotuning elasticity checkpoint data_types_checkpoint zero_allow_untested_optimizer seed memory_breakdown
    disable_allgather sparse_gradients gradient_predivide_factor dataloader_drop_last _comment hybrid_engine
    comment data_efficiency curriculum_learning nebula aio use_data_before_expert_parallelism data_sampling
    train_steps zero_optimization.allgather_partitions zero_optimization.reduce_scatter
    zero_optimization.contiguous_gradients zero_optimization.round_robin_gradients
    zero_optimization.ignore_unused_parameters zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.gather_16bit_weights_on_model_save zero_optimization.stage3_gather_fp16_weights_on_model_save
    zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint zero_optimization.legacy_stage1
    zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.log_trace_cache_warnings
    zero_optimization.override_module_apply zero_optimization.memory_efficient_linear
    zero_optimization.module_granularity_threshold zero_optimization.mics_hierarchical_params_gather
    fp16.loss_scale fp16.loss_scale_window fp16.initial_scale_power fp16.hysteresis fp16.min_loss_scale
    fp16.auto_cast fp16.consecutive_hysteresis bf16.check_grad_overflow bf16.loss_scale optimizer.legacy_fusion
    amp.opt_level tensor_parallel.tp_grain_size tensor_parallel.preset_model checkpoint.load_universal compile""",
    r"(offload_optimizer|offload_param)\..* scheduler\..* zero_optimization\.(offload_optimizer|offload_param)\..* "
    r"_.* comms_.*",
)
OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "fusedadam": "adamw",
    "lamb": "lamb",
    "onebitadam": "1-bit-adam",
    "lion": "lion",
    "adagrad": "adagrad",
    "sgd": "sgd",
    "muon": "muon",
    "adafactor": "adafactor",
}
_ADAM = "DeepSpeed deepspeed/runtime/engine.py: adam_w_mode default True, so type Adam is decoupled weight decay"
_STAGE = "DeepSpeed deepspeed/runtime/zero/config.py stage default 0"
_TYPES = "DeepSpeed deepspeed/runtime/constants.py FP16_ENABLED_DEFAULT and BFLOAT16_ENABLED_DEFAULT False"
_SIZES = (
    "sub_group_size",
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
)


def read(values: Mapping[str, Any], source: Source, where: str) -> Reading:
    """Return what a DeepSpeed configuration says; most of a run is left open by it."""
    reading = Reading(tool="deepspeed", files=(source.where,))
    fields = Fields(values, reading, where)
    _batches(fields)
    _types(fields)
    zero = fields.section("zero_optimization")
    _zero(fields, zero)
    _optimizer(fields, zero)
    _parallel(fields)
    fields.ignore(
        "configures DeepSpeed's own checkpoint function; it turns no recomputation on", "activation_checkpointing"
    )
    settle(reading)
    fields.finish(INERT)
    return reading


def _batches(fields: Fields) -> None:
    for key, field in (
        ("train_micro_batch_size_per_gpu", "micro_batch_size"),
        ("gradient_accumulation_steps", "microbatches"),
        ("train_batch_size", "global_batch_size"),
    ):
        if _open(fields, key) or key not in fields:
            continue
        fields.decide(field, fields.number(key, least=1))
    read = fields.reading.read
    sizes = [read.get(one) for one in ("micro_batch_size", "microbatches", "global_batch_size")]
    if all(sizes):
        ranks, rest = divmod(sizes[2], sizes[0] * sizes[1])  # type: ignore[operator]
        if rest:
            raise InputError(
                f"train_batch_size {sizes[2]} is not {sizes[0]} × {sizes[1]} × a number of ranks", where=fields.where
            )
        fields.reading.facts["data_ranks"] = ranks


def _open(fields: Fields, key: str) -> bool:
    """Whether a key is `auto`; that is said."""
    if fields.values.get(key) != AUTO:
        return False
    fields.ignore("auto: the trainer fills it", key)
    return True


def _types(fields: Fields) -> None:
    facts = fields.reading.facts
    brain, half = fields.section("bf16"), fields.section("fp16")
    if not brain.values and "bfloat16" in fields.values:
        brain = fields.section("bfloat16")
    states = {}
    for name, block in (("bf16", brain), ("fp16", half)):
        value = block.get("enabled")
        states[name] = AUTO if value == AUTO else bool(value) if isinstance(value, bool) else block.flag("enabled")
    if states["bf16"] is True:
        facts["mixed"] = "bf16"
    elif states["fp16"] is True:
        facts["mixed"] = "fp16"
    elif AUTO not in states.values():
        facts["mixed"] = "no"
        if not brain.values and not half.values:
            fields.reading.note_default("precision", "fp32", _TYPES)
    fields.told(f"precision: {facts.get('mixed', 'the trainer decides')}")
    facts["explicit"] = bool(brain.values or half.values)
    if "torch_autocast" in fields.values and fields.section("torch_autocast").flag("enabled"):
        fields.told("torch.autocast")
        fields.unplanned("torch autocast under DeepSpeed keeps weights in their own type", "torch_autocast")
    for block in (brain, half):
        block.unplanned(
            "masters or moments in another type",
            "bf16_master_weights_and_grads",
            "bf16_optimizer_states",
            "fp16_master_weights_and_grads",
            "immediate_grad_update",
        )
    kinds = fields.section("data_types")
    word = kinds.word("grad_accum_dtype")
    if word:
        kinds.unplanned(f"gradients accumulate in {word}", "grad_accum_dtype")


def _zero(fields: Fields, zero: Fields) -> None:
    stage = zero.number("stage", default=0)
    if stage not in (0, 1, 2, 3):
        raise InputError(f"{shown(stage)} is no stage", where=zero.path("stage"), allowed="0, 1, 2 or 3")
    name = f"zero-{stage}" if stage else "none"
    zero.decide("sharding", name, _STAGE)
    fields.reading.facts["engine"] = f"zero-{stage}"
    parts: list[str] = []
    if _on_host(zero, "offload_param", "cpu_offload_params"):
        parts.append("params")
    if _on_host(zero, "offload_optimizer", "cpu_offload"):
        parts.append("optimizer")
    zero.decide("offload", parts, "DeepSpeed deepspeed/runtime/zero/config.py offload_param, offload_optimizer None")
    _buckets(zero, int(stage))
    for key in ("zero_hpz_partition_size", "mics_shard_size"):
        if (zero.number(key, default=1) or 1) > 1:
            zero.unplanned("shards are divided over a part of the ranks", key)
        fields.told("shards over all ranks")
    zero.ignore(
        "communication in fewer bits",
        "zero_quantized_weights",
        "zero_quantized_gradients",
        "zero_quantized_nontrainable_weights",
    ) if not _quantised(zero) else zero.unplanned(
        "weights are quantised for communication",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
    )


def _quantised(zero: Fields) -> bool:
    return any(
        zero.values.get(key) is True
        for key in ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")
    )


def _on_host(zero: Fields, key: str, old: str) -> bool:
    block = zero.section(key)
    device = block.word("device", default="none").lower()
    if device == "nvme":
        fields_say = "states on NVMe: of the GPU's memory it takes no more than the CPU does"
        block.told(fields_say)
    found = device in ("cpu", "nvme")
    return zero.flag(old) or found


def _buckets(zero: Fields, stage: int) -> None:
    reading = zero.reading
    said: list[str] = []
    for key in ("reduce_bucket_size", "allgather_bucket_size", *_SIZES):
        names = (key, f"stage3_{key}")
        value = next((zero.values[name] for name in names if name in zero.values), None)
        if value is None:
            continue
        number = None if value == AUTO else zero.number(*names)
        zero.get(*names)
        zero.told(f"buffers: {key} {shown(value)}")
        said.append(f"{key} {shown(value)}")
        if number is not None and (stage == 3 or key in ("reduce_bucket_size", "allgather_bucket_size")):
            reading.facts.setdefault("zero", {})[key] = number
    if said:
        reading.unreadable.append(f"sizes of ZeRO's buffers, in values: {', '.join(said)}")
    if "overlap_comm" in zero.values and zero.values["overlap_comm"] != AUTO:
        reading.facts.setdefault("zero", {})["overlap_comm"] = zero.flag("overlap_comm")
    zero.get("overlap_comm")
    zero.told("buffers: whether a bucket fills while another is reduced")


def _optimizer(fields: Fields, zero: Fields) -> None:
    block = fields.section("optimizer")
    reading = fields.reading
    forced = fields.values.get("zero_force_ds_cpu_optimizer")
    fields.get("zero_force_ds_cpu_optimizer")
    reading.facts["forces_cpu_adam"] = "optimizer" in reading.read.get("offload", ()) and forced is not False
    fields.told("whether an offloaded optimizer must be DeepSpeed's own")
    kind = block.word("type")
    params = block.section("params")
    torch = params.flag("torch_adam")
    params.get("adam_w_mode")
    if not kind:
        fields.told("AdamW's rule")
        return
    name = OPTIMIZERS.get(kind.lower().replace("_", ""), kind.lower())
    block.decide("optimizer", f"{name} (torch)" if torch and name == "adamw" else name)
    if kind.lower() == "adam":
        reading.note_default("optimizer", "AdamW rule (FusedAdam adam_w_mode)", _ADAM)
    params.ignore("does not change the memory of a training step", *params.values)


def _parallel(fields: Fields) -> None:
    block = fields.section("tensor_parallel")
    size = block.number("autotp_size", default=0)
    if size and size > 1:
        block.decide("tp", size)
    block.told("tensor parallelism")
    pipeline = fields.section("pipeline")
    if pipeline.values:
        fields.unplanned("DeepSpeed's pipeline", "pipeline")
    size = fields.number("sequence_parallel_size", default=0)
    if size and size > 1:
        fields.decide("cp", size)
        fields.reading.set("cp_kind", "ulysses")
    fields.told("sequence parallelism")


_Z0 = {"fp16": {"enabled": AUTO}, "bf16": {"enabled": AUTO}}
_CPU = {"device": "cpu"}


def _stage(stage: int, *, optimizer: bool = False, params: bool = False, bf16: bool = False) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    if optimizer:
        zero["offload_optimizer"] = _CPU
    if params:
        zero["offload_param"] = _CPU
    return {**_Z0, **({"bf16": {"enabled": True}} if bf16 else {}), "zero_optimization": zero}


_LF, _AX, _SW = "LLaMA-Factory examples/deepspeed", "axolotl deepspeed_configs", "ms-swift swift/config"
PACKAGED: dict[str, tuple[dict[str, Any], str]] = {
    "ds_z0_config.json": (_stage(0), _LF),
    "ds_z2_config.json": (_stage(2), _LF),
    "ds_z2_offload_config.json": (_stage(2, optimizer=True), _LF),
    "ds_z3_config.json": (_stage(3), _LF),
    "ds_z3_offload_config.json": (_stage(3, optimizer=True, params=True), _LF),
    "ds_z3_fp8_config.json": (_stage(3, optimizer=True), _LF),
    "zero1.json": (_stage(1), _AX),
    "zero1_torch_compile.json": (_stage(1), _AX),
    "zero2.json": (_stage(2, optimizer=True), _AX),
    "zero3.json": (_stage(3), _AX),
    "zero3_bf16.json": (_stage(3, bf16=True), _AX),
    "zero3_bf16_cpuoffload_all.json": (_stage(3, optimizer=True, params=True, bf16=True), _AX),
    "zero3_bf16_cpuoffload_params.json": (
        {**_stage(3, params=True, bf16=True), "zero_force_ds_cpu_optimizer": False},
        _AX,
    ),
    "zero0": (_stage(0), _SW),
    "zero1": (_stage(1), _SW),
    "zero2": (_stage(2), _SW),
    "zero3": (_stage(3), _SW),
    "zero2_offload": (_stage(2, optimizer=True), _SW),
    "zero3_offload": (_stage(3, optimizer=True, params=True), _SW),
}
"""Configurations that frameworks ship under these names: sharding and offload of each, for where the file is not
there. Read from LLaMA-Factory ff6d4d1, axolotl 067b021, ms-swift 3602360."""


def packaged(reference: str, tool: str) -> tuple[dict[str, Any], str] | None:
    """Return what a configuration of that name says as a framework ships it, and which one that is; None where that
    framework ships none."""
    found = PACKAGED.get(reference.replace("\\", "/").rsplit("/", 1)[-1])
    return (
        found
        if found is not None and found[1].lower().startswith(tool.replace("llamafactory", "llama-factory"))
        else None
    )
