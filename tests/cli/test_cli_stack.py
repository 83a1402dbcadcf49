"""`--stack`: which framework runs the model, from outside."""

from __future__ import annotations

import json

import pytest
from cli_harness import actplan


def test_the_default_is_transformers() -> None:
    """Naming it changes nothing."""
    plain = actplan("estimate", "--preset", "llama-3-8b", "--format", "json")
    named = actplan("estimate", "--preset", "llama-3-8b", "--stack", "transformers", "--format", "json")
    assert plain.stdout == named.stdout
    assert json.loads(plain.stdout)["run"]["stack"] == "transformers"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--stack", "megaton"), "--stack: unknown value 'megaton'; did you mean 'megatron'?"),
        (("--stack", "transformers", "--stack-set", "a=1"), "--stack-set: transformers has no settings of its own"),
        (("--stack-set", "a=1"), "--stack-set: transformers has no settings of its own"),
    ],
)
def test_what_a_stack_does_not_have_is_an_error(arguments: tuple[str, ...], said: str) -> None:
    done = actplan("estimate", "--preset", "llama-3-8b", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
