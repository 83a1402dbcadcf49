"""The console entry: runs a command and turns whatever happens into an exit code and at most one line.

0 done, 1 the answer is no, 2 wrong usage or specification, 3 a bug of ours, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..basics.errors import ActplanError
from . import interrupt


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The `actplan` command. Never returns."""
    interrupt.install()
    gc.set_threshold(100_000, 50, 50)  # a command is short: what reference counts do not free need not be looked for
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code."""
    try:
        return _invoke(arguments)
    except ActplanError as error:
        return _say(f"error: {error}", error.exit_code)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _bug(error)


def _invoke(arguments: Sequence[str]) -> int:
    from typer._click.exceptions import ClickException  # typer is pinned: its copy of click is part of it

    from .app import application

    try:
        code = application().main(list(arguments), prog_name="actplan", standalone_mode=False)
    except ClickException as error:
        from .usage import explain

        raise explain(error) from None
    return code if isinstance(code, int) else 0


def _bug(error: Exception) -> int:
    if os.environ.get("ACTPLAN_DEBUG"):
        import traceback

        traceback.print_exception(error)
    from .. import __version__

    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    how = "please report it with the command you ran (ACTPLAN_DEBUG=1 shows where)"
    return _say(f"internal error: {what}; this is a bug of actplan {__version__}, {how}", 3)


def _say(message: str, code: int) -> int:
    """One line on stderr, whatever the message quotes."""
    if sys.stderr is not None:
        from ..render.encoding import printable, representable

        print(representable(f"actplan: {printable(message)}", sys.stderr.encoding), file=sys.stderr)
    return code
