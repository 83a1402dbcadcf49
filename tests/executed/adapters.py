"""Measures peft's adapters on fake tensors: what autograd keeps, and the phases of a step that trains them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from executed.activations import FAKE, measure_step, step_of
from executed.meters import Allocations
from executed.models import build
from executed.policies import Policy
from executed.process_group import step_counts_without_numbers


@contextmanager
def _parameters_put_back() -> Iterator[None]:
    """Let modules be cast: `Module._apply` exchanges a parameter's data, which a fake parameter refuses, so that a new
    parameter is put in its place."""
    original = torch.nn.Module._apply

    def apply(self: Any, function: Any, recurse: bool = True) -> Any:
        for child in self.children():
            apply(child, function)
        for name, parameter in list(self._parameters.items()):
            if parameter is None:
                continue
            with torch.no_grad():
                cast = function(parameter)
            if cast is not parameter:
                self._parameters[name] = torch.nn.Parameter(cast, requires_grad=parameter.requires_grad)
        for name, buffer in list(self._buffers.items()):
            if buffer is not None:
                self._buffers[name] = function(buffer)
        return self

    torch.nn.Module._apply = apply
    try:
        yield
    finally:
        torch.nn.Module._apply = original


def adapted(
    model: str,
    layers: int,
    rank: int,
    targets: str | list[str],
    save: list[str] | None = None,
    *,
    fp32: bool = True,
    dropout: float = 0.0,
    dora: bool = False,
    checkpointed: bool = False,
    input_require_grads: bool = False,
) -> Any:
    """Give a bf16 model of the grid adapters, in fp32 as peft does by itself or in the model's type.

    Returns the model inside of peft's, whose forward is called. To be called inside the fake mode.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank, target_modules=targets, lora_dropout=dropout, modules_to_save=save, use_dora=dora, task_type="CAUSAL_LM"
    )
    with _parameters_put_back():
        wrapped = get_peft_model(build(model, layers, "flash", torch.bfloat16), config, autocast_adapter_dtype=fp32)
    wrapped.train()
    _own_storages(wrapped)
    inner = wrapped.get_base_model()
    if checkpointed:
        inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if input_require_grads:
        inner.enable_input_require_grads()
    return inner


def _own_storages(model: Any) -> None:
    """A copy that peft makes of a fake module (`modules_to_save`) has one storage for each view of a parameter."""
    for module in model.modules():
        if type(module).__name__ == "ModulesToSaveWrapper":
            for part in module.modules_to_save.modules():
                for name, parameter in part._parameters.items():
                    if parameter is not None:
                        part._parameters[name] = torch.nn.Parameter(torch.empty_like(parameter))


def run_lora(model: str, layers: int, batch: int, seq: int, loss: str = "naive", **adapters: Any) -> dict[str, int]:
    """Measure one forward and backward: the fields of `estimates.autograd`."""
    with FAKE:
        inner = adapted(model, layers, **adapters)
        return measure_step(inner, step_of(inner, batch, seq, loss), Policy([], {}))


def run_lora_steps(model: str, layers: int, batch: int, seq: int, **adapters: Any) -> dict[str, dict[str, int]]:
    """Measure steps with AdamW on the adapters."""
    with FAKE, step_counts_without_numbers():
        inner = adapted(model, layers, **adapters)
        optimizer = torch.optim.AdamW([p for p in inner.parameters() if p.requires_grad], foreach=True)
        ids = torch.zeros(batch, seq, dtype=torch.long)
        meter = Allocations([ids, *inner.parameters(), *inner.buffers()])
        with meter:
            for step in range(2):
                meter.enter_phase(f"forward_loss {step}")
                loss = inner(input_ids=ids, labels=ids, use_cache=False).loss
                meter.enter_phase(f"backward {step}")
                loss.backward()
                del loss
                meter.enter_phase(f"optimizer_step {step}")
                optimizer.step()
                optimizer.zero_grad()
    return meter.phases()
