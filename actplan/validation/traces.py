"""`megatron_autograd.json`, `torchtitan_autograd.json`: every saved tensor of other frameworks' layers, traced on fake
tensors."""

from __future__ import annotations

from collections.abc import Callable

from ..basics.errors import InputError
from . import on_megatron, on_torchtitan
from .records import Fields, Record


def read(record: Fields, config: Callable[[str], str]) -> Record:
    """Return a traced run as a record, by the framework whose arguments it has."""
    if "flavor" in record.mapping("args"):
        return on_torchtitan.read_trace(record, config)
    if "spec" in record.mapping("args"):
        return on_megatron.read_trace(record, config)
    raise InputError("has the arguments of no framework that is known", where=f"{record.where}.args")
