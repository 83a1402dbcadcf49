"""Measures Transformers' Trainer, and a plain loop beside it, with tiny real models on the CPU."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from executed.meters import Allocations
from executed.models import configuration

STEPS = 3
Peaks = dict[str, dict[str, int]]


def _model(model: str, layers: int) -> Any:
    """A model as Transformers builds it, in fp32 with eager attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    raw = configuration(model, layers)
    config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)


def run_plain(model: str, layers: int, batch: int, seq: int, checkpointed: bool = False, hold: bool = False) -> Peaks:
    """Measure a plain loop with clipping and AdamW.

    With `hold` it is the loop that people write: `outputs = model(…); loss = outputs.loss`, where both names live on
    until the next forward has returned.
    """
    built = _model(model, layers)
    if checkpointed:
        built.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    built.train()
    optimizer = torch.optim.AdamW(built.parameters(), foreach=True)
    ids = torch.full((batch, seq), 5)
    meter = Allocations([ids, *built.parameters(), *built.buffers()])
    with meter:
        for step in range(STEPS):
            meter.enter_phase(f"forward_loss {step}")
            if hold:
                outputs = built(input_ids=ids, labels=ids, use_cache=False)
                loss = outputs.loss
            else:
                loss = built(input_ids=ids, labels=ids, use_cache=False).loss
            meter.enter_phase(f"backward {step}")
            loss.backward()
            meter.enter_phase(f"clip {step}")
            torch.nn.utils.clip_grad_norm_(built.parameters(), 1.0)
            meter.enter_phase(f"optimizer_step {step}")
            optimizer.step()
            meter.enter_phase(f"zero_grad {step}")
            optimizer.zero_grad()
    return meter.phases()


def run_trainer(
    model: str, layers: int, batch: int, seq: int, accumulate: int = 1, checkpointed: bool = False
) -> Peaks:
    """Measure `Trainer.train` with its default optimizer, three steps without saving or logging."""
    import datasets
    from transformers import Trainer, TrainingArguments

    built = _model(model, layers)
    tokens = {"input_ids": [5] * seq, "labels": [5] * seq, "attention_mask": [1] * seq}
    data = datasets.Dataset.from_list([tokens] * (batch * STEPS * accumulate))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulate,
            gradient_checkpointing=checkpointed,
            max_steps=STEPS,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model=built, args=arguments, train_dataset=data)
        meter = Allocations([*built.parameters(), *built.buffers()])
        _mark_phases(trainer, meter)
        with meter:
            trainer.train()
    return meter.phases()


def _mark_phases(trainer: Any, meter: Allocations) -> None:
    """Tell the meter where a step's phases begin: the Trainer's own methods are wrapped."""
    step = 0
    loss, backward, create = trainer.compute_loss, trainer.accelerator.backward, trainer.create_optimizer

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        meter.enter_phase(f"forward_loss {step}")
        return loss(*args, **kwargs)

    def run_backward(*args: Any, **kwargs: Any) -> None:
        meter.enter_phase(f"backward {step}")
        backward(*args, **kwargs)
        meter.enter_phase(f"clip {step}")

    def create_optimizer(*args: Any, **kwargs: Any) -> Any:
        optimizer = create(*args, **kwargs)
        original = optimizer.step

        def run_step(*inner: Any, **more: Any) -> Any:
            nonlocal step
            meter.enter_phase(f"optimizer_step {step}")
            result = original(*inner, **more)
            meter.enter_phase(f"zero_grad {step}")
            step += 1
            return result

        optimizer.step = run_step
        return optimizer

    trainer.compute_loss, trainer.accelerator.backward = compute_loss, run_backward
    trainer.create_optimizer = create_optimizer


def defaults() -> dict[str, Any]:
    """What a Trainer and an SFTTrainer do unless told otherwise."""
    from transformers import TrainingArguments
    from trl import SFTConfig
    from trl.trainer import sft_trainer

    with tempfile.TemporaryDirectory() as folder:
        plain = TrainingArguments(output_dir=folder, use_cpu=True, report_to=[])
        tuned = SFTConfig(output_dir=folder, use_cpu=True, bf16=False, report_to=[])
    return {
        "optimizer": str(plain.optim.value),
        "trainer_checkpoints": plain.gradient_checkpointing,
        "sft_checkpoints": tuned.gradient_checkpointing,
        "sft_loss": tuned.loss_type,
        "sft_has_fused_head": hasattr(sft_trainer, "add_fused_lm_head"),
    }
