"""The installed command, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).with_name("actplan")
CLEAN = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "ACTPLAN_DEBUG")}


def actplan(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it; stdout and stderr apart."""
    return _run(arguments, tuple((env or {}).items()), cwd)


@cache
def _run(
    arguments: tuple[str, ...], env: tuple[tuple[str, str], ...], cwd: Path | None
) -> subprocess.CompletedProcess[str]:
    """The same command says the same: tests share its runs."""
    return subprocess.run(
        [str(COMMAND), *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**CLEAN, **dict(env)},
        cwd=cwd,
        timeout=120,
        check=False,
    )


def result(*arguments: str) -> Any:
    """Its JSON."""
    done = actplan(*arguments, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def refused(*arguments: str, cwd: Path | None = None) -> str:
    """The one line it says when it exits with 2."""
    done = actplan(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("actplan: error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr.removeprefix("actplan: error: ").rstrip("\n")
