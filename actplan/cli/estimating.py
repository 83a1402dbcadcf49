"""The options of `actplan estimate`, read from words as its command line reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..memory.setup import Setup
from .grouping import group_of
from .model_options import ModelOptions
from .options import RunOptions
from .settled import asked

if TYPE_CHECKING:
    from ..profile import Source
    from ..training import Run


def parsed(words: Sequence[str]) -> tuple[Source, Run, Setup]:
    """Return the model, the run and the setup that `actplan estimate` with these words asks about.

    Raises InputError as the command does, for words that it does not know too.
    """
    from typer._click.exceptions import ClickException

    from .app import load
    from .usage import explain

    try:
        context = load("estimate").make_context("estimate", list(words))
    except ClickException as error:
        raise explain(error) from None
    # a repeated option comes as a tuple, and typer makes it a list before a command sees it
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in context.params.items()}
    return asked(group_of(ModelOptions, given), group_of(RunOptions, given), group_of(Setup, given))
