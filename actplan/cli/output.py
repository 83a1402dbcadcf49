"""Where results go: stdout or a file, as a table, JSON, CSV or Markdown, or one value of the JSON."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..basics.errors import InputError
from ..basics.files import reason_of, short_path

if TYPE_CHECKING:
    from ..render.blocks import Block
    from ..render.csv import Sheet
    from ..render.view import View

FORMATS = ("table", "json", "csv", "markdown")
_SUFFIXES = {".json": "json", ".csv": "csv", ".md": "markdown"}


@dataclass(frozen=True)
class OutputOptions:
    """What the result is printed as, and where."""

    format: Annotated[
        str | None,
        Option("--format", metavar="|".join(FORMATS), help="Default: table, or what the ending of -o says."),
    ] = None
    get: Annotated[
        str | None,
        Option("--get", metavar="KEY", help="One value of the JSON, such as estimates.autograd.saved_bytes."),
    ] = None
    output: Annotated[
        str | None, Option("-o", "--output", metavar="FILE", help="Write a file (whole or not at all).")
    ] = None

    quiet: Annotated[
        bool, Option("-q", "--quiet", help="Print nothing: the exit code, and what -o writes, are the answer.")
    ] = False

    @property
    def is_screen(self) -> bool:
        """Whether the result is laid out for people."""
        return self.get is None and self.kind() in ("table", "markdown")

    def kind(self) -> str:
        """The format, checked. Call it before the work, so that a typo costs nothing."""
        if self.quiet and self.get is not None:
            raise InputError("--quiet prints nothing and --get a value", where="--quiet", allowed="one of them")
        if self.format is None:
            return _SUFFIXES.get(Path(self.output or "").suffix.lower(), "table")
        if self.format not in FORMATS:
            word = self.format[:64]
            raise InputError(f"unknown format {word!r}", where="--format", choices=FORMATS, got=word)
        return self.format

    def emit(
        self,
        data: object,
        blocks: Callable[[], Sequence[Block]],
        sheet: Callable[[], Sheet],
    ) -> None:
        """Print `data` (the JSON), or its view as blocks of text, or as a sheet: whatever is asked for."""
        kind = self.kind()
        if self.quiet and self.output is None:
            return
        if self.get is not None:
            from ..render.select import select

            text = select(data, self.get) + "\n"
        elif kind == "json":
            from ..report import to_json

            self._write(to_json(data).decode() + "\n", json=True)
            return
        elif kind == "csv":
            from ..render.csv import to_csv

            text = to_csv(sheet())
        elif kind == "markdown":
            from ..render.markdown import to_markdown

            text = to_markdown(blocks())
        else:
            text = self._table(blocks())
        self._write(text)

    def _table(self, blocks: Sequence[Block]) -> str:
        if self.output is None and sys.stdout is not None:
            shown = sys.stdout.isatty()
            if shown or os.environ.get("FORCE_COLOR"):
                from ..render.terminal import NATURAL, to_terminal

                return to_terminal(blocks, sys.stdout, width=None if shown else NATURAL)
        from ..render.text import to_text

        return to_text(blocks)

    def _write(self, text: str, *, json: bool = False) -> None:
        if self.output is None or self.output == "-":
            write(text, json=json)
        else:
            write_file(Path(self.output), text)


@dataclass(frozen=True)
class NotesOptions:
    """The notes that change no decision."""

    notes: Annotated[
        bool, Option("--notes", help="Every note, not only the three at most that may change a decision.")
    ] = False

    def check(self, output: OutputOptions) -> None:
        """Errors if a screen is asked for more where no screen is printed: JSON always has everything."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) and not output.is_screen:
                wrong = f"--{name} is about the screen"
                raise InputError(wrong, where=f"--{name}", allowed="table and markdown; JSON always has everything")

    def view(self) -> View:
        """The same words, for what renders."""
        from ..render.view import View

        return View(**{name: getattr(self, name) for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class ViewOptions(NotesOptions):
    """What the numbers are made of, and all notes."""

    details: Annotated[
        bool,
        Option("--details", help="Boundaries, working sets, a layer's tensors and bands too."),
    ] = False


def write(text: str, *, json: bool = False) -> None:
    """Data to stdout, in its encoding. A reader that has seen enough (`| head -1`) is no error."""
    from ..render.encoding import escaped_json, representable

    stream = sys.stdout
    if stream is None:
        raise InputError("stdout is closed", allowed="a place to write to, or -o FILE")
    try:
        stream.write((escaped_json if json else representable)(text, stream.encoding))
        stream.flush()
    except OSError as error:
        give_up(error)


def give_up(error: OSError) -> None:
    """Send what is still to be written to stdout nowhere; raises InputError, but for a reader that has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        raise InputError(f"cannot write to stdout: {error.strerror}") from None


def write_file(path: Path, data: str | bytes) -> None:
    """Write `path` whole or not at all: a new file takes its place once it is complete. Text is UTF-8."""
    content = data.encode() if isinstance(data, str) else data
    try:
        with contextlib.suppress(FileNotFoundError):
            path.stat()  # refuses links that lead to one another, which some Pythons' resolve does not
        if path.exists() and not path.is_file():  # /dev/null, a named pipe: nothing to replace
            path.write_bytes(content)
            return
        _replace(path.resolve(), content)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write: {reason_of(error)}", where=short_path(path)) from None


def _replace(path: Path, content: bytes) -> None:
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(13, "Permission denied")
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        with part.open("xb") as stream:
            stream.write(content)
        if mode is not None:
            part.chmod(mode)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def remark(lines: Sequence[str]) -> None:
    """Words beside the data, to stderr, a line each."""
    if sys.stderr is None:
        return
    from ..render.encoding import printable, representable

    for line in lines:
        print(representable(f"actplan: {printable(line)}", sys.stderr.encoding), file=sys.stderr)
