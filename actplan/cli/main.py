"""The console entry: runs a command and turns whatever happens into an exit code and at most one line.

0 done, 1 the answer is no, 2 wrong usage or specification, 3 a bug of ours, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from ..basics.errors import ActplanError, InputError, shortened

LONGEST_LINE = 400
"""Characters of the one line on stderr."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The `actplan` command. Never returns."""
    interruptible()
    gc.set_threshold(100_000, 50, 50)  # a command is short: what reference counts do not free need not be looked for
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code."""
    try:
        _check_text(arguments)
        return _invoke(arguments)
    except ActplanError as error:
        return _say(f"error: {error}", error.exit_code)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _bug(error)


def _check_text(arguments: Sequence[str]) -> None:
    """Raises InputError for an argument that is not UTF-8, which no message and no result could quote."""
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise InputError(f"argument {number} is not valid UTF-8") from None


def _invoke(arguments: Sequence[str]) -> int:
    from typer._click.exceptions import ClickException  # typer is pinned: its copy of click is part of it

    from .app import application

    try:
        code = application().main(list(arguments), prog_name="actplan", standalone_mode=False)
    except ClickException as error:
        from .usage import explain

        raise explain(error) from None
    except OSError as error:
        if error.filename is not None:  # a stream has no name: typer prints the help by itself
            raise
        from .output import give_up

        give_up(error)
        return 0
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
    """One line on stderr, whatever the message quotes; where stderr cannot be written, the code alone."""
    if sys.stderr is not None:
        from ..render.encoding import printable, representable

        line = shortened(f"actplan: {printable(message)}", LONGEST_LINE)
        try:
            print(representable(line, sys.stderr.encoding), file=sys.stderr, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code


# --- Ctrl-C, wherever it falls -------------------------------------------------------------------------------------

SOON = 0.01
"""Seconds until the next try."""


def interruptible() -> None:
    """Raise KeyboardInterrupt on SIGINT; inside a finaliser, where Python drops it, a moment later.

    The shape autograd counts storages in `__del__`, so a sweep is often in one.
    """
    if hasattr(signal, "setitimer") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    at = frame
    while at is not None:
        if at.f_code.co_name == "__del__":
            signal.setitimer(signal.ITIMER_REAL, SOON)
            return
        at = at.f_back
    raise KeyboardInterrupt
