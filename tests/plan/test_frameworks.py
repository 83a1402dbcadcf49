"""What each framework can be set to: its policies are among what it runs, and nothing else compares its name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import actplan
from actplan.basics.errors import InputError
from actplan.checkpointing.frameworks import FRAMEWORKS, check_per_op, framework
from actplan.cli.main import run
from actplan.training.policies import Layers, Modules, Selective

NAMES = list(FRAMEWORKS)
PACKAGE = Path(actplan.__file__).parent


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_it_runs_what_it_names(name: str, count: int) -> None:
    about, layers = FRAMEWORKS[name], Layers(count, 1, [1] * count)
    policies = [*about.named(count), *(policy for _, policy in about.rules(count))]
    assert [str(policy) for policy in policies[:2]] == ["none", "layer"]
    for policy in policies:
        assert about.runs(policy.segments(layers), count), policy
    assert bool(list(about.settings(count))) == about.listed
    for policy in about.settings(count):
        segments = policy.segments(layers)
        assert about.long_segments or all(first == last for first, last in segments)


def test_segments_that_a_framework_cannot_run() -> None:
    able = {name: one for name, one in FRAMEWORKS.items() if one.runs([(0, 2), (3, 3)], 6)}
    assert list(able) == ["any", "torch"]
    assert [name for name, one in FRAMEWORKS.items() if one.runs([(1, 1), (4, 4)], 6)] == ["any", "torch", "hf"]
    assert [name for name, one in FRAMEWORKS.items() if one.runs([(0, 3), (4, 5)], 6)] == ["any", "torch", "megatron"]
    assert all(one.runs([], 6) for one in FRAMEWORKS.values())


def test_each_has_its_own_words() -> None:
    parts = Modules(("core_attn", "mlp"))
    assert FRAMEWORKS["megatron"].described(parts) == "core_attn and mlp run again (Megatron selective)"
    kept = Selective(("attention", "matmul"))
    assert FRAMEWORKS["any"].described(kept) == "attention and every product kept (selective)"
    assert FRAMEWORKS["torchtitan"].described(kept) == "attention and every second product kept (torchtitan selective)"


def test_an_unknown_one_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown framework 'torchtitam'.*torchtitan"):
        framework("torchtitam")


def test_single_outputs_where_they_can_be_kept() -> None:
    with pytest.raises(InputError, match=r"hf cannot keep single outputs.*with --only any, torch, torchtitan"):
        check_per_op(framework("hf"))
    check_per_op(framework("torch"))


def test_the_help_names_them_all(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--help"]) == 0
    assert "|".join(NAMES) in capfd.readouterr().out


def compared(source: str) -> list[int]:
    """Lines that compare something called `only`, `framework` or `name` with a framework's name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            asked = ast.unparse(node.left).rpartition(".")[2] in ("only", "framework", "name")
            words = {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)}
            found += [node.lineno] if asked and words & set(NAMES) else []
    return found


def test_no_name_is_compared_elsewhere() -> None:
    """`only == "megatron"` in another file would be a limit of a framework that its class does not know."""
    own = PACKAGE / "checkpointing" / "frameworks"
    files = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(own)]
    assert {path.name: lines for path in files if (lines := compared(path.read_text(encoding="utf-8")))} == {}


def test_the_guard_can_fail() -> None:
    assert compared('x = 1\nif about.only in ("any", "torch"):\n    pass\n') == [2]
    assert compared('single = only == "hf"\n') == [1]
