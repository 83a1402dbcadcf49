"""`actplan export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from ..basics.errors import InputError
from ..memory.setup import Setup
from .grouping import grouped
from .model_options import ModelOptions
from .options import RunOptions
from .settled import FileOptions, asked

if TYPE_CHECKING:
    from ..configs.writing import Settings, Words
    from ..model import Model
    from ..training import Run

TRAINERS = ("hf", "trl", "axolotl", "llamafactory", "torchtitan")
"""Whose settings name an optimizer."""
PLANS = {"megatron": "megatron", "torchtitan": "torchtitan", "torch": "torch"}
"""What of `plan --only` a framework can run; a file of the others says whether layers are checkpointed, no more."""


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    budget: Setup,
    files: FileOptions,
    *,
    to: Annotated[
        str | None,
        Option(
            "--to",
            metavar="TOOL",
            help="hf, trl, accelerate, deepspeed, axolotl, llamafactory, megatron, torchtitan, torch.",
        ),
    ] = None,
    edit: Annotated[
        str | None,
        Option("--edit", metavar="FILE", help="That file of yours, with only the needed lines changed."),
    ] = None,
    plan: Annotated[
        str | None,
        Option("--plan", metavar="SIZE", help="Checkpoint as `actplan plan --limit SIZE` would for that tool."),
    ] = None,
    output: Annotated[str | None, Option("-o", "--output", metavar="FILE", help="Write a file.")] = None,
) -> int:
    """A run or a plan as another tool's own settings, or your own file with only the needed lines changed.

    With --edit the file is read first, as with --from, and the options say what is to be different. What a tool has no
    setting for is refused, with the nearest that it has.
    """
    if to is None:
        from ..configs.writing import WRITERS

        raise InputError("no tool to write for", where="export", choices=(*WRITERS, "torch"))
    if edit is not None and not files.from_:
        files = dataclasses.replace(files, from_=[edit])
    name = model.model or model.preset
    if files.from_:
        found = files.found(model, run, budget)
        model, run, budget, name = found.model, found.run, found.budget, name or found.reading.model
    else:
        model, run, budget = files.applied(model, run, budget)
    loaded, settled, _ = asked(model, run, budget)
    from ..model import Model

    if not isinstance(loaded, Model):
        raise InputError("a ledger has no settings", where="--ledger", allowed="--preset, --model or --from")
    policy = None
    if plan is not None:
        policy = _planned(loaded, settled, to, plan)
        if policy is None:
            return 1
        run = RunOptions(**{**run.said, "checkpoint": policy})
    if to == "torch":
        return _written(_module(loaded, settled, policy, edit), output)
    words = words_of(name, run, budget)
    if edit is None and "optimizer" not in words.options and to in TRAINERS and budget.recipe is not None:
        words.options["optimizer"] = _own_optimizer(budget.recipe)
    return _written(_text(to, edit, words, loaded, settled), output)


def _written(text: str, output: str | None) -> int:
    from .output import write, write_file

    if output is None or output == "-":
        write(text)
    else:
        write_file(Path(output), text)
    return 0


def _module(model: Model, run: Run, planned: str | None, edit: str | None) -> str:
    """The module of PyTorch that checkpoints the run's segments, or the plan's."""
    from ..configs.writing.modules import module
    from ..profile import profile_of
    from ..training.policies import parse_policy, recomputed_parts

    if edit is not None:
        raise InputError("a module of PyTorch is written whole", where="--edit", allowed="without --edit")
    policy = run.checkpoint if planned is None else parse_policy(planned)
    if recomputed_parts(policy):
        raise InputError(
            f"torch cannot express --checkpoint {policy}", where="--to", allowed="whole layers, selective:"
        )
    found = profile_of(model, run).under(policy)
    return module(found.segments, found.keeps, model.num_layers, f"{model.name} by {policy}")


def words_of(name: str | None, run: RunOptions, budget: Setup) -> Words:
    """Return every option that is not as it is without any; name: the model's."""
    from ..configs.writing import Words

    plain, nothing = RunOptions().said, Setup()
    options: dict[str, Any] = {name: said for name, said in run.said.items() if said != plain[name]}
    fields = ((name, getattr(budget, name)) for name in Setup.__struct_fields__)
    options |= {name: value for name, value in fields if value != getattr(nothing, name)}
    return Words(options, name)


def _own_optimizer(recipe: str) -> str:
    """The name of a recipe's own optimizer: frameworks have other defaults."""
    from ..training.optimizers import OPTIMIZERS
    from ..training.recipes import load_recipe

    own = load_recipe(recipe).optimizer
    return next((name for name, one in OPTIMIZERS.items() if one == own), "adamw")


def _text(to: str, edit: str | None, words: Words, model: Model, run: Run) -> str:
    from ..configs.writing.text import text_of

    new = _settings(to, words, model, run)
    if edit is None:
        return text_of(to, new)
    from ..basics.files import read_text, short_path
    from ..configs.writing.editing import edited

    old = _of_file(to, edit)
    missing = object()
    changes = {path: value for path, value in new.items() if old.get(path, missing) != value and path != _MODEL.get(to)}
    return edited(read_text(edit), Path(edit).suffix.lower(), changes, short_path(edit))


_MODEL = {"axolotl": ("base_model",), "trl": ("model_name_or_path",), "hf": ("model_name_or_path",),
          "llamafactory": ("model_name_or_path",)}  # fmt: skip


def _of_file(to: str, edit: str) -> Settings:
    """The settings that a file has, as its own writer would write them."""
    from ..configs.detect import read_files
    from ..configs.planning import planned
    from ..configs.writing import Words, settings

    reading = read_files([edit])
    return settings(to, Words(planned(reading).options, reading.model))


def _settings(to: str, words: Words, model: Model, run: Run) -> Settings:
    from ..configs.writing import settings

    try:
        return settings(to, words)
    except InputError as error:
        if "--checkpoint" not in error.problem:
            raise
        raise InputError(
            error.problem, where=error.where, allowed=error.allowed, hint=_nearest(model, run, error.allowed or "")
        ) from None


def _nearest(model: Model, run: Run, allowed: str) -> str:
    """What each policy that is allowed would cost in place of the one that is wanted."""
    from ..basics.units import GIB
    from ..checkpointing.table import Table
    from ..profile import profile_of
    from ..training.policies import parse_policy

    table = Table(profile_of(model, run))
    names = [word for word in (str(run.checkpoint), "layer", "none") if word == str(run.checkpoint) or word in allowed]
    said = []
    for name in dict.fromkeys(names):
        row = table.row(parse_policy(name))
        extra = row.recompute_flops_fraction
        said.append(f"{name} peaks at {row.autograd.peak_bytes / GIB:.2f} GiB with {extra:.1%} more FLOPs")
    return "of activations " + ", ".join(said)


def _planned(model: Model, run: Run, to: str, limit: str) -> str | None:
    """The policy of the plan for a limit, None (and why, on stderr) where nothing fits."""
    from msgspec import UNSET

    from .. import answers
    from ..checkpointing.goal import Goal
    from ..checkpointing.table import Table
    from ..profile import profile_of
    from ..training.policies import parse_policy
    from .output import remark

    goal = Goal(limit=limit, only=PLANS.get(to, "hf"))
    if to in PLANS:
        found = answers.plan(model, run, goal).plan
        if found is not UNSET and found.feasible and found.policy is not UNSET:
            return str(found.policy)
    else:
        table, room = Table(profile_of(model, run)), goal.room or 0
        for name in ("none", "layer"):
            if table.row(parse_policy(name)).autograd.peak_bytes <= room:
                return name
    remark(
        [f"nothing that {to} can be set to fits within {limit}: `actplan plan --limit {limit}` says what decides it"]
    )
    return None
