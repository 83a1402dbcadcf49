"""Megatron-LM's arguments."""

from __future__ import annotations

import re

from .words import Settings, Words

RECIPES: dict[str, dict[str, object]] = {
    "megatron-bf16": {"bf16": True},
    "megatron-bf16-dist": {"bf16": True, "use-distributed-optimizer": True},
    "megatron-bf16-grads": {"bf16": True, "use-distributed-optimizer": True, "grad-reduce-in-bf16": True},
    "megatron-bf16-aware": {
        "bf16": True,
        "use-distributed-optimizer": True,
        "use-precision-aware-optimizer": True,
        "main-grads-dtype": "bf16",
        "exp-avg-dtype": "bf16",
        "exp-avg-sq-dtype": "bf16",
    },
    "megatron-fp16": {"fp16": True},
    "megatron-fp32": {},
}
MODULES = {"core_attn": "core_attn", "mlp": "mlp"}


def settings(words: Words) -> Settings:
    """Return the arguments that a run is started with; the model's own stay as they are."""
    recipe = words.get("recipe") or "megatron-bf16-dist"
    if recipe not in RECIPES:
        raise words.cannot(f"--recipe {recipe}", allowed=", ".join(RECIPES))
    made: Settings = {}
    for name in sorted({key for keys in RECIPES.values() for key in keys}):
        made[(name,)] = RECIPES[recipe].get(name)
    micro, steps, dp = words.number("batch"), words.number("microbatches"), words.number("dp")
    made[("seq-length",)] = words.number("seq")
    made[("micro-batch-size",)] = micro
    made[("global-batch-size",)] = micro * steps * dp
    for name, key in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert")):
        made[(f"{key}-model-parallel-size",)] = words.number(name)
    made[("context-parallel-size",)] = words.number("cp")
    made[("sequence-parallel",)] = words.flag("sp") or None
    if words.number("etp") > 1 or words.number("ep") > 1:
        made[("expert-tensor-parallel-size",)] = words.number("etp")
    if words.number("vpp") > 1:
        made[("num-virtual-stages-per-pipeline-rank",)] = words.number("vpp")
    known: dict[str, object] = {
        "flash": "flash",
        "flash2": "flash",
        "cudnn": "fused",
        "eager": "unfused",
        "sdpa": "auto",
    }
    made[("attention-backend",)] = words.one_of("attention", known)
    made.update(_recomputation(words))
    words.one_of("kernels", {"hf": None})
    words.one_of("loss", {"naive": None, "parallel": None})
    words.get("cp_attention")
    made[("optimizer-cpu-offload",)] = True if words.list("offload") == ["optimizer"] else None
    if words.list("offload") not in ([], ["optimizer"]):
        raise words.cannot(f"--offload {words.get('offload')}", allowed="optimizer")
    if words.get("optimizer"):
        known = {"adamw-fused": "adam", "adamw": "adam", "sgd-momentum": "sgd", "muon": "muon"}
        made[("optimizer",)] = words.one_of("optimizer", known)
    words.flag("mtp")
    return made


def _recomputation(words: Words) -> Settings:
    policy = words.get("checkpoint")
    names = ("recompute-granularity", "recompute-method", "recompute-num-layers", "recompute-modules")
    made: Settings = {(name,): None for name in names}
    counted = re.fullmatch(r"(every|first):(\d+)", policy)
    if policy == "none":
        return made
    if policy == "layer" or counted:
        kind, count = counted.groups() if counted else ("every", "1")
        how = "uniform" if kind == "every" else "block"
        return {**made, (names[0],): "full", (names[1],): how, (names[2],): int(count)}
    if policy.startswith("modules:"):
        modules = policy.partition(":")[2].split(",")
        if all(name in MODULES for name in modules):
            return {**made, (names[0],): "selective", (names[3],): [MODULES[name] for name in modules]}
    raise words.cannot(f"--checkpoint {policy}", allowed="none, layer, every:K, first:N, modules:core_attn,mlp")
