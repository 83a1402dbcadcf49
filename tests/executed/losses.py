"""Measures a step with TRL's fused head on the fake accelerator, as SFTTrainer runs it on a GPU.

TRL's own autograd function runs; what stands in are its Triton kernels, which write into tiles that are there, and
cuBLAS's product that accumulates into fp32 in place (`torch.addmm(out_dtype=…, out=…)`, CUDA only). Rows are picked
with a mask on a GPU (`hidden_states[mask]`), which fake tensors cannot: a function here copies all of them.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch

from executed.activations import FAKE
from executed.fake_accelerator import DEVICE
from executed.meters import Allocations
from executed.models import build, trunk
from executed.policies import executed, parse


class _Launch:
    def __getitem__(self, _grid: Any) -> Any:
        return lambda *_, **__: None


class _Triton:
    @staticmethod
    def cdiv(a: int, b: int) -> int:
        return -(-a // b)


@cache
def fused_head() -> Any:
    """TRL's function, and the width of its tiles."""
    import trl.kernels.chunked_logprob as kernels
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    kernels.triton = _Triton
    kernels._use_triton = lambda _device: True
    kernels._forward_kernel = kernels._backward_kernel = _Launch()
    kernels._addmm_fp32 = lambda *_: None
    return kernels.ChunkedLogProbFunction, _CHUNKED_LOGPROB_CHUNK_SIZE


class _PickedRows(torch.autograd.Function):  # type: ignore[misc]
    """`hidden[mask]` of (B, T, H) with a mask that is true everywhere."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, mask: Any) -> Any:
        ctx.save_for_backward(mask)
        ctx.shape = hidden.shape
        return hidden.new_empty(mask.numel(), hidden.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None]:
        return grad.new_zeros(ctx.shape), None


def trl_loss(model: Any, ids: Any) -> Any:
    """The negative log-likelihood as `add_fused_lm_head`'s forward computes it (trl/trainer/utils.py)."""
    function, tile = fused_head()
    hidden = trunk(model)(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    labels = ids[:, 1:]
    mask = labels != -100
    outputs = ("log_probs", "entropy", "is_top1")
    found = function.apply(
        _PickedRows.apply(hidden, mask), model.lm_head.weight, None, labels.reshape(-1), 1.0, tile, None, 1.0, outputs
    )
    return -found[0].sum() / mask.sum()


def run_trl_steps(
    model: str, layers: int, batch: int, seq: int, vocab_size: int, autocast: bool, policy: str = "layer"
) -> dict[str, dict[str, int]]:
    """Measure steps with fused AdamW: fp32 weights under bf16 autocast, or bf16 weights."""
    with FAKE:
        dtype = torch.float32 if autocast else torch.bfloat16
        built = build(model, layers, "flash", dtype, DEVICE, vocab_size=vocab_size)
        optimizer = torch.optim.AdamW(built.parameters(), fused=True)
        ids = torch.zeros(batch, seq, dtype=torch.long, device=DEVICE)
        meter = Allocations([ids, *built.parameters(), *built.buffers()], device=DEVICE)
        with executed(built, parse(policy, layers)), meter:
            for step in range(2):
                meter.enter_phase(f"forward_loss {step}.0")
                with torch.autocast(DEVICE, dtype=torch.bfloat16) if autocast else nullcontext():
                    loss = trl_loss(built, ids)
                meter.enter_phase(f"backward {step}.0")
                loss.backward()
                del loss
                meter.enter_phase(f"optimizer_step {step}")
                optimizer.step()
                optimizer.zero_grad()
    return meter.phases()
