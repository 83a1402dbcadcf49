"""Runs of Transformers and of loops around it; torchtune's models as Transformers' of the same shape."""

from __future__ import annotations

import re

from .records import Fields, UnexpressedError
from .shapes import model_words

QKVO = "q_proj,k_proj,v_proj,o_proj"
VRAMCALC = ("--padding", "--hold-logits", "--microbatches", "2")
"""What vramcalc's records do not say: a padding mask, held logits, the gradients of the step before. Chosen as what
fits all of its seven A6000 points; nothing was fitted to them beside."""
OPTIMIZERS = (
    (r"paged ?adamw ?8|adamw8bit.*paged", "paged-adamw8bit"),
    (r"8.?bit", "adamw8bit"),
    (r"paged", "paged-adamw"),
    (r"adafactor", "adafactor"),
    (r"adam", "adamw"),
)
LOSSES = (
    (r"fused linear|flce", "fused"),
    (r"chunked_nll", "trl"),
    (r"cewithchunked|chunked ce", "torchtune-output"),
    (r"cut cross", "trl"),
    (r"naive|hf ce|^ce$", "naive"),
)


def words(record: Fields) -> tuple[str, ...]:
    """Return the options of a run. Raises UnexpressedError where the record says too little, or what has no option."""
    values = record.values
    if "litgpt" in record.text("source").lower():
        raise UnexpressedError("LitGPT's own modules, which keep other tensors than Transformers'")
    dims = values.get("dims") if isinstance(values.get("dims"), dict) else None
    model = model_words(dims, record.text("model"))  # type: ignore[arg-type]
    if "lora_targets" in values and "precision" in values:
        return (*model, *_fitcheck(record))
    for name in ("seq", "micro_batch"):
        if not isinstance(values.get(name), int):
            raise UnexpressedError(f"{name.replace('_', ' ')} is not a number in the record: {values.get(name)}")
    size = ("--seq", str(values["seq"]), "--batch", str(values["micro_batch"]))
    vramcalc = VRAMCALC if "vramcalc" in record.text("source") else ()
    return (*model, *size, *_attention(values), *_checkpoint(values), *_loss(values), *_trained(record), *vramcalc)


def _fitcheck(record: Fields) -> tuple[str, ...]:
    """A step that is a function of its own: logits held until it returns, the embedding's output a leaf that requires a
    gradient, every layer checkpointed (Anassbzdd/fitcheck, its measuring script)."""
    values = record.values
    quantised = values.get("quantization") != "none"
    return (
        *("--seq", str(values["seq"]), "--batch", str(values["micro_batch"]), "--dtype", record.text("precision")),
        *("--attention", "eager" if values.get("attention") == "eager" else "efficient", "--checkpoint", "layer"),
        *("--hold-logits-in-step", "--input-require-grads", "--lora-rank", str(values["lora_rank"])),
        *("--lora-targets", ",".join(record.words("lora_targets"))),
        *(("--quantise", "nf4-double" if values.get("double_quant") else "nf4") if quantised else ()),
        *("--recipe", "qlora" if quantised else "lora", "--optimizer", "adamw", "--gpu", "t4-16gb"),
    )


def _attention(values: object) -> tuple[str, ...]:
    text = str(_of(values, "attention")).lower()
    if "ring" in text:
        return ("--attention", "flash", "--cp-attention", "ring")
    for word, option in (("eager", "eager"), ("flash-attn", "flash2"), ("flash", "flash"), ("sdpa", "sdpa")):
        if word in text:
            return ("--attention", option, "--device", "cuda")
    raise UnexpressedError(f"attention is not said: {text}")


def _checkpoint(values: object) -> tuple[str, ...]:
    text = str(_of(values, "checkpointing")).lower()
    if text.startswith("none"):
        return ()
    offload = ("--offload", "activations") if "offload" in text else ()
    if text.startswith(("full", "hf full", "hf gradient", "every layer")):
        return ("--checkpoint", "layer", *offload)
    raise UnexpressedError(f"checkpointing is not said: {text}")


def _loss(values: object) -> tuple[str, ...]:
    text = str(_of(values, "loss")).lower()
    for pattern, option in LOSSES:
        if re.search(pattern, text):
            return ("--loss", option)
    raise UnexpressedError(f"no loss of that name: {text}")


def _trained(record: Fields) -> tuple[str, ...]:
    recipe = record.text("recipe").lower()
    optimizer = _optimizer(f"{record.values.get('optimizer')} {recipe}".lower())
    if "gptq" in recipe or "fp8" in recipe or "fp16 amp" in recipe:
        raise UnexpressedError(f"no recipe: {recipe}")
    mesh = record.values.get("parallelism")
    degrees = mesh if isinstance(mesh, dict) else {}
    ranks = ("--dp", str(degrees["fsdp"])) if "fsdp" in degrees else ("--dp", str(degrees.get("dp", 1)))
    cp = ("--cp", str(degrees["cp"])) if degrees.get("cp", 1) != 1 else ()
    if "zero" in degrees or "ulysses_sp" in degrees or "mp" in degrees:
        raise UnexpressedError("a mesh of DeepSpeed or of device_map that the record does not tell in full")
    in_backward = ("--optimizer-in-backward",) if re.search(r"in.backward|opt.in.bwd", f"{optimizer[1]}") else ()
    if re.search(r"\blora\b|lora\d+", recipe) or "lora" in record.text("id"):
        sharded = ranks if "fsdp" in degrees else ()
        return (*_lora(record, recipe, bool(sharded)), "--optimizer", optimizer[0], *sharded)
    if "autocast" in recipe:
        return ("--recipe", "autocast", "--precision", "autocast", "--optimizer", optimizer[0])
    name = "fsdp" if "fsdp" in recipe or "fsdp" in degrees else "fp32" if recipe.startswith("fp32") else "bf16"
    return ("--recipe", name, "--optimizer", optimizer[0], *in_backward, *(ranks if name == "fsdp" else ()), *cp)


def _lora(record: Fields, recipe: str, sharded: bool) -> tuple[str, ...]:
    """Adapters: their rank, what they are on, and the type that they are in."""
    autocast = "autocast" in recipe
    rank = re.search(r"\br(?:ank )?(\d+)", recipe) or re.search(r"lora(\d+)", record.text("id"))
    if rank is None:
        raise UnexpressedError("the rank of the adapters is not said")
    targets = "all-linear" if "all" in recipe else "q_proj,v_proj" if "q,v" in recipe else None
    targets = "q_proj,k_proj,v_proj" if "c_attn" in recipe else targets
    if targets is None:
        if "vramcalc" not in record.text("source"):
            raise UnexpressedError("what the adapters are on is not said")
        targets = QKVO
    own = ("--lora-rank", rank[1], "--lora-targets", targets)
    if "nf4" in recipe:
        kind = "nf4-double" if "nf4-dq" in recipe else "nf4"
        return (*own, "--lora-dtype", "bf16", "--quantise", kind, "--recipe", "qlora-plain")
    if autocast:
        return (*own, "--lora-dtype", "fp32", "--base-dtype", "fp32", "--precision", "autocast", "--recipe", "lora")
    dtype = () if "vramcalc" in record.text("source") else ("--lora-dtype", "bf16")
    return (*own, *dtype, "--recipe", "fsdp-bf16" if sharded else "lora")


def _optimizer(text: str) -> tuple[str, str]:
    """Return the optimizer's name, and the words that it was found in."""
    for pattern, name in OPTIMIZERS:
        if re.search(pattern, text):
            return name, text
    raise UnexpressedError(f"no optimizer of that name: {text}")


def _of(values: object, name: str) -> object:
    return values.get(name) if hasattr(values, "get") else None
