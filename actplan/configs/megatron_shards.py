"""How Megatron-LM divides training states, and what of them is in host memory (megatron/training/arguments.py and
megatron/core/distributed/ at d98e8a6)."""

from __future__ import annotations

from .fields import Fields

_ARGS = "megatron/training/arguments.py"


def sharding(fields: Fields, dtype: str, *, distributed: bool = False) -> None:
    """Decide sharding and offload, and what of the precision follows from them. distributed: the default of
    `--use-distributed-optimizer`."""
    reading = fields.reading
    detail = reading.read["precision_detail"]
    distributed = fields.flag("use-distributed-optimizer", default=distributed)
    if fields.flag("use-torch-fsdp2"):
        fields.decide("sharding", "fsdp2")
    elif fields.flag("use-megatron-fsdp", "use-custom-fsdp"):
        _megatron_fsdp(fields)
    elif distributed:
        _distributed_optimizer(fields)
    else:
        fields.decide("sharding", "ddp", OFF)
        if "use-distributed-optimizer" not in fields.values:
            reading.note_default("sharding", "no distributed optimizer", OFF)
        if dtype != "fp32":
            detail.update(master="fp32 (replicated in the data-parallel group)", states="fp32 (replicated)")
    fields.get("data-parallel-sharding-strategy", "use-layer-wise-distributed-optimizer")
    fields.told("sharding")
    if fields.flag("no-use-layer-wise-param-layout"):
        reading.unreadable.append("--no-use-layer-wise-param-layout: one buffer, gather of all parameters")
    fields.told("sharding: the layout of a layer-wise optimizer")
    instances = fields.number("num-distributed-optimizer-instances", default=1, least=1)
    if instances and instances > 1:
        fields.unplanned("several instances of the distributed optimizer", "num-distributed-optimizer-instances")
    _offload(fields)


OFF = f"{_ARGS} --use-distributed-optimizer is off unless given"


def _megatron_fsdp(fields: Fields) -> None:
    reading, detail = fields.reading, fields.reading.read["precision_detail"]
    how = fields.word("data-parallel-sharding-strategy", default="no_shard")
    stages = {"optim_grads_params": ", like zero-3", "optim_grads": ", like zero-2", "optim": ", like zero-1"}
    like = stages.get(how, "")
    fields.decide("sharding", f"megatron-fsdp ({how}{like})")
    buffers = [key for key in ("fsdp-double-buffer", "use-nccl-ub") if fields.flag(key)]
    fields.told("persistent communication buffers")
    if buffers:
        reading.unreadable.append(f"{' and '.join(buffers)} (persistent communication buffers)")
    if like.endswith("3"):
        detail.update(master="fp32 (sharded)", grads=f"{reading.facts['grads']} (sharded)", states="fp32 (sharded)")
    reading.note_default("sharding", how, f"{_ARGS} --data-parallel-sharding-strategy")


def _distributed_optimizer(fields: Fields) -> None:
    muon = fields.reading.read.get("optimizer") == "muon"
    fields.decide("sharding", "megatron-dist (whole parameters assigned to ranks)" if muon else "megatron-dist")
    if muon:
        fields.reading.note_default(
            "sharding",
            "layer-wise distributed optimizer",
            f"{_ARGS}: with muon, use_distributed_optimizer becomes use_layer_wise_distributed_optimizer",
        )


def _offload(fields: Fields) -> None:
    reading, detail = fields.reading, fields.reading.read["precision_detail"]
    host = fields.flag("optimizer-cpu-offload")
    share = fields.share("optimizer-offload-fraction", default=1.0)
    parts = ["optimizer"] if host and share > 0 else []
    if host:
        reading.unreadable.append(f"optimizer_offload_fraction {share:g}")
        detail.update(master="fp32 on CPU", states="fp32 on CPU")
    layers = fields.number("cpu-offloading-num-layers", default=0)
    fine = fields.flag("fine-grained-activation-offloading")
    if layers or fine or fields.flag("cpu-offloading"):
        parts.append("activations")
    fields.decide("offload", parts, f"{_ARGS} optimizer_cpu_offload False")
    if fine:
        fields.unplanned(
            "activations of some modules in host memory", "fine-grained-activation-offloading", "offload-modules"
        )
    fields.get("cpu-offloading-weights", "cpu-offloading", "fine-grained-activation-offloading", "offload-modules")
    fields.told("offload")
