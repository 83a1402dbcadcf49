"""Notes on a quantised base: what of it is not quantised, what its products keep, and what its shards need."""

from __future__ import annotations

from msgspec.structs import replace

from ..model import QuantisedBase
from ..model.quantised import NO_INPUTS_KEPT
from ..profile.parameter import Parameter
from .facts import Facts, Said, gib, more_or_less


def quantised_notes(facts: Facts) -> Said:
    """All that apply."""
    base = facts.run.quantised
    if base is None:
        return
    yield from _upcast(facts, base)
    yield from _experts(facts, base)
    yield from _inputs(facts, base)
    if facts.mesh.data_ranks > 1:
        yield from _shards(facts, base)


def _upcast(facts: Facts, base: QuantisedBase) -> Said:
    """Whether the model was prepared for k-bit training; where a base is sharded it is not."""
    if not base.upcast and facts.strategy.divides_base(base):
        return
    other = facts.with_run(quantised=replace(base, upcast=not base.upcast))
    difference = more_or_less(other - facts.found.total_bytes)
    now, then = ("fp32", f"--recipe qlora-plain leaves them {facts.run.dtype}: {difference}")
    if not base.upcast:
        prepared = "prepare_model_for_kbit_training (--recipe qlora)"
        now, then = (str(facts.run.dtype), f"{prepared} makes them fp32: {difference}")
    yield (
        "kbit-upcast",
        f"norms, embedding and head of the quantised model are in {now}, and so the residual stream between layers; "
        f"{then}",
    )


def _experts(facts: Facts, base: QuantisedBase) -> Said:
    """Fused experts are 3-d parameters, no linears, and bitsandbytes quantises linears."""
    layers = [[p for p in layer.parameters if _is_stack(p)] for layer in facts.measured.layers]
    size = sum(p.nbytes for layer in layers for p in layer)
    if not size:
        return
    if base.experts:
        largest = max(sum(p.numel * p.dtype.itemsize for p in layer) for layer in layers)
        yield (
            "quantised-experts",
            f"the fused experts are quantised too, {gib(size)} (bitsandbytes.nn.parametrize, as axolotl's "
            f"quantize_moe_experts does it): a layer's are dequantised in its forward, up to {gib(largest)}, and "
            "backward keeps those copies of every layer that is not checkpointed",
        )
        return
    dtype = next(p.dtype for layer in layers for p in layer)
    why = " (prepare_model_for_kbit_training makes them fp32)" if base.upcast else ""
    smaller = "; a 4-bit base can have them quantised too (--quantise nf4 --quantise-experts)"
    if base.bits == 4:
        total = facts.with_run(quantised=replace(base, experts=True))
        smaller = (
            f"; quantised too, as axolotl's quantize_moe_experts does it (--quantise-experts), the peak is "
            f"{gib(total)} in place of {gib(facts.found.total_bytes)}"
        )
    yield (
        "unquantised-experts",
        f"bitsandbytes quantises linears only, and the fused experts of Transformers 5 are 3-d parameters: those of "
        f"{sum(map(bool, layers))} layers stay in {dtype}{why}, {gib(size)} on this rank{smaller}",
    )


def _is_stack(p: Parameter) -> bool:
    return p.expert and len(p.shape) == 3


def _inputs(facts: Facts, base: QuantisedBase) -> Said:
    size = sum(layer.stage.pinned for layer in facts.measured.layers)
    if not size:
        return
    which = "the 8-bit product (MatMul8bitLt)"
    tip = "use_reentrant=True frees it in a checkpointed layer"
    if base.kind != "int8":
        which = f"the 4-bit product of bitsandbytes before {'.'.join(map(str, NO_INPUTS_KEPT))}"
        tip = "newer releases do not keep it"
    columns = "; copies of columns with outliers (llm_int8_threshold) come on top" if base.kind == "int8" else ""
    yield (
        "quantised-inputs",
        f"{which} keeps its input on its own context, {gib(size)} in all layers: no checkpoint with "
        f"use_reentrant=False drops it, and it lives until the whole backward is through; {tip}{columns}",
    )


def _shards(facts: Facts, base: QuantisedBase) -> Said:
    """What is needed for a quantised base to be divided, and what of it is not."""
    if not facts.recipe.sharding.gathers:
        return
    scales = gib(facts.line(f"{base.name} scales"))
    if not facts.strategy.divides_base(base):
        yield (
            "quantised-shards",
            f"the packed weights are of an integer type (bnb_4bit_quant_storage), which Accelerate excludes from FSDP: "
            f"{gib(facts.line(f'{base.name} base'))} on every rank",
        )
        return
    needs = f"bnb_4bit_quant_storage must be {facts.recipe.compute.name}, as all that is sharded with it"
    if base.bits == 8:
        needs = "FSDP2 takes Int8Params with axolotl's patch only (monkeypatch/fsdp2_qlora.py)"
    whole = ""
    if facts.strategy.loads_whole:
        size = sum(p.nbytes for p in facts.parameters if not p.trainable)
        whole = f"; Transformers loads a quantised model whole on each rank before DeepSpeed divides it, {gib(size)}"
    yield (
        "quantised-shards",
        f"{needs}; the scales are no parameters and stay whole on every rank, {scales}{whole}",
    )
