"""GPUs: capacity and speed, and what a process takes of one beside its tensors.

Capacities are the driver's own (`memory.total` of nvidia-smi; `VRAM Total Memory` of rocm-smi), which is
what a device really offers and not the number in its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from ..basics.errors import InputError
from ..basics.strict_yaml import read_yaml
from ..basics.units import MIB
from ..model.reading.sources import presets_folder


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device as the driver shows it (one GCD of an MI250X).

    Attributes:
        memory_mib: capacity in MiB, and `memory_source` where that was read.
        architecture: compute capability, or AMD's gfx target.
        matrix_tflops: dense peak of `matrix_dtype` products with fp32 accumulation, in 10^12 FLOP/s. Devices
        before
            Ampere have no bf16 units.
        memory_bandwidth_gbs, link_gbs: 10^9 B/s; the link's is both directions together.
    """

    name: str
    title: str
    vendor: Literal["nvidia", "amd"]
    memory_mib: int
    memory_source: str
    architecture: str
    matrix_dtype: Literal["bf16", "fp16"]
    matrix_tflops: float
    memory_bandwidth_gbs: float
    link: str
    link_gbs: float
    source: str
    aliases: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB

    @property
    def peak_flops(self) -> float:
        """FLOP/s of dense matrix products."""
        return self.matrix_tflops * 1e12

    @property
    def has_flash_attention(self) -> bool:
        """FlashAttention 2 needs compute capability 8.0, or CDNA 2 and later."""
        return self.vendor == "amd" or float(self.architecture) >= 8.0


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes from `low` to `high`, with the reason and its source."""

    name: str
    low: int
    high: int
    reason: str
    source: str


def names() -> list[str]:
    """The names that `--gpu` takes, without aliases."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def load_gpu(name: str) -> Gpu:
    """The device of a name or alias, whatever the case; the error suggests the nearest."""
    known = _by_name()
    key = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-").removeprefix("amd-")
    if key not in known:
        raise InputError(
            f"unknown GPU {name[:64]!r}",
            where="--gpu",
            allowed="a name that `actplan gpus` lists",
            choices=list(known),
            got=key[:64],
        )
    return known[key]


def all_gpus() -> list[Gpu]:
    """Every device, by name."""
    return [load_gpu(name) for name in names()]


def _folder() -> Path:
    return presets_folder("gpus")


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Gpu]:
    found: dict[str, Gpu] = {}
    for path in sorted(_folder().glob("*.yaml")):
        gpu = _read(path)
        found[gpu.name] = gpu
        found.update(dict.fromkeys(gpu.aliases, gpu))
    return found


def _read(path: Path) -> Gpu:
    try:
        gpu = msgspec.convert(read_yaml(path), Gpu)
    except msgspec.ValidationError as error:
        raise InputError(str(error), where=path.name) from None
    if gpu.name != path.stem:
        raise InputError(f"the name {gpu.name!r} is not the file's", where=path.name)
    return gpu


def framework_ranges(gpu: Gpu, *, groups: int = 0) -> tuple[Range, ...]:
    """What a process takes outside PyTorch's allocator.

    Args:
        groups: NCCL communicators of more than one rank that this rank has used (data, tensor, pipeline, …).
    """
    context = (
        Range(
            "context",
            300 * MIB,
            1024 * MIB,
            "HIP context and kernels",
            "Lumi-supercomputer/LUMI-AI-Guide#111",
        )
        if gpu.vendor == "amd"
        else Range(
            "context",
            105 * MIB,
            550 * MIB,
            "CUDA context: 105 to 141 MiB measured on a T4 (torch 2.14), 300 to 550 MiB on large devices, "
            "since kernels are loaded lazily (CUDA 11.7)",
            "measured.json, cuda_context_mib; pytorch/pytorch#107667, #20532",
        )
    )
    reserve = Range(
        "driver reserve",
        0 if gpu.vendor == "amd" else 250 * MIB,
        0 if gpu.vendor == "amd" else 900 * MIB,
        "the part of memory.total that no process gets: PyTorch sees 79.1 to 79.3 GiB of an H100's 79.65, "
        "139.7 to 139.8 of an H200's 140.4, 14.56 to 14.74 of a T4's 15",
        "'total capacity of' in PyTorch's out-of-memory messages",
    )
    return (context, reserve, *_nccl(groups))


def _nccl(groups: int) -> tuple[Range, ...]:
    """Device memory of NCCL's communicators: channels' buffers, allocated when a group first communicates.

    0.53 GiB for 2 ranks and 0.67 for more (NVIDIA/nccl#964); 1.6 GB for one and 6 GB for three, at worst
    (NVIDIA/nccl#864); little where channels connect lazily (NCCL 2.22 and later).
    """
    if groups <= 0:
        return ()
    return (
        Range(
            "NCCL",
            groups * 100 * MIB,
            groups * 688 * MIB,
            f"{groups} communicator{'s' if groups > 1 else ''} of 0.1 to 0.67 GiB",
            "NVIDIA/nccl#964, NVIDIA/nccl#864, Lumi-supercomputer/LUMI-AI-Guide#111",
        ),
    )


def framework_bytes(gpu: Gpu, *, groups: int = 0) -> tuple[int, int]:
    """The ends of all of `framework_ranges` together."""
    ranges = framework_ranges(gpu, groups=groups)
    return sum(r.low for r in ranges), sum(r.high for r in ranges)


class Slack(NamedTuple):
    """Percent of the allocated peak that the caching allocator reserves: rounding and fragmentation. `typical`: the
    median of the runs."""

    low: int
    typical: int
    high: int


# The low end decides between tight and no. Any from 101 to 107 gives the same verdicts on the 143 published runs of
# tests/reference/outcomes.json, 4 of 135 that ran refused (docs/validation.md). 102 leaves 2 % for rounding.
SLACK = Slack(102, 111, 126)
SLACK_EAGER = Slack(106, 125, 149)
SLACK_SOURCE = (
    "peak_reserved / peak_allocated of the t4- runs in measured.json: 1.04 to 1.26 with sdpa, 1.11 in the median of "
    "16 runs, 1.06 to 1.49 with eager attention, 1.25 in the median of 17; expandable_segments brings it near 1"
)


Allocator = Literal["default", "expandable"]
"""How PyTorch's caching allocator maps memory: in segments of a fixed size, or in ones that grow
(`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`), which leaves next to nothing unusable between blocks."""
ALLOCATORS: tuple[Allocator, ...] = ("default", "expandable")
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def reserved_range(
    allocated_bytes: int, *, eager_attention: bool = False, allocator: Allocator = "default"
) -> tuple[int, int, int]:
    """Return the bytes that the caching allocator reserves for a peak of `allocated_bytes`: (low, typical, high).

    low is what is left when it has given back every free block, as it does before it fails with an out-of-memory
    error (c10/cuda/CUDACachingAllocator.cpp, `release_cached_blocks`). Expandable segments are typically there, and at
    most where the default allocator typically is.
    """
    slack = SLACK_EAGER if eager_attention else SLACK
    if allocator == "expandable":
        slack = Slack(SLACK.low, SLACK.low, slack.typical)
    typical = (allocated_bytes * slack.typical + 50) // 100
    return allocated_bytes * slack.low // 100, typical, -(-allocated_bytes * slack.high // 100)


CUBLAS_DEFAULT = 4096 * 1024 * 2 + 16 * 1024 * 8
CUBLAS_LARGE = 4096 * 1024 * 8


def library_workspace(
    gpu: Gpu, *, threads: int = 2, deterministic: bool = False, transformer_engine: bool = False
) -> Range:
    """Scratch memory of matrix products, inside the allocator and kept for the run.

    cuBLAS: 8.1 MiB a handle, 32 MiB on Hopper (newer PyTorch: on Blackwell too) and under
    CUBLAS_WORKSPACE_CONFIG=:4096:8; forward and backward run on two threads, each with a handle of its own
    (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize; checked against Megatron's regression
    runs).
    Transformer Engine: 32 MiB from Hopper on, 4 MiB before (cpp_extensions/gemm.py,
    get_cublas_workspace_size_bytes).
    """
    if gpu.vendor == "amd":
        low = high = threads * (128 * MIB if gpu.architecture.startswith("gfx94") else 32 * MIB)
    else:
        major = int(float(gpu.architecture))
        low = threads * (CUBLAS_LARGE if deterministic or major == 9 else CUBLAS_DEFAULT)
        high = threads * (CUBLAS_LARGE if deterministic or major >= 9 else CUBLAS_DEFAULT)
        extra = (32 * MIB if major >= 9 else 4 * MIB) if transformer_engine else 0
        low, high = low + extra, high + extra
    return Range("library workspace", low, high, "scratch memory of cuBLAS", "aten/src/ATen/cuda/CublasHandlePool.cpp")
