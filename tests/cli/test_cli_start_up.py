"""What is loaded at start. The guard is shown able to fail."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli_harness import CLEAN

HEAVY = ("rich", "numpy", "pydantic", "torch", "transformers", "scipy", "matplotlib")
PROBE = """
import json, sys
from actplan.cli.main import run
code = run(sys.argv[1:])
sys.stdout.flush()
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules(*arguments: str, before: str = "") -> set[str]:
    """Everything that is imported once the command is through."""
    done = subprocess.run(
        [sys.executable, "-c", before + PROBE, *arguments],
        capture_output=True,
        text=True,
        env=CLEAN,
        timeout=60,
        check=True,
    )
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return set(names)


def heavy(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} & set(HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        ("estimate", "--format", "json"),
        ("estimate",),
        ("estimate", "--format", "csv"),
        ("estimate", "--get", "estimates.autograd.saved_bytes"),
        ("sweep", "--seq", "1k,2k", "--format", "json"),
        ("ledger", "--layer", "0", "--format", "json"),
        ("presets",),
        ("gpus",),
        ("--version",),
        ("--help",),
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_loaded(arguments: tuple[str, ...]) -> None:
    assert heavy(modules(*arguments)) == set()


def test_few_modules_of_ours_are_loaded() -> None:
    names = modules("estimate", "--format", "json")
    assert len(names) < 300
    others = {
        "actplan.cli.sweep",
        "actplan.cli.ledger",
        "actplan.cli.presets",
        "actplan.cli.gpus",
        "actplan.render.markdown",
    }
    assert not names & others


def test_the_guard_can_fail() -> None:
    assert heavy(modules("--version", before="import rich.console\n")) == {"rich"}
    assert heavy({"numpy.core", "os"}) == {"numpy"}


def test_a_rare_loss_is_loaded_with_its_first_use() -> None:
    for loss in ("naive", "fused", "trl"):
        loaded = "actplan.ops.tiled_loss" in modules("estimate", "--loss", loss, "--seq", "64", "--format", "json")
        assert loaded == (loss == "trl")
