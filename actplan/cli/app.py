"""The application: a group of commands, each imported when it is named.

To add a command: a file with a function `command` (or a group `app`) here, and a line in `COMMANDS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import Context

from ..basics.errors import InputError

COMMANDS = {
    "estimate": "What a training step keeps for backward, three ways, and what checkpointing saves.",
    "sweep": "One row for each point of a range of lengths, batches, policies, ...",
    "plan": "Where to checkpoint: the cheapest schedule that fits, the trade-off, the largest that fits.",
    "ledger": "Every saved tensor, with its shape, its bytes and the reason it is kept.",
    "validate": "Published and measured records run through the planner: predicted, measured, how far off.",
    "show": "What another tool's configuration file says, field by field.",
    "export": "A run or a plan as another tool's own settings, or your file with the needed lines changed.",
    "trace": "The same ledger from a real PyTorch model on fake tensors; compare; memory snapshots.",
    "presets": "The built-in models: list them, or show one as a specification.",
    "gpus": "The devices that --gpu knows, with their capacity.",
}
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class PlainGroup(TyperGroup):
    """A group whose misspelt commands are errors in our words."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, known = args[0][:64], self.list_commands(ctx)
        if not name.startswith("-") and name not in known:
            raise InputError(f"unknown command {name!r}", choices=known, got=name)
        return super().resolve_command(ctx, args)


class CommandGroup(PlainGroup):
    """Commands by name. Only the one that runs is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        return load(cmd_name) if cmd_name in COMMANDS else None


def load(name: str) -> TyperCommand | TyperGroup:
    """The command of that name, built from its module."""
    module = import_module(f"{__package__}.{name}")
    if hasattr(module, "app"):
        group = cast("TyperGroup", get_command(module.app))
        group.help, group.short_help = group.help or COMMANDS[name], COMMANDS[name]
        return group
    app = new_app()
    app.command(name, short_help=COMMANDS[name])(module.command)
    return cast("TyperCommand", get_command(app))


def new_app(**settings: object) -> typer.Typer:
    """A typer application that is cheap to start and prints plain text."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP_NAMES,
        **settings,  # type: ignore[arg-type]
    )


def application() -> TyperGroup:
    """The whole command line."""
    app = new_app(cls=CommandGroup)
    app.callback(invoke_without_command=True)(_root)
    return cast("TyperGroup", get_command(app))


def _root(
    ctx: Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Plan the memory of a transformer's training step, tensor by tensor, without PyTorch or a GPU.

    Start with `actplan estimate`. Data goes to stdout, everything else to stderr. Exit codes: 0 done,
    1 the answer is no, 2 wrong usage or specification, 3 a bug.
    """
    from .output import write

    if version:
        from .. import __version__

        write(f"actplan {__version__}\n")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        write(ctx.get_help() + "\n")
