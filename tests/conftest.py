"""Helpers of one folder are importable from every test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("cli", "golden", "plan", "schedule")]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules that need PyTorch to be imported are not, where their tests are deselected anyway; in the suite that
    selects them, a missing PyTorch is an error and never a skip."""
    if config.option.markexpr == "not torch" and collection_path.suffix == ".py":
        return True if "\npytestmark = pytest.mark.torch\n" in collection_path.read_text(encoding="utf-8") else None
    return None


@pytest.fixture
def out_of_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gradients are added as autograd adds them under a dispatch mode, under which some records were made."""
    from actplan.autograd import Tape
    from actplan.profile.measured import measure
    from actplan.profile.of_model import known
    from actplan.stacks.transformers import model as layers

    monkeypatch.setattr(layers, "Tape", partial(Tape, in_place=False))
    measure.cache_clear()
    known.cache_clear()
    yield
    measure.cache_clear()
    known.cache_clear()
