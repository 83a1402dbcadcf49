"""The options of a budget, each defined here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

if TYPE_CHECKING:
    from ..memory.setup import Setup


@dataclass(frozen=True)
class BudgetOptions:
    """What else a rank holds, on which device it must fit, and what the run costs."""

    recipe: Annotated[
        str | None,
        Option("--recipe", metavar="NAME", help="How weights are trained: bf16, autocast, fsdp, zero-3, lora, ..."),
    ] = None
    optimizer: Annotated[
        str | None, Option("--optimizer", metavar="NAME", help="adamw, adamw8bit, adafactor, lion, muon, sgd, ...")
    ] = None
    offload: Annotated[
        str | None,
        Option("--offload", metavar="PARTS", help="To host memory: parameters, optimizer, activations."),
    ] = None
    reshard: Annotated[
        str | None,
        Option("--reshard", metavar="always|default|never", help="When FSDP frees gathered layers in forward."),
    ] = None
    replicas: Annotated[
        str | None, Option("--replicas", metavar="N", help="Groups that each hold all shards (HSDP).")
    ] = None
    zero_grad: Annotated[
        str | None,
        Option("--zero-grad", metavar="none|zeros", help="Gradients between steps: freed, or kept as zeros."),
    ] = None
    optimizer_in_backward: Annotated[
        bool, Option("--optimizer-in-backward", help="Each gradient is stepped on and freed at once.")
    ] = False
    microbatches: Annotated[
        str | None, Option("--microbatches", metavar="N", help="Micro-batches of an optimizer step.")
    ] = None
    pp_schedule: Annotated[
        str | None,
        Option("--pp-schedule", metavar="NAME", help="Order of pipeline stages: 1f1b, gpipe, zb-h1, zbv, ..."),
    ] = None
    pp_split: Annotated[
        str | None,
        Option("--pp-split", metavar="HOW", help="Uneven stages: first=N,last=N, or embedding,loss as a layer."),
    ] = None
    gpu: Annotated[str | None, Option("--gpu", metavar="NAME", help="The device; exit 1 if it does not fit.")] = None
    limit: Annotated[
        str | None, Option("--limit", metavar="SIZE", help="A limit such as 76GiB; exit 1 if it does not fit.")
    ] = None
    fit_on: Annotated[
        str, Option("--fit-on", metavar="allocated|reserved|device", help="What must be within the limit.")
    ] = "device"
    strict: Annotated[
        bool, Option("--strict", help="Exit 1 also where it is tight: it runs, but typically takes more than there is.")
    ] = False
    allocator: Annotated[
        str | None,
        Option("--allocator", metavar="default|expandable", help="expandable: with expandable_segments:True."),
    ] = None
    tokens: Annotated[
        str | None,
        Option("--tokens", metavar="N", help="Tokens of the run, 300B or 1T, or `chinchilla`: 20 a parameter."),
    ] = None
    gpus: Annotated[str | None, Option("--gpus", metavar="N", help="Devices of the run (default: the mesh's).")] = None
    mfu: Annotated[str, Option("--mfu", metavar="SHARE", help="Model FLOPs utilisation of the run, for GPU-hours.")] = (
        "0.4"
    )

    def setup(self) -> Setup:
        """The same words, to be read where a budget is made."""
        from ..memory.setup import Setup

        return Setup(**vars(self))
