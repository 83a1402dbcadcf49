"""Which recipe of actplan a precision and a sharding amount to."""

from __future__ import annotations

import msgspec

from .reading import Reading


class Planned(msgspec.Struct, kw_only=True):
    """A reading as options.

    Attributes:
        options: by their names, without the dashes: text, or True for a flag.
        problems: what changes memory and is not planned; planning it all the same needs `--ignore`.
        assumed: what was taken for granted where the file says nothing.
    """

    options: dict[str, str | bool] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)
    assumed: list[str] = msgspec.field(default_factory=list)


def recipe(reading: Reading, made: Planned) -> None:
    """Choose the recipe, and the types that go with it."""
    read, options = reading.read, made.options
    precision = read.get("precision")
    sharding = str(read.get("sharding", "none")).partition(" ")[0]
    if precision is None and "sharding" not in read:
        return
    if precision is None:
        precision = "bf16 + fp32 master" if sharding.startswith("zero") else "autocast bf16"
        made.assumed.append(f"precision is not in the file: {precision}")
    half = str(precision).split(" ")[1 if str(precision).startswith("autocast") else 0]
    lora, quantised = "lora" in read, read.get("quantised", "none") != "none"
    if sharding.startswith("zero") or reading.facts.get("engine") == "zero-0":
        options["recipe"] = sharding if sharding.startswith("zero") else "zero-0"
        if precision == "fp32":
            options["recipe"] = "fp32"
            if sharding != "none":
                made.problems.append(f"{sharding} in fp32 is not planned")
    elif sharding.startswith("fsdp"):
        pure = str(precision).endswith("weights")
        options["recipe"] = "qlora-fsdp" if lora and quantised else "fsdp-bf16" if pure else "fsdp"
    elif reading.tool in ("megatron", "megatron-bridge", "verl", "ms-swift") and (
        sharding.startswith("megatron") or read.get("kernels") in ("te", "local")
    ):
        _megatron(reading, made, sharding, half)
    else:
        _unsharded(reading, made, str(precision), half)
    if half == "fp16" and options.get("recipe") not in ("fp16", "fp16-pure", "megatron-fp16"):
        options["dtype"] = "fp16"


def _unsharded(reading: Reading, made: Planned, precision: str, half: str) -> None:
    read, options = reading.read, made.options
    if "lora" in read:
        plain = reading.tool == "torchtune"  # it leaves norms and head in their type
        base = "qlora-plain" if plain else "qlora"
        options["recipe"] = base if read.get("quantised", "none") != "none" else "lora"
        if precision.startswith("autocast"):
            options["precision"] = "autocast"
        elif "bf16 adapters" in str(read.get("precision_detail", {}).get("trainable")):
            options["lora_dtype"] = "bf16"
        if half == "fp16":
            options["dtype"] = "fp16"
    elif precision == "fp32":
        options["recipe"] = "fp32"
    elif precision.startswith("autocast"):
        options["recipe"] = "autocast" if half == "bf16" else "fp16"
    else:
        options["recipe"] = "bf16" if half == "bf16" else "fp16-pure"


def _megatron(reading: Reading, made: Planned, sharding: str, half: str) -> None:
    facts = reading.facts
    grads = facts.get("grads", "fp32")
    if sharding == "megatron-fsdp":
        made.problems.append("Megatron-FSDP is planned as the distributed optimizer, which shards less")
    distributed = sharding.startswith("megatron")
    if half == "fp32":
        name = "megatron-fp32"
    elif half == "fp16":
        name = "megatron-fp16"
        if distributed:
            made.problems.append("the distributed optimizer in fp16 is not planned: megatron-fp16 shards nothing")
    elif not distributed:
        name = "megatron-bf16"
    elif facts.get("aware") and facts.get("moments") == "bf16":
        name = "megatron-bf16-aware"
    else:
        name = "megatron-bf16-grads" if grads == "bf16" else "megatron-bf16-dist"
    if "whole parameters" in str(reading.read.get("sharding")):
        made.assumed.append("whole parameters are dealt to ranks: planned as shards of equal size")
    made.options["recipe"] = name
