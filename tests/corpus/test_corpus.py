"""Every command of the corpus says what it said before, to the byte."""

from __future__ import annotations

import pytest
from corpus import OUTPUTS, commands, difference, path_of


@pytest.mark.parametrize("command", commands())
def test_output_is_what_it_was(command: str) -> None:
    assert difference(command) == ""


def test_nothing_is_frozen_that_is_not_run() -> None:
    assert {path.name for path in OUTPUTS.glob("*.txt")} == {path_of(command).name for command in commands()}
