"""Notes on where the bands come from, and on which versions the figures follow."""

from __future__ import annotations

from msgspec import UNSET

from ..memory.budget import Job
from ..memory.gpus import SLACK_SOURCE, Gpu, framework_ranges
from ..report import Budget
from ..training.mesh import Mesh
from .facts import Facts, Said, gib

VERSIONS = (
    "PyTorch 2.13, Transformers 5.24, flash-attn 2, flash-linear-attention 0.6.0, causal-conv1d, Liger 0.8.5, "
    "peft 0.21, bitsandbytes 0.50, DeepSpeed and Megatron-LM as their named files are in 2026"
)


def assumption_notes(facts: Facts) -> Said:
    """All that apply."""
    yield from band_notes(facts.found, facts.job, facts.mesh)
    yield (
        "versions",
        f"figures follow {VERSIONS}; a library's update can move them, and `actplan trace` shows what an installed one "
        "does",
    )


def band_notes(found: Budget, job: Job, mesh: Mesh) -> Said:
    """Where the bands come from."""
    yield (
        "tolerance",
        f"allocated bytes follow from shapes and repeat from run to run; what the allocator reserves does not: "
        f"{gib(found.reserved_bytes.low)} to {gib(found.reserved_bytes.high)} ({SLACK_SOURCE}). ±10 % between runs, "
        f"drivers and devices is normal (20.2, 22.3 and 24.1 GB for one configuration: meta-pytorch/torchtune#961)",
    )
    if found.pools is not UNSET:
        parts = " and ".join(f"{gib(pool.bytes)} of the {pool.name} ({pool.reason})" for pool in found.pools)
        yield (
            "stream-pools",
            f"reserved memory holds pools of FSDP's own streams, which nothing else may use: {parts}. What is free in "
            "them goes back to the device only when an allocation would fail (CUDACachingAllocator.cpp: "
            "release_cached_blocks), so that a job may still fit where the reserved band says it does not",
        )
    if job.gpu is not None:
        yield from _framework(job.gpu, mesh)


def _framework(gpu: Gpu, mesh: Mesh) -> Said:
    groups = sum(degree > 1 for degree in (mesh.data_ranks, mesh.tp, mesh.cp, mesh.pp, mesh.ep))
    ranges = framework_ranges(gpu, groups=groups)
    parts = [f"{part.name} {gib(part.low)} to {gib(part.high)} ({part.source})" for part in ranges]
    yield (
        "framework",
        f"outside PyTorch's allocator: {'; '.join(parts)}; each process group that communicates adds to NCCL's",
    )
