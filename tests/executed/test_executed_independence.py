"""The measuring programs are a counter of their own, and leave the process of the tests as it was."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("test_"))
LIGHT = ("models", "processes", "product")
"""What tests import; the rest is imported where it measures."""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_nothing_of_ours_measures(path: Path) -> None:
    ours = {name for name in imported(path) if name.split(".")[0] == "actplan"}
    assert ours <= ({"actplan.cli.main", "actplan.cli.main.run"} if path.stem == "product" else set())


def test_tests_import_no_framework() -> None:
    script = f"import sys; sys.path.insert(0, {str(HERE.parent)!r})\n"
    script += "".join(f"import executed.{name}\n" for name in LIGHT)
    script += "print(sorted({'torch', 'transformers', 'peft', 'trl'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
