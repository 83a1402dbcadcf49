"""The installed command, run as a user runs it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
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


def inside(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command run in this process, which takes a tenth of the time: for many cases
    of one kind, of which one is run as a user runs it."""
    from actplan.cli.main import run

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(arguments)
    finally:
        os.chdir(before)
    return code, _said(out), _said(err)


def _said(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


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


def on_a_terminal(*arguments: str, stream: int = 1, columns: int = 200, code: int = 0, **env: str) -> str:
    """What a terminal on that stream receives, of a command that exits with `code`; the other stream goes nowhere."""
    main, side = pty.openpty()
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    streams["stdout" if stream == 1 else "stderr"] = side
    environment = {**CLEAN, "TERM": "xterm-256color", "COLUMNS": str(columns), **env}
    process = subprocess.Popen([str(COMMAND), *arguments], env=environment, **streams)
    os.close(side)
    received = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:
            break
        if not chunk:
            break
        received += chunk
    os.close(main)
    assert process.wait(timeout=60) == code
    return received.decode().replace("\r\n", "\n")
