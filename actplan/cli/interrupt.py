"""Ctrl-C, wherever it falls."""

from __future__ import annotations

import signal
from types import FrameType

SOON = 0.01
"""Seconds until the next try."""


def install() -> None:
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
