"""Typer's usage errors in our words: one line, with the nearest match."""

from __future__ import annotations

from typer._click.exceptions import BadOptionUsage, ClickException, NoSuchOption, UsageError

from ..basics.errors import InputError, nearest

COMPILED = ("--torch-compile", "--activation-memory-budget", "--memory-budget")
"""What people ask for of torch.compile that is no option here."""


def explain(error: ClickException) -> InputError:
    """The same complaint as an `InputError`."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "actplan"
    hint = f"`{command} --help` lists what it takes"
    if isinstance(error, NoSuchOption) and error.option_name in COMPILED:
        return InputError(
            "compiled layers are planned without an activation_memory_budget, which is a search of its own",
            where=error.option_name,
            allowed="--compile layer, loss or layer+loss; --checkpoint POLICY",
            hint="the peak need not fall with that budget: measure it",
        )
    if isinstance(error, NoSuchOption):
        options = [name for p in context.command.params for name in p.opts] if context is not None else []
        near = nearest(error.option_name, options)
        suggestion = f"did you mean {near!r}? " if near else ""
        return InputError(f"unknown option {error.option_name[:64]!r}", hint=suggestion + hint)
    if isinstance(error, BadOptionUsage):
        return InputError(_plain(error), where=command)
    if isinstance(error, UsageError) and context is not None:
        return InputError(_plain(error), hint=hint)
    return InputError(_plain(error))


def _plain(error: ClickException) -> str:
    message = error.format_message().strip().rstrip(".")
    return message[:1].lower() + message[1:]
