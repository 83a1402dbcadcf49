"""`actplan show`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from typer import Option

from ..basics.errors import InputError
from .grouping import grouped
from .model_options import ModelOptions
from .output import OutputOptions


@grouped
def command(
    model: ModelOptions,
    output: OutputOptions,
    *,
    from_: Annotated[
        list[str] | None,
        Option(
            "--from", metavar="FILE", help="Another tool's settings; repeatable, later ones win. TOOL:FILE names it."
        ),
    ] = None,
    gpus: Annotated[
        str | None, Option("--gpus", metavar="N", help="GPUs of the job: what the mesh leaves is data parallel.")
    ] = None,
) -> None:
    """What another tool's file says, field by field: read as what, ignored and why, contradicting what.

    Last comes the command that says the same in actplan's own options. The files of Axolotl, LLaMA-Factory, TRL and
    Transformers, accelerate, DeepSpeed, Megatron-LM, torchtitan, torchtune, ms-swift, verl and OpenRLHF are read: YAML,
    JSON, TOML, and shell scripts, which are never run.
    """
    output.kind()
    if not from_:
        raise InputError("no file to show", where="show", allowed="--from FILE")
    from ..render import configs as view

    data = shown(from_, model, gpus)
    output.emit(data, lambda: view.blocks(data), lambda: view.sheet(data))


def shown(files: list[str], model: ModelOptions, gpus: str | None) -> dict[str, Any]:
    """Return the JSON of what files say."""
    import msgspec

    from ..configs.detect import read_files
    from ..configs.planning import planned
    from ..configs.reading import count_microbatches
    from ..configs.vocabulary import FIELDS
    from ..report import STAMP
    from .from_files import command_line, explicit, find_model, whole_gpus

    reading = read_files(files)
    ranks = whole_gpus(gpus)
    count_microbatches(reading, ranks)
    try:
        chosen, assumed = find_model(model, reading, explicit())
        layers = chosen.load().num_layers
    except InputError as error:  # a model that is not here is no reason not to show the file
        chosen, assumed, layers = dataclasses.replace(model, model=reading.model), [error.message()], 0
    plan = planned(reading, gpus=ranks, num_layers=(lambda: layers) if layers else None)
    ignored = [{"field": one.field, "reason": one.says} for one in reading.with_outcome("ignored")]
    model_name = {} if reading.model is None else {"model": reading.model}
    return {
        **STAMP,
        "tool": reading.tool,
        "files": list(reading.files),
        **model_name,
        "read": {name: reading.read[name] for name in FIELDS if name in reading.read},
        "defaults_used": [msgspec.to_builtins(one) for one in reading.defaults_used],
        "ignored": ignored,
        "unreadable": reading.unreadable,
        "contradictions": reading.contradictions,
        "problems": plan.problems,
        "assumed": [*assumed, *plan.assumed],
        "options": plan.options,
        "command": command_line(plan, chosen),
        "fields": [msgspec.to_builtins(one) for one in reading.fields],
    }
