"""A progress bar on stderr, when there is a wait and somebody to see it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 2.0
"""Seconds without a bar."""


def shown(items: Iterable[T], total: int) -> Iterator[T]:
    """The items, as they come; a bar once they take more than two seconds and stderr is a terminal."""
    source = iter(items)
    if sys.stderr is None or not sys.stderr.isatty():
        yield from source
        return
    start, done = time.monotonic(), 0
    for item in source:
        done += 1
        yield item
        if time.monotonic() - start > PATIENCE:
            break
    else:
        return
    yield from _with_bar(source, done, total)


@contextmanager
def spoken() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done, replaced by the next and gone at the end; none where stderr is
    no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with console.status("") as status:
        yield status.update


def _with_bar(source: Iterator[T], done: int, total: int) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        for item in source:
            yield item
            bar.advance(task)
