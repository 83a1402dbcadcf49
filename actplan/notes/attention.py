"""Notes on attention: the T × T term, and what context parallelism adds."""

from __future__ import annotations

from ..basics.errors import InputError
from ..basics.units import FP32
from ..model import Attention, GatedDeltaNet, LatentAttention, Mamba2
from ..stacks.transformers.head import is_masked
from ..training import Run
from .facts import Facts, Said, gib

SOURCES = {
    "ring": "zhuzilin/ring-flash-attention: ring_flash_attn.py, utils.py update_out_and_lse",
    "all-gather": "torch/distributed/tensor/experimental/_context_parallel/_attention.py, its default rotate method",
    "all-to-all-rotation": "torch/distributed/tensor/experimental/_context_parallel/_attention.py, _AllToAllRotater",
    "all-to-all": "DeepSpeed: runtime/sequence_parallel/ulysses_sp.py; arXiv 2309.14509, section 3",
}


def attention_notes(facts: Facts) -> Said:
    """All that apply."""
    yield from _device(facts)
    if facts.mesh.cp > 1:
        yield from _context(facts)
        yield from _recurrent(facts)


def matrix_bytes(facts: Facts) -> int:
    """One T × T copy for all heads of one layer on this rank, in the run's type."""
    run = facts.run
    heads = max((h for layer in facts.model.layers if (h := _heads(layer.mixer))), default=0)
    rows = run.micro_batch_size * -(-heads // facts.mesh.tp) * run.local_length
    return rows * run.sequence_length * run.dtype.itemsize


def _heads(mixer: object) -> int:
    return mixer.num_attention_heads if isinstance(mixer, (Attention, LatentAttention)) else 0


def _device(facts: Facts) -> Said:
    gpu, run = facts.job.gpu, facts.run
    layers = sum(1 for layer in facts.model.layers if _heads(layer.mixer))
    if gpu is None or gpu.has_flash_attention or not layers or run.attention == "eager":
        return
    size, masked = matrix_bytes(facts), is_masked(facts.model, run)
    yield (
        "gpu-without-flash",
        f"a {gpu.name} (compute capability {gpu.architecture}) has no FlashAttention: --attention {run.attention} is "
        f"read as sdpa's memory-efficient kernel{', with a mask' if masked else ''}, which must really be the one that "
        f"runs; eager attention or sdpa's math kernel keep T × T probabilities, {gib(size)} a copy and layer in "
        f"{run.dtype}, {gib(size * layers)} in {layers} layers for each copy kept (price it with --attention eager)",
    )


def _context(facts: Facts) -> Said:
    """What the peak is with each way of reading a divided sequence."""
    run = facts.run
    if not any(_heads(layer.mixer) for layer in facts.model.layers):
        return
    counted = run.context_attention
    others = ", ".join(f"with {how} {_total(facts, how)}" for how in SOURCES if how != counted)
    yield (
        "context-parallel",
        f"counted with {counted} attention over {facts.mesh.cp} ranks, the peak is {gib(facts.found.total_bytes)}; "
        f"{others} (--cp-attention). Blocks received, what is merged and gradients that travel in fp32 are counted "
        f"where they live, in one layer at a time; all-to-all, and torch's own on every rank but the last, keep one "
        f"output more a layer ({SOURCES[counted]}). {_ranks(run)}{_sinks(facts)}",
    )


def _ranks(run: Run) -> str:
    """Which rank is counted, where ranks differ."""
    if run.context_attention == "all-to-all":
        return "All ranks hold the same"
    if run.context_rank is not None:
        return f"Counted is rank {run.context_rank}"
    return "Counted is the rank that allocates most (--cp-rank for another)"


def _sinks(facts: Facts) -> str:
    if not any(isinstance(layer.mixer, Attention) and layer.mixer.sinks for layer in facts.model.layers):
        return ""
    return "; attention with sinks has no such kernel here: as if each rank read its own block, with nothing exchanged"


def _total(facts: Facts, how: str) -> str:
    try:
        return gib(facts.with_run(context_attention=how, context_rank=None))
    except InputError as error:
        return f"none: {error.problem}"


def _recurrent(facts: Facts) -> Said:
    kinds = [k for k, of in (("Gated DeltaNet", GatedDeltaNet), ("Mamba 2", Mamba2)) if _has(facts, of)]
    if not kinds:
        return
    states = facts.run.micro_batch_size * max(_state_values(layer.mixer) for layer in facts.model.layers)
    size = states * FP32.itemsize // facts.mesh.tp
    yield (
        "context-parallel-recurrent",
        f"{' and '.join(kinds)} reads its sequence in order: neither ring nor all-gather attention divides it. It "
        "needs "
        f"its own kind of context parallelism, which hands the state from rank to rank ({gib(size)} a layer in fp32, "
        f"and its gradient), or exchanges heads by all-to-all; counted is that tokens are divided and nothing added",
    )


def _has(facts: Facts, kind: type) -> bool:
    return any(isinstance(layer.mixer, kind) for layer in facts.model.layers)


def _state_values(mixer: object) -> int:
    if isinstance(mixer, GatedDeltaNet):
        return mixer.num_value_heads * mixer.key_head_dim * mixer.value_head_dim
    return mixer.num_heads * mixer.head_dim * mixer.state_size if isinstance(mixer, Mamba2) else 0
