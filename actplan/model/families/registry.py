"""The readers of Transformers' configuration classes, one a model type: a config -> the fields of a document.

Defaults are those of Transformers 5.24's own classes (`models/<family>/configuration_<family>.py`), biases
and the layers that slide those of its modules (`modeling_<family>.py`), read and checked against models
built on the meta device. Sizes that name a model (hidden, layers, heads, vocabulary) have no default here.
Which modules Liger replaces is from liger-kernel 0.8.5, `transformers/monkey_patch.py`: the default
arguments of `apply_liger_kernel_to_<family>`.

A new family is a function with `@reader("its_model_type")`, built of the helpers in `parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..reading.hf_config import Config
from .parts import Fields

Reader = Callable[[Config], Fields]
READERS: dict[str, Reader] = {}


@dataclass(frozen=True, slots=True)
class OtherName:
    """A family whose layers are another's under a configuration of its own: what its fields are called there, and what
    absent ones are. Liger has no patch for it."""

    base: Reader
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, config: Config) -> Fields:
        """Read the configuration as the other family's."""
        return {**self.base(config.renamed(self.names, self.defaults)), "liger": []}


def read_as(families: Mapping[str, OtherName]) -> None:
    """Register the readers of families that are others' under another name."""
    for model_type, family in families.items():
        reader(model_type)(family)


def reader(model_type: str) -> Callable[[Reader], Reader]:
    """Register the reader of a model type."""

    def register(read: Reader) -> Reader:
        READERS[model_type] = read
        return read

    return register
