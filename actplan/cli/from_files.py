"""Other tools' files as options: read, mapped, and laid under what the command line says."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from ..basics.errors import InputError
from ..configs.detect import read_files
from ..configs.known import preset_of
from ..configs.planning import PER_OP, planned
from ..configs.reading import Reading, count_microbatches
from ..configs.recipes import Planned
from ..memory.setup import Setup
from ..model import Model
from ..training.setting import flag
from .model_options import ModelOptions
from .options import RunOptions
from .output import remark

SHOWN = 6
"""Problems that one message names."""


@dataclass(frozen=True)
class FileModel(ModelOptions):
    """A model whose sizes stand in the file itself."""

    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """What the file calls it."""
        return str(self.document.get("name", "model"))

    def load(self, settings: Sequence[str] | None = None) -> Model:
        """The model, with `--set` applied."""
        from ..loading import load_model

        return load_model(self.document, tuple(self.settings or ()) if settings is None else settings)


@dataclass(frozen=True)
class Applied:
    """Options with what the files say, and what the files were read as."""

    model: ModelOptions
    run: RunOptions
    budget: Setup
    reading: Reading
    plan: Planned


def apply(files: Sequence[str], model: ModelOptions, run: RunOptions, budget: Setup, *, ignore: bool) -> Applied:
    """Return the options with the files' settings in them.

    Raises InputError for a file that cannot be read, and, without `ignore`, for a setting that changes memory and is
    not planned.
    """
    said = explicit()
    reading = read_files(files)
    gpus = whole_gpus(budget.gpus)
    count_microbatches(reading, gpus)
    if budget.gpus is not None and budget.tokens is None:
        budget = structs.replace(budget, gpus=None)  # it has said how many ranks are data parallel
    chosen, assumed = find_model(model, reading, said)
    plan = planned(reading, gpus=gpus, num_layers=lambda: chosen.load().num_layers)
    plan.assumed[:0] = assumed
    if plan.problems and not ignore:
        raise refused(plan)
    if plan.options.get("checkpoint") == PER_OP:
        _per_op(plan, chosen, run, said)
    run = under(run, plan, said)
    budget = structs.replace(budget, **words_of(plan, Setup.__struct_fields__, said))
    remark(summary(reading, plan, chosen))
    return Applied(chosen, run, budget, reading, plan)


def explicit() -> set[str]:
    """Return the names of the options that stand on the command line."""
    from typer._click.core import ParameterSource  # typer is pinned: its copy of click is part of it
    from typer._click.globals import get_current_context

    context = get_current_context(silent=True)
    if context is None:
        return set()
    given = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    return {name for name in context.params if context.get_parameter_source(name) in given}


def whole_gpus(text: int | str | None) -> int | None:
    """Return how many GPUs `--gpus` says."""
    from ..basics.units import parse_count

    return None if text is None else parse_count(str(text), "--gpus")


def under(run: RunOptions, plan: Planned, said: set[str]) -> RunOptions:
    """Return options with the files' words for those that the command line does not say."""
    return RunOptions(**{**run.said, **words_of(plan, run.said, said)})


def words_of(plan: Planned, names: Collection[str], said: set[str]) -> dict[str, Any]:
    """Return the files' words for options of these names that the command line does not say."""
    return {name: word for name, word in plan.options.items() if name in names and name not in said}


def find_model(model: ModelOptions, reading: Reading, said: set[str]) -> tuple[ModelOptions, list[str]]:
    """Return the options that name the model: the command line's, the file's sizes, the hub id or folder that it names
    where it is there, else the preset of the same sizes; and what that takes for granted.

    Raises InputError where the file names a model that is not found.
    """
    if said & {"preset", "model", "ledger"}:
        return model, []
    if reading.document is not None:
        return FileModel(settings=model.settings, document=reading.document), []
    if reading.model is None:
        return model, [f"the model is not in the file: planned for {model.reference}; --model or --preset says it"]
    named = dataclasses.replace(model, model=reading.model)
    try:
        named.load()
    except InputError as error:
        names = [reading.model, *reading.facts.get("model_names", ())]
        preset = next((found for name in names if (found := preset_of(name))), None)
        if preset is None:
            hint = "--model PATH or --preset NAME names one"
            raise InputError(
                f"the model {reading.model[:200]!r} is not here: {error.problem}",
                where=reading.files[0],
                allowed=error.hint,
                hint=hint,
            ) from None
        return dataclasses.replace(model, preset=preset), [
            f"{reading.model} is not in the local cache: planned as the preset {preset}, which has its sizes"
        ]
    return named, []


def refused(plan: Planned) -> InputError:
    """The error that names what cannot be planned."""
    more = len(plan.problems) - SHOWN
    listed = "; ".join(plan.problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return InputError(
        f"settings that change memory and are not planned: {listed}",
        where="--from",
        hint="--ignore plans without them, `actplan show --from FILE` lists every field",
    )


def _per_op(plan: Planned, model: ModelOptions, run: RunOptions, said: set[str]) -> None:
    """torchtitan's per-op policy under the names of this model."""
    from ..checkpointing.frameworks.torchtitan import per_op_policy
    from ..profile import profile_of

    plan.options["checkpoint"] = "layer"
    loaded = model.load()
    found = per_op_policy(profile_of(loaded, under(run, plan, said).run(loaded)))
    if found:
        plan.options["checkpoint"] = str(found[0])
    else:
        plan.assumed.append("its per-op policy has no names in this model: planned as whole layers")


def command_line(plan: Planned, model: ModelOptions) -> str:
    """Return the options of actplan that say the same."""
    words: list[str] = []
    if isinstance(model, FileModel):
        words += ["(the model of the file)"]
    elif model.preset or model.model:
        words += ["--preset", model.preset] if model.preset else ["--model", str(model.model)]
    for name, word in plan.options.items():
        words += [flag(name)] if word is True else [flag(name), str(word)]
    return " ".join(word if word.startswith("(") else shlex.quote(word) for word in words)


def summary(reading: Reading, plan: Planned, model: ModelOptions) -> list[str]:
    """Return what is said of the files beside the answer."""
    lines = [f"{', '.join(reading.files)} as {reading.tool}: {command_line(plan, model)}"]
    lines += plan.assumed
    lines += [f"contradiction: {text}" for text in reading.contradictions]
    lines += [f"left out (--ignore): {text}" for text in plan.problems]
    return lines
