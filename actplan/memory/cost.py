"""What a training run costs in GPU-hours, and how much of it is recomputation."""

from __future__ import annotations

from ..basics.errors import InputError
from ..profile.profile import Segmented
from ..report import Cost
from .gpus import Gpu

CHINCHILLA_TOKENS_PER_PARAMETER = 20
"""Hoffmann et al. 2022, arXiv 2203.15556, table 3: about 20 tokens a parameter for a compute-optimal run."""


def cost(undivided: Segmented, *, tokens: int, gpus: int, mfu: float, gpu: Gpu) -> Cost:
    """GPU-hours of a run.

    Args:
        undivided: the model under the run's checkpointing, on a mesh of ones.
        tokens: of the whole run. gpus: devices; the hours are theirs together.
        mfu: model FLOPs utilisation: forward and backward without recomputation over what the devices could do
            (Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Recomputation is paid on top, at the same rate.
    """
    if not 0 < mfu <= 1:
        raise InputError(f"{mfu} is no utilisation", where="--mfu", allowed="more than 0 and at most 1")
    step = 3 * undivided.measured.flops
    again = undivided.evaluation.cost
    per_token = step // undivided.run.tokens
    seconds = tokens * step / undivided.run.tokens / (gpu.peak_flops * mfu)
    extra = seconds * again / step if step else 0.0
    return Cost(
        tokens=tokens,
        gpus=gpus,
        mfu=mfu,
        step_flops_per_token=per_token,
        gpu_hours=(seconds + extra) / 3600,
        recompute_gpu_hours=extra / 3600,
        recompute_share=extra / (seconds + extra) if seconds else 0.0,
    )
