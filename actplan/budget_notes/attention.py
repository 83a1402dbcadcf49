"""Notes on attention: the T × T term, and what context parallelism adds."""

from __future__ import annotations

from ..layers.head import is_masked
from ..spec import Attention, GatedDeltaNet, LatentAttention, Mamba2
from ..units import FP32
from .facts import Facts, Said, gib

RING = "zhuzilin/ring-flash-attention: ring_flash_attn.py, utils.py update_out_and_lse"
GATHERED = (
    "Transformer Engine context_parallel.py, AttnFuncWithCPAndKVP2P: p2p_comm_buffers holds every block; "
    "Llama 3, arXiv 2407.21783, section 3.3.2: all-gather"
)
ULYSSES = "DeepSpeed-Ulysses, arXiv 2309.14509, section 3"


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
    run, mesh = facts.run, facts.mesh
    found = [layer.mixer for layer in facts.model.layers if isinstance(layer.mixer, Attention)]
    if not found:
        return
    mixer = max(found, key=lambda one: one.num_attention_heads * one.head_dim)
    rows = run.tokens // mesh.tp
    query, key = rows * mixer.num_attention_heads * mixer.head_dim, rows * mixer.num_key_value_heads * mixer.head_dim
    block = 2 * key * run.dtype.itemsize
    forward = block + query * FP32.itemsize + rows * mixer.num_attention_heads * FP32.itemsize
    backward = block + (query + 4 * key) * FP32.itemsize
    exchanged = (2 * query + 2 * key) * run.dtype.itemsize
    yield (
        "context-parallel",
        f"not counted, for one layer at a time: ring attention adds {gib(forward)} in forward (the keys and values "
        f"being received, {gib(block)}, and an fp32 output and log-sum-exp) and {gib(backward)} in backward (fp32 "
        f"gradients of queries, and of keys and values beside those being received; {RING}); where the blocks of all "
        f"{mesh.cp} ranks are kept or gathered {gib(block * mesh.cp)} ({GATHERED}); all-to-all holds queries, keys, "
        f"values and output once more, {gib(exchanged)}, and its degree must divide the heads ({ULYSSES})",
    )


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
