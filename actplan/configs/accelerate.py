"""accelerate's YAML: accelerate/commands/config/config_args.py, utils/dataclasses.py, parallelism_config.py, 1.15.

It describes the launch alone: processes, mixed precision, sharding. What is trained stands elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..basics.errors import InputError
from .fields import Fields, Inert, shown
from .files import Source, load
from .hugging_face import attached
from .precision import settle
from .reading import Reading

INERT = Inert(
    """compute_environment debug downcast_bf16 enable_cpu_affinity machine_rank main_training_function rdzv_backend
    same_network tpu_env tpu_use_cluster tpu_use_sudo use_cpu gpu_ids main_process_ip main_process_port commands
    command_file tpu_name tpu_zone tpu_vm deepspeed_hostfile mpirun_config dynamo_backend dynamo_config""",
    r"deepspeed_config\.(deepspeed_multinode_launcher|zero3_init_flag|zero3_save_16bit_model|gradient_clipping|"
    r"deepspeed_hostfile|deepspeed_inclusion_filter|deepspeed_exclusion_filter|deepspeed_moe_layer_cls_names|"
    r"gradient_accumulation_steps|offload_\w+_nvme_path) dynamo_config\..* fp8_config\..*",
)
FSDP_INERT = (
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "cpu_ram_efficient_loading",
    "state_dict_type",
    "sync_module_states",
    "use_orig_params",
    "forward_prefetch",
    "backward_prefetch",
    "limit_all_gathers",
    "min_num_params",
    "ignored_modules",
    "final_state_dict_type",
    "cpu_offload_pin_memory",
    "xla",
    "xla_fsdp_v2",
)
_STRATEGY = "accelerate FullyShardedDataParallelPlugin.__post_init__ FSDP_SHARDING_STRATEGY default FULL_SHARD"
_STRATEGIES = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}
_JOINT = "accelerate src/accelerate/parallelism_config.py fsdp_dim_names"


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what an accelerate configuration says."""
    reading = Reading(tool="accelerate", files=(source.where,))
    fields = Fields(values, reading, source.where)
    kind = fields.word("distributed_type", default="NO").upper()
    reading.gpus = fields.number("num_processes", default=None, least=1)
    fields.get("num_machines")
    fields.told(f"{reading.gpus} ranks" if reading.gpus else "ranks")
    precision = fields.word("mixed_precision", default="no").lower()
    fields.told(f"mixed precision {precision}")
    reading.facts["mixed"] = precision if precision in ("bf16", "fp16") else "bf16" if precision == "fp8" else "no"
    reading.facts["explicit"] = "mixed_precision" in fields
    if precision == "fp8":
        reading.set("fp8", {"backend": "as fp8_config says"})
    reading.set("checkpoint", "none (from this file)", "no file of accelerate's turns recomputation on but fsdp_config")
    reading.set("offload", [], "accelerate: offload_params and offload devices are off unless given")
    if kind == "DEEPSPEED":
        reading = _deepspeed(reading, fields, source)
    elif kind == "FSDP":
        fsdp_config(fields.section("fsdp_config"), prefix="fsdp_")
    elif kind == "MEGATRON_LM":
        fields.unplanned("Megatron-LM through accelerate", "megatron_lm_config")
    else:
        reading.set("sharding", "ddp" if kind.startswith("MULTI_") else "none")
        reading.facts["engine"] = "ddp" if kind.startswith("MULTI_") else ""
        fields.get("distributed_type")
        fields.told(f"sharding: {reading.read['sharding']}")
    _mesh(fields, reading)
    settle(reading)
    fields.finish(INERT)
    return reading


def _deepspeed(reading: Reading, fields: Fields, source: Source) -> Reading:
    from . import deepspeed

    block = fields.section("deepspeed_config")
    path = block.word("deepspeed_config_file")
    if path:
        block.told("DeepSpeed's configuration")
        found = source.named(path)
        if found is None:
            raise InputError(
                f"names {shown(path)}, which is not there: sharding and offload stand in it",
                where=block.path("deepspeed_config_file"),
                allowed="the file at that path, or given with --from too",
            )
        loaded = load(found)
        return _joined(reading, deepspeed.read(loaded.values, loaded, loaded.where))
    stage = block.number("zero_stage", default=2) or 0
    block.decide("sharding", f"zero-{stage}" if stage else "none", "accelerate DeepSpeedPlugin zero_stage default 2")
    reading.facts["engine"] = f"zero-{stage}"
    parts = []
    for key, part in (("offload_param_device", "params"), ("offload_optimizer_device", "optimizer")):
        if block.word(key, default="none").lower() in ("cpu", "nvme"):
            parts.append(part)
    block.decide("offload", parts, "accelerate DeepSpeedPlugin offload devices default none")
    reading.facts["forces_cpu_adam"] = "optimizer" in parts
    steps = block.values.get("gradient_accumulation_steps")
    if steps is not None and steps != "auto":
        block.number("gradient_accumulation_steps", least=1)
        block.decide("microbatches", block.number("gradient_accumulation_steps", least=1))
    return reading


def _joined(reading: Reading, own: Reading) -> Reading:
    fields, files = reading.fields, reading.files
    made = attached(reading, own)
    reading.read, reading.explicit, reading.facts = made.read, made.explicit, made.facts
    reading.fields, reading.files = fields, files
    reading.fields += own.fields
    reading.unreadable, reading.whole_defaults = made.unreadable, made.whole_defaults
    reading.partial_defaults = made.partial_defaults
    return reading


def fsdp_config(block: Fields, *, prefix: str = "", version: int | None = None, strategies: bool = True) -> None:
    """Decide sharding, offload and the second switch for recomputation by an `fsdp_config`.

    prefix: in front of every key. version: where it stands elsewhere. strategies: whether `sharding_strategy` is read.
    """
    reading = block.reading

    def key(name: str) -> tuple[str, ...]:
        return (prefix + name,) if prefix else (name, f"fsdp_{name}")

    own = "fsdp2" if (version or block.number("fsdp_version", "version", default=1)) == 2 else "fsdp1"
    block.get("fsdp_version")
    reading.facts["engine"] = own
    reads_strategy = strategies and own == "fsdp1"
    strategy = block.word(*key("sharding_strategy")) if reads_strategy else ""
    strategy = (strategy or block.word(*key("reshard_after_forward"))).upper()
    strategy = _STRATEGIES.get(strategy, strategy)
    block.decide("sharding", "ddp" if own == "fsdp1" and strategy == "NO_SHARD" else own)
    if not reads_strategy:
        block.ignore(f"is not read by {'FSDP2' if strategies else reading.tool}", *key("sharding_strategy"))
    if own == "fsdp1" and not strategy:
        reading.note_default("sharding", "FULL_SHARD", _STRATEGY)
    if strategy in ("SHARD_GRAD_OP", "FALSE", "NO", "HYBRID_SHARD_ZERO2"):
        reading.more["reshard"] = "never"
        reading.unreadable.append("gathered weights stay after forward, like zero-2")
    if strategy.startswith("HYBRID"):
        reading.unreadable.append("hybrid sharding: within a node, replicated over nodes")
        reading.facts["hybrid"] = True
    offload = block.flag(*key("offload_params"))
    parts = ["params", "grads", "optimizer"] if offload else []
    block.decide("offload", parts, "accelerate FullyShardedDataParallelPlugin cpu_offload default False")
    second = block.flag(*key("activation_checkpointing"))
    if second:
        block.decide("checkpoint", "layer")
    block.told("checkpoint: none from here")
    block.unplanned("a mixed precision policy of its own", *(key("mixed_precision_policy")))
    for name in FSDP_INERT:
        block.ignore("does not change the memory of a training step", *key(name))


def _mesh(fields: Fields, reading: Reading) -> None:
    block = fields.section("parallelism_config")
    if not block.values:
        return
    sizes: dict[str, int] = {}
    for field, name in (("dp_shard", "dp_shard_size"), ("dp_replicate", "dp_replicate_size"), ("tp", "tp_size"),
                        ("cp", "cp_size")):  # fmt: skip
        size = block.number(f"parallelism_config_{name}", name, default=1, least=1)
        sizes[field] = int(size or 1)
        block.decide(field, sizes[field], "accelerate src/accelerate/parallelism_config.py: sizes default 1")
    ulysses = block.number("parallelism_config_sp_size", "sp_size", default=1, least=1) or 1
    block.told("sequence parallelism of DeepSpeed")
    if ulysses > 1:
        reading.set("cp", ulysses)
        reading.set("cp_kind", "ulysses")
    elif sizes["cp"] > 1:
        reading.set("cp_kind", "torch ring (allgather)")
        reading.set("attention", "sdpa", "torch context parallelism requires sdpa")
        ways = sizes["cp"] * sizes["dp_shard"]
        reading.note_default("sharding", f"{ways}-way over the joint dp_shard_cp mesh", _JOINT)
    for key in list(block.values):
        if "rotate_method" in key or "_backend" in key or "seq_length" in key or "attn_implementation" in key:
            block.ignore("how shards of a sequence are exchanged", key)
        if "comm_handler" in key or "_handler" in key:
            block.ignore("does not change the memory of a training step", key)
