"""In which types Hugging Face's stack trains: what loading, mixed precision and the launcher decide together.

The three may stand in three files. Each reader leaves its part in `Reading.facts`, and this module settles them:

- `loaded`: the type that the weights are loaded in; `config`: that of the checkpoint.
- `mixed`: bf16, fp16 or no: the mixed precision asked for; absent where a launcher says `auto` and nobody fills it.
- `engine`: ddp, fsdp1, fsdp2, zero-0 to zero-3; absent: one process, or DDP where there are several.
- `adapters`: how they are called; `frozen`: what the base is stored in.
- `keeps_shards`: FSDP2 that does not upcast. `trains_fp32`: trained parameters are cast to fp32.
- `products`: what products run in, where that is no type of weights.
- `no_autocast`: products are not under autocast whatever is asked for.
"""

from __future__ import annotations

from .reading import Reading

UPCAST_1 = (
    "accelerate src/accelerate/accelerator.py prepare_model upcasts trainable flat parameters when mixed precision is "
    "on"
)
UPCAST_2 = (
    'accelerate src/accelerate/utils/fsdp_utils.py fsdp2_prepare_model "Upcast to fp32 master weights" when '
    'mixed_precision != "no" and no 4-bit parameters'
)
ZERO_GRADS = (
    "DeepSpeed deepspeed/runtime/engine.py get_data_types: fp32 gradient accumulation only for bf16 without ZeRO"
)
HALVES = ("bf16", "fp16")


def settle(reading: Reading) -> None:
    """Decide `precision` and `precision_detail` from the facts; leave them open where the facts do."""
    facts = reading.facts
    engine = str(facts.get("engine", ""))
    mixed, loaded = facts.get("mixed"), facts.get("loaded")
    half = mixed if mixed in HALVES else None
    explicit = bool(facts.get("explicit"))
    if engine.startswith("zero"):
        found = _zero(reading, engine, mixed, half)
    elif engine.startswith("fsdp"):
        found = _fsdp(reading, engine, half, loaded)
    else:
        found = _plain(reading, half, loaded)
    if found is None:
        reading.read.pop("precision", None)
        return
    precision, detail = found
    reading.read["precision"] = precision
    if facts.get("products"):
        detail["compute"] = facts["products"]
    reading.read["precision_detail"] = {key: value for key, value in detail.items() if value}
    if explicit:
        reading.explicit.add("precision")


def _adapters(reading: Reading, dtype: str) -> str:
    what = reading.facts.get("adapters")
    return f"{dtype} {what}" if what else dtype


def _zero(reading: Reading, engine: str, mixed: object, half: object) -> tuple[str, dict[str, object]] | None:
    if engine != "zero-0":
        reading.note_default("precision_detail.grads", "model dtype under ZeRO", ZERO_GRADS)
    if mixed is None:
        reading.read["precision_detail"] = {"note": "fp16 and bf16 both auto: the launcher decides"}
        return None
    on_host = "optimizer" in reading.read.get("offload", ())
    if half is None:
        return "fp32", {"trainable": "fp32", "grads": "fp32", "states": "fp32"}
    where = "fp32 on CPU" if on_host else "fp32" if engine == "zero-0" else "fp32 (sharded)"
    if reading.read.get("offload") == ["params"]:
        where = "fp32 on GPU (sharded)"
    trained = _adapters(reading, str(half))
    detail = {"trainable": trained, "master": where, "compute": half, "frozen": reading.facts.get("frozen")}
    detail["grads"] = "fp32" if engine == "zero-0" and half == "bf16" else half
    return f"{half} + fp32 master", {**detail, "states": where}


def _fsdp(reading: Reading, engine: str, half: object, loaded: object) -> tuple[str, dict[str, object]] | None:
    frozen = reading.facts.get("frozen")
    own = str(loaded) if loaded in (*HALVES, "fp32") else "bf16"
    keeps = reading.facts.get("keeps_shards") and engine == "fsdp2"
    if half is None:
        if loaded is None:
            return None
        return _stored(own), {"trainable": _adapters(reading, own), "compute": own, "frozen": frozen, "states": own}
    if keeps and not frozen:
        detail = {"trainable": own, "compute": half, "master": "none", "grads": own, "states": own}
        return _stored(own), detail
    reading.note_default("precision", "fp32 shards", UPCAST_1 if engine == "fsdp1" else UPCAST_2)
    if frozen:
        return f"autocast {half}", {
            "trainable": _adapters(reading, "fp32"),
            "frozen": frozen,
            "compute": half,
            "states": "fp32",
        }
    return f"autocast {half}", {
        "trainable": "fp32 shards (upcast)",
        "compute": half,
        "master": "same tensor",
        "grads": "fp32 shards",
        "states": "as parameters",
    }


def _plain(reading: Reading, half: object, loaded: object) -> tuple[str, dict[str, object]] | None:
    """One process, or DDP: mixed precision is autocast and never changes what is stored."""
    facts = reading.facts
    if loaded is None:
        detail: dict[str, object] = {"trainable": "as the script loads them", "compute": f"{half} autocast"}
        return None if half is None else (f"autocast {half}", {**detail, "grads": "as parameters"})
    own = "bf16" if loaded == "config" else str(loaded)
    frozen = facts.get("frozen")
    if facts.get("no_autocast"):
        return _stored(own), {"trainable": own, "compute": f"{own} (no autocast)", "master": "none", "grads": own}
    if frozen or facts.get("trains_fp32"):
        detail = {"trainable": _adapters(reading, "fp32"), "frozen": frozen, "compute": half or own}
        return f"autocast {half}" if half else _stored(own), {**detail, "grads": "fp32", "states": "fp32"}
    if own == "fp32":
        detail = {"trainable": "fp32", "compute": f"{half} autocast" if half else "fp32"}
        return f"autocast {half}" if half else "fp32", {**detail, "grads": "fp32", "states": "fp32"}
    return _stored(own), {"trainable": own, "compute": half or own, "master": "none", "grads": own, "states": own}


def _stored(dtype: str) -> str:
    return "fp32" if dtype == "fp32" else f"{dtype} weights"
