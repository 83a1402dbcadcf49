"""What a reading is in actplan's own options: the one mapping, for every framework.

Options are the words of the command line, so that whatever a file says can be said by hand, is checked in one place,
and loses against what somebody says by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lcm
from typing import Any

from .fields import shown
from .reading import Reading
from .recipes import Planned, recipe
from .vocabulary import PAIRED

OPTIMIZERS = {
    "adamw": "adamw",
    "adamw (torch)": "adamw",
    "adamw (optimi)": "adamw",
    "adamw-8bit": "adamw8bit",
    "paged-adamw": "paged-adamw",
    "paged-adamw-8bit": "paged-adamw8bit",
    "adafactor": "adafactor",
    "lion": "lion",
    "lion-8bit": "lion8bit",
    "muon": "muon",
    "sgd": "sgd",
}
LOSSES = {
    "naive": "naive",
    "fused": "naive",
    "chunked": "trl",
    "linear-fused": "fused",
}
ALL_LINEAR = ("all-linear", "every Linear", "all Linear", "language-model linears")
TORCHTUNE_NAMES = {"output_proj": "o_proj", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "output": "lm_head"}
BASES = ("none", "nf4", "nf4-double", "fp4", "fp4-double", "int8")
MEGATRON_TOOLS = ("megatron", "megatron-bridge", "ms-swift", "verl")
PER_OP = "selective-op"
"""A policy that depends on the names of the model's own products."""
MEGATRON_MODULES = {"core_attn": "core_attn", "mlp": "mlp", "moe": "mlp"}


def planned(reading: Reading, *, gpus: int | None = None, num_layers: Callable[[], int] | None = None) -> Planned:
    """Return the options that a reading amounts to.

    Args:
        gpus: ranks of the job, where somebody says so; what the mesh leaves is data parallel.
        num_layers: of the model, asked for where a policy depends on it.
    """
    made = Planned(assumed=list(reading.assumed))
    for one in reading.with_outcome("unplanned", "unknown"):
        made.problems.append(f"{one.field}: {one.says}")
    _mesh(reading, made, gpus)
    _sizes(reading, made)
    _kernels(reading, made)
    _checkpoint(reading, made, num_layers)
    _adapters(reading, made)
    recipe(reading, made)
    _states(reading, made)
    _objective(reading, made)
    for key in ("mtp", "quantise_experts"):
        if reading.more.get(key):
            made.options[key] = True
    return made


def _sizes(reading: Reading, made: Planned) -> None:
    read = reading.read
    ranks = int(str(made.options.get("dp", 1)))
    if "sequence_length" in read:
        made.options["seq"] = str(read["sequence_length"])
    micro = read.get("micro_batch_size")
    if micro is None and "global_batch_size" in read and "microbatches" in read and ranks:
        micro = max(read["global_batch_size"] // (read["microbatches"] * ranks), 1)
        made.assumed.append(f"{read['global_batch_size']} sequences over {ranks} data-parallel ranks: {micro} each")
    if micro is None and reading.facts.get("tokens_per_batch") and "sequence_length" in read:
        made.options["seq"] = str(reading.facts["tokens_per_batch"])
        made.assumed.append("one row of as many tokens as a dynamic batch may hold")
    if micro:
        pairs = read.get("task") in PAIRED
        made.options["batch"] = str(micro * 2 if pairs else micro)
        if pairs:
            made.assumed.append(f"{micro} pairs are {2 * micro} sequences")
    for name, option in (("sequence_length", "seq"), ("micro_batch_size", "batch")):
        if option not in made.options and not (option == "batch" and reading.facts.get("tokens_per_batch")):
            made.assumed.append(f"{name} is not in the file: --{option} says it")


def _mesh(reading: Reading, made: Planned, gpus: int | None) -> None:
    read, options = reading.read, made.options
    degrees = {name: int(read.get(name) or 1) for name in ("tp", "cp", "pp", "vpp", "ep")}
    etp = int(read.get("etp") or 1) if degrees["ep"] > 1 or reading.tool in MEGATRON_TOOLS else 1
    for name, size in {**degrees, "etp": etp if degrees["ep"] * etp > 1 and _has_experts(reading) else 1}.items():
        if size > 1:
            options[name] = str(size)
    if read.get("sp") and degrees["tp"] > 1:
        options["sp"] = True
    if "cp_attention" in reading.more and degrees["cp"] > 1:
        options["cp_attention"] = reading.more["cp_attention"]
    elif degrees["cp"] > 1:
        kind = str(read.get("cp_kind", ""))
        options["cp_attention"] = "all-to-all" if "ulysses" in kind else "all-gather" if "allgather" in kind else "ring"
    options.update({name: reading.more[name] for name in ("pp_schedule", "pp_split") if name in reading.more})
    _data_ranks(reading, made, gpus, degrees, etp)


def _has_experts(reading: Reading) -> bool:
    return int(reading.read.get("ep") or 1) > 1 or bool(reading.document and "moe" in reading.document)


def _data_ranks(reading: Reading, made: Planned, gpus: int | None, degrees: dict[str, int], etp: int) -> None:
    read, options = reading.read, made.options
    inner = degrees["tp"] * degrees["cp"] * degrees["pp"]
    stage = degrees["tp"] * degrees["cp"]
    experts = degrees["ep"] * (etp if _has_experts(reading) else 1)
    least = lcm(stage, experts) // stage
    ranks = gpus or reading.gpus
    shard = read.get("dp_shard")
    if gpus is None and shard and not reading.gpus:
        ranks = shard * (read.get("dp_replicate") or 1) * inner
    if ranks and not (ranks % inner or (ranks // inner) % least):
        dp = ranks // inner
    else:
        dp = least
        if ranks:
            made.assumed.append(f"{ranks} GPUs do not hold its mesh: planned on {inner * least}, the fewest that do")
        elif read.get("sharding") not in (None, "none"):
            made.assumed.append(f"how many GPUs is not in the file: planned on {inner * least}; --gpus N says it")
    if dp > 1:
        options["dp"] = str(dp)
    replicas = read.get("dp_replicate") or 1
    if shard and replicas == 1 and dp > shard and dp % shard == 0:
        replicas = dp // shard
    if replicas > 1 and dp % replicas == 0 and str(read.get("sharding")).startswith("fsdp"):
        options["replicas"] = str(replicas)
    _accumulation(reading, made, dp)


def _accumulation(reading: Reading, made: Planned, dp: int) -> None:
    read = reading.read
    steps = read.get("microbatches")
    whole, micro = read.get("global_batch_size"), read.get("micro_batch_size")
    if steps is None and whole and micro and whole % (micro * dp) == 0:
        steps = whole // (micro * dp)
    if steps and steps > 1:
        made.options["microbatches"] = str(steps)


def _kernels(reading: Reading, made: Planned) -> None:
    read, options = reading.read, made.options
    _attention(reading, made)
    kernels = read.get("kernels")
    if kernels == "liger":
        options["kernels"] = "liger"
    elif kernels in ("te", "native", "local"):
        words = {"te": "Transformer Engine's", "native": f"{reading.tool}'s own", "local": "Megatron-Core's local"}
        made.assumed.append(f"{words[str(kernels)]} modules are planned as Transformers' are")
    _loss(reading, made)
    if read.get("compile"):
        made.problems.append(
            "torch.compile keeps other tensors for backward than eager PyTorch, which is what is planned"
        )
    if read.get("fp8"):
        made.problems.append(f"fp8 ({shown(read['fp8'])}) is not planned: {read.get('precision')} is")


def _attention(reading: Reading, made: Planned) -> None:
    options = made.options
    attention = reading.read.get("attention")
    if attention == "auto":
        options["attention"] = "flash"
        made.assumed.append("attention is chosen when it runs: planned as FlashAttention")
    elif attention == "flash":
        options["attention"] = reading.more.get("attention", "flash")
    elif attention in ("eager", "cudnn", "flex") or (attention == "sdpa" and "attention" in reading.explicit):
        options["attention"] = attention
    elif attention not in (None, "sdpa"):
        made.problems.append(f"attention {shown(attention)} is not planned")


def _loss(reading: Reading, made: Planned) -> None:
    read, options = reading.read, made.options
    loss = str(read.get("loss", "naive"))
    parallel = int(read.get("tp") or 1) > 1
    word = reading.more.get("loss") or LOSSES.get(loss.partition(" ")[0], "")
    if reading.tool == "torchtitan" and "vocab-parallel" in loss and parallel:
        word = "parallel"
    if word:
        options["loss"] = word
    else:
        made.problems.append(f"loss {shown(loss)} is not planned")
    if loss == "fused":
        made.assumed.append("a fused softmax cross-entropy is planned as the naive one, which keeps more")
    if "loss_chunks" in reading.more:
        options["loss_chunks"] = reading.more["loss_chunks"]


def _checkpoint(reading: Reading, made: Planned, num_layers: Callable[[], int] | None) -> None:
    read = reading.read
    policy = str(read.get("checkpoint", "none")).partition(" ")[0]
    some = reading.facts.get("some_layers")
    word = policy
    if policy.startswith("every:") and reading.tool in ("torchtune", "torchtitan"):
        step = int(policy.partition(":")[2])
        count = num_layers() if num_layers is not None else 0
        chosen = range(step - 1, count, step)  # both frameworks count layers from one
        if count:
            word = "segments:" + ",".join(f"{i}-{i}" for i in chosen) if chosen else "none"
    elif policy.startswith("selective:"):
        modules = policy.partition(":")[2].split(",")
        unknown = [name for name in modules if name not in MEGATRON_MODULES]
        if unknown:
            made.problems.append(
                f"recomputed modules {', '.join(unknown)}: their outputs are discarded, which is not planned"
            )
        parts = [MEGATRON_MODULES[name] for name in modules if name in MEGATRON_MODULES]
        word = "modules:" + ",".join(dict.fromkeys(parts)) if parts else "none"
    elif policy == PER_OP:
        word = PER_OP
    elif policy == "layer" and some and num_layers is not None:
        word = _some_layers(made, some, num_layers())
    elif policy not in ("none", "layer") and not policy.startswith(("every:", "first:")):
        made.problems.append(f"checkpointing {shown(policy)} is not planned")
        word = "none"
    made.options["checkpoint"] = word


def _some_layers(made: Planned, some: dict[str, Any], count: int) -> str:
    """Only the last or the first layers are trained, and checkpointed."""
    chosen = int(some["count"] or 2)
    if some["spaced"] or some["modules"] != ["all"] or some["extra"] or chosen < 0 or chosen > count:
        made.problems.append("which layers are trained: only the last ones, whole, are planned")
        return "layer"
    first = count - chosen
    if first:
        made.options["freeze_layers"] = str(first)
    made.options["freeze"] = "embed_tokens,norm,lm_head"
    return "segments:" + ",".join(f"{i}-{i}" for i in range(first, count))


def _adapters(reading: Reading, made: Planned) -> None:
    read, options = reading.read, made.options
    lora = read.get("lora")
    base = str(read.get("quantised", "none"))
    if base not in BASES:
        made.problems.append(f"a base quantised by {shown(base)} is not planned")
    elif base != "none":
        options["quantise"] = base
    if not lora:
        return
    options["lora_rank"] = str(lora["rank"])
    targets = lora["targets"]
    if isinstance(targets, str) and targets.startswith(ALL_LINEAR):
        options["lora_targets"] = "all-linear"
    elif isinstance(targets, str) and "PEFT" in targets:
        options["lora_targets"] = "q_proj,v_proj"
        made.assumed.append("adapters on q_proj and v_proj, PEFT's choice for most models")
    else:
        names = targets if isinstance(targets, list) else [str(targets)]
        own = TORCHTUNE_NAMES if reading.tool == "torchtune" else {}
        options["lora_targets"] = ",".join(own.get(name, name) for name in names)
    if lora.get("dropout"):
        options["lora_dropout"] = f"{lora['dropout']:g}"
    if lora.get("dora"):
        options["dora"] = True
    if "lora_save" in reading.more:
        options["lora_save"] = reading.more["lora_save"]


def _states(reading: Reading, made: Planned) -> None:
    read, options = reading.read, made.options
    parts = {"params": "parameters", "optimizer": "optimizer", "activations": "activations"}
    offload = [parts[name] for name in read.get("offload", []) if name in parts]
    gathers = str(read.get("sharding", "")).startswith(("zero-3", "fsdp"))
    if "activations" in offload and options.get("checkpoint") == "none":
        offload.remove("activations")
        made.problems.append("activations are offloaded without recomputation, which is not planned")
    if "parameters" in offload and not gathers:
        offload.remove("parameters")
    if offload:
        options["offload"] = ",".join(offload)
    name = read.get("optimizer")
    word = OPTIMIZERS.get(str(name), "") if name else ""
    if name and not word:
        made.problems.append(f"optimizer {shown(name)} is not planned")
    elif word == "adamw":
        fused = reading.tool.startswith(("torchtune", "torchtitan")) or options.get("recipe", "") in (
            "fsdp",
            "fsdp-bf16",
            "bf16",
        )
        options["optimizer"] = reading.more.get("optimizer", "adamw-fused" if fused else "")
        if not options["optimizer"]:
            del options["optimizer"]
        if options.get("recipe") in ("qlora", "qlora-plain"):
            options["optimizer"] = "adamw-fused"
    elif word:
        forced = reading.facts.get("forces_cpu_adam") and "optimizer" in offload
        options["optimizer"] = "adamw" if forced else word
        if forced:
            made.assumed.append("with its states on the host DeepSpeed replaces the optimizer by DeepSpeedCPUAdam")
    if read.get("optimizer_in_backward"):
        options["optimizer_in_backward"] = True
    if "reshard" in reading.more and str(options.get("recipe", "")).startswith("fsdp"):
        options["reshard"] = reading.more["reshard"]
    if reading.facts.get("hybrid"):
        made.problems.append("hybrid sharding within a node: --replicas N says over how many nodes")


def _objective(reading: Reading, made: Planned) -> None:
    read = reading.read
    task = read.get("task")
    if task not in (None, "sft", "pretrain"):
        made.problems.append(f"the objective {task}: planned as cross-entropy on every token")
    for extra in read.get("extra_models", []):
        made.problems.append(f"another model on the same GPU is not planned: {extra}")
    frozen = [part for part in read.get("frozen", []) if part not in ("base", "language model base")]
    if frozen and "freeze" not in made.options and not reading.facts.get("some_layers"):
        made.assumed.append(f"frozen ({', '.join(frozen)}) and no part of the text model that is planned")
