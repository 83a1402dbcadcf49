"""Measures whole steps on the fake accelerator: forward, backward and real optimizers, phase by phase."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.optim.adamw

from executed.activations import FAKE
from executed.fake_accelerator import DEVICE
from executed.meters import Allocations
from executed.models import build
from executed.policies import executed, parse

WEIGHTS = {"bf16": torch.bfloat16, "fp16-pure": torch.float16}
"""Type of the weights by recipe; fp32 where there is none."""
AUTOCAST = {"autocast": torch.bfloat16, "fp16": torch.float16}
Peaks = dict[str, dict[str, int]]


def without_numbers() -> None:
    """Replace what reads a number, since fake tensors have none: a step count, and whether a gradient overflowed."""
    for name in ("adam", "adamw", "sgd", "_adafactor", "_muon", "optimizer"):
        module = sys.modules.get(f"torch.optim.{name}")
        if hasattr(module, "_get_value"):
            module._get_value = lambda value: 1.0 if isinstance(value, torch.Tensor) else value
    torch.amp.GradScaler._maybe_opt_step = lambda _self, optimizer, _state, *a, **k: optimizer.step(*a, **k)


def optimizers(name: str, model: Any) -> list[Any]:
    """The optimizers that a word of `--optimizer` means; Muon leaves embeddings, head and vectors to AdamW."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "muon":
        matrices = [
            parameter
            for key, parameter in model.named_parameters()
            if parameter.ndim == 2 and "embed" not in key and "lm_head" not in key
        ]
        others = {id(parameter) for parameter in matrices}
        return [
            torch.optim.Muon(matrices, lr=1e-3),
            torch.optim.AdamW([parameter for parameter in parameters if id(parameter) not in others], foreach=True),
        ]
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return [Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False, warmup_init=False)]
    made: dict[str, Any] = {
        "adamw": lambda: torch.optim.AdamW(parameters, foreach=True),
        "adamw-loop": lambda: torch.optim.AdamW(parameters, foreach=False),
        "adamw-fused": lambda: torch.optim.AdamW(parameters, fused=True),
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3, foreach=True),
        "sgd-momentum": lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True),
    }
    return [made[name]()]


def run_steps(
    model: str,
    layers: int,
    batch: int,
    seq: int,
    attention: str,
    recipe: str,
    optimizer: str,
    policy: str = "none",
    microbatches: int = 1,
    hold_logits: bool = False,
    set_to_none: bool = True,
    steps: int = 3,
) -> Peaks:
    """Measure training steps: the highest bytes of each phase, in the first step and in later ones.

    `hold_logits` keeps the model's output until the next forward has made another, as `outputs = model(…)` in a plain
    loop does.
    """
    without_numbers()
    with FAKE:
        built = build(model, layers, attention, WEIGHTS.get(recipe, torch.float32), DEVICE)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0, enabled=recipe == "fp16")
        chosen = optimizers(optimizer, built)
        ids = torch.zeros(batch, seq, dtype=torch.long, device=DEVICE)
        meter = Allocations([ids, *built.parameters(), *built.buffers()], device=DEVICE)
        with executed(built, parse(policy, layers)), meter:
            for step in range(steps):
                for number in range(microbatches):
                    meter.enter_phase(f"forward_loss {step}.{number}")
                    with torch.autocast(DEVICE, dtype=AUTOCAST[recipe]) if recipe in AUTOCAST else nullcontext():
                        out = built(input_ids=ids, labels=ids, use_cache=False)
                    loss = out.loss if microbatches == 1 else out.loss / microbatches
                    if not hold_logits:
                        del out
                    loss = scaler.scale(loss)
                    meter.enter_phase(f"backward {step}.{number}")
                    loss.backward()
                    del loss
                meter.enter_phase(f"optimizer_step {step}")
                for one in chosen:
                    scaler.step(one)
                scaler.update()
                meter.enter_phase(f"zero_grad {step}")
                for one in chosen:
                    one.zero_grad(set_to_none=set_to_none)
    return meter.phases()
