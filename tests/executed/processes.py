"""Measurements in processes of their own.

Some programs replace functions of PyTorch or register a device, so no test runs one in its own process. A process is
started for the first measurement of its kind and takes the later ones too; it ends with the tests.
"""

from __future__ import annotations

import importlib
import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

KINDS = {"optimizers": "accelerator", "losses": "accelerator", "trainers": "trainer"}
"""Which kind of process a module needs: one with the fake accelerator, or one where Transformers is as it came."""


def measure(program: str, **arguments: Any) -> Any:
    """Call a measuring program, `module.function` of this package, with plain data; give back its plain data."""
    module, _, function = program.partition(".")
    return _process(KINDS.get(module, "plain")).submit(_call, module, function, arguments).result()


@cache
def _process(kind: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin, initargs=(kind,))


def _begin(kind: str) -> None:
    """Set a new process up: quiet, offline, and with the accelerator where one is wanted."""
    import warnings

    warnings.filterwarnings("ignore")
    os.environ.update(
        CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", WANDB_DISABLED="true"
    )
    import torch

    torch.set_num_threads(1)
    if kind == "accelerator":
        importlib.import_module("executed.fake_accelerator")


def _call(module: str, function: str, arguments: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(f"executed.{module}"), function)(**arguments)
