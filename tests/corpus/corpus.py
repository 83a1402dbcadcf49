"""What about two hundred commands print, frozen: a change of the inside must not change a byte of it.

    python tests/corpus/corpus.py            compare, and name what differs
    python tests/corpus/corpus.py --freeze   write the outputs anew, after a change that is meant

The corpus proves nothing about numbers, which come from our own output here: the golden tests do that. It shows what a
restructuring changed. Commands are in commands.txt; each has a file in outputs/.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

HERE = Path(__file__).parent
REFERENCE = HERE.parent / "reference"
OUTPUTS = HERE / "outputs"


def commands() -> list[str]:
    """Return the commands, in the order of the file."""
    lines = (HERE / "commands.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def path_of(command: str) -> Path:
    """Return the file of a command's output: named after its words, with a checksum that keeps names apart."""
    words = re.sub(r"[^a-z0-9.]+", "-", command.lower()).strip("-")
    return OUTPUTS / f"{words[:80].rstrip('-')}.{crc32(command.encode()):08x}.txt"


def output_of(command: str) -> str:
    """Run a command in this process, as from a shell in tests/reference, and return all that it says."""
    from actplan.cli.main import run

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with _inside(REFERENCE), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(shlex.split(command))
    parts = (_text(out), _text(err))
    return f"$ actplan {command}\nexit {code}\n--- stdout\n{parts[0]}--- stderr\n{parts[1]}"


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def difference(command: str) -> str:
    """Return how a command's output differs from the frozen one, as a unified diff; empty where it does not."""
    path = path_of(command)
    frozen = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(frozen.splitlines(), output_of(command).splitlines(), path.name, "now", lineterm="")
    return "\n".join(lines)


def freeze() -> None:
    """Write every output, and delete those of commands that are gone."""
    OUTPUTS.mkdir(exist_ok=True)
    kept = set()
    for command in commands():
        path_of(command).write_text(output_of(command), encoding="utf-8")
        kept.add(path_of(command))
    for path in set(OUTPUTS.glob("*.txt")) - kept:
        path.unlink()


def main(arguments: list[str]) -> int:
    """Freeze or compare; return 1 where something differs."""
    if arguments == ["--freeze"]:
        freeze()
        return 0
    changed = [found for command in commands() if (found := difference(command))]
    print("\n\n".join(changed))
    print(f"{len(changed)} of {len(commands())} commands differ")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
