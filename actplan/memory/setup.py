"""How a run is trained, on which device, within which limit and at what price: the words, and what they mean."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from ..basics.errors import InputError
from ..basics.units import parse_count, parse_size
from ..training.setting import Option

if TYPE_CHECKING:
    from ..training import Run
    from ..training.recipes import Recipe
    from .gpus import Allocator, Gpu
    from .job import Job
    from .states import PipelineSplit
    from .target import Target

ZERO_GRAD = ("none", "zeros")
OFFLOADED = ("parameters", "optimizer", "activations")
COUNTED, FLAGGED = ("first", "last"), ("embedding", "loss")
"""Parts of a pipeline's split with a number, and without."""


@dataclasses.dataclass(frozen=True, slots=True)
class Word(Option):
    """An option of a budget, which is a field of `Setup`.

    brings: it brings the budget. listed: a sweep may run through several.
    """

    brings: bool = True
    listed: bool = False


WORDS = (
    Word("recipe", "How weights are trained: bf16, autocast, fsdp, zero-3, lora, ...", "NAME", listed=True),
    Word("optimizer", "adamw, adamw8bit, adafactor, lion, muon, sgd, ...", "NAME", listed=True),
    Word("offload", "To host memory: parameters, optimizer, activations.", "PARTS"),
    Word("reshard", "When FSDP frees gathered layers in forward.", "always|default|never|N", listed=True),
    Word("replicas", "Groups that each hold all shards (HSDP).", "N"),
    Word("fsdp_units", "What FSDP2 wraps beside the layers.", "root|torchtitan|accelerate"),
    Word("loss_outside", "FSDP2's root ends before the loss."),
    Word("grad_sync", "Micro-batches in which FSDP reduces gradients.", "each|last"),
    Word("keep_gathered", "Weights stay gathered after a backward that is not reduced (FSDP2)."),
    Word("reduce_dtype", "The type in which FSDP reduces gradients.", "DTYPE"),
    Word(
        "backward_prefetch",
        "When FSDP1 gathers the layer before in backward.",
        "pre|post|none",
    ),
    Word("forward_prefetch", "FSDP1 gathers one layer ahead in forward."),
    Word("reduce_bucket_size", "DeepSpeed: values of the reduce bucket.", "N"),
    Word("stage3_prefetch_bucket_size", "ZeRO-3: values gathered ahead.", "N"),
    Word("stage3_param_persistence_threshold", "ZeRO-3: smaller weights stay whole.", "N"),
    Word("stage3_max_live_parameters", "ZeRO-3: values gathered at most.", "N"),
    Word("overlap_comm", "DeepSpeed reduces while backward runs: true or false.", "true|false"),
    Word("zero_grad", "Gradients between steps: freed, or kept as zeros.", "none|zeros"),
    Word("optimizer_in_backward", "Each gradient is stepped on and freed at once."),
    Word("microbatches", "Micro-batches of an optimizer step.", "N"),
    Word("pp_schedule", "Order of pipeline stages: 1f1b, gpipe, zb-h1, zbv, ...", "NAME", listed=True),
    Word("return_outputs", "torch's last pipeline stage returns the logits of all micro-batches."),
    Word("pp_split", "Uneven stages: first=N,last=N, or embedding,loss as a layer.", "HOW"),
    Word("gpu", "The device; exit 1 if it does not fit.", "NAME", listed=True),
    Word("limit", "A limit such as 76GiB; exit 1 if it does not fit.", "SIZE"),
    Word("fit_on", "What must be within the limit.", "allocated|reserved|device", default="device", brings=False),
    Word("strict", "Exit 1 also where it is tight: it runs, but typically takes more than there is.", brings=False),
    Word("allocator", "expandable: with expandable_segments:True.", "default|expandable"),
    Word("tokens", "Tokens of the run, 300B or 1T, or `chinchilla`: 20 a parameter.", "N", brings=False),
    Word("gpus", "Devices of the run (default: the mesh's).", "N", brings=False),
    Word("mfu", "Model FLOPs utilisation of the run, for GPU-hours (default: 0.4).", "SHARE", brings=False),
)
"""What `Setup` says, one line a field."""
SWEPT = tuple(word.name for word in WORDS if word.listed)
"""Fields of a setup that a sweep may run through."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Says how a run is trained, on which device, within which limit and at what price.

    Every field has the words of the command's option of that name (`WORDS` says what each means), and None is what the
    command does without it; a number may stand where its text may. They are read when a budget is made, and what is
    wrong is an InputError then.
    """

    recipe: str | None = None
    optimizer: str | None = None
    offload: str | None = None
    reshard: int | str | None = None
    replicas: int | str | None = None
    fsdp_units: str | None = None
    loss_outside: bool = False
    grad_sync: str | None = None
    keep_gathered: bool = False
    reduce_dtype: str | None = None
    backward_prefetch: str | None = None
    forward_prefetch: bool = False
    reduce_bucket_size: int | str | None = None
    stage3_prefetch_bucket_size: int | str | None = None
    stage3_param_persistence_threshold: int | str | None = None
    stage3_max_live_parameters: int | str | None = None
    overlap_comm: bool | str | None = None
    zero_grad: str | None = None
    optimizer_in_backward: bool = False
    microbatches: int | str | None = None
    pp_schedule: str | None = None
    return_outputs: bool = False
    pp_split: str | None = None
    gpu: str | None = None
    limit: int | str | None = None
    fit_on: str = "device"
    strict: bool = False
    allocator: str | None = None
    tokens: int | str | None = None
    gpus: int | str | None = None
    mfu: float | str | None = None

    @property
    def wanted(self) -> bool:
        """Whether a budget is asked for by any of its own words."""
        return any(word.brings and getattr(self, word.name) != word.unsaid for word in WORDS)

    def wanted_of(self, run: Run) -> bool:
        """Whether a budget of this run is asked for: by a word of its own, or by ranks that divide states alone."""
        return self.wanted or run.mesh.divides_states


Setup.__doc__ = f"{Setup.__doc__}\n    Attributes:\n" + "".join(f"        {word.name}: {word.help}\n" for word in WORDS)


def job_of(run: Run, setup: Setup) -> Job:
    """Return recipe, optimizer, sharding and device; without a recipe, the usual one of the run (`Run.usual_recipe`).

    Raises InputError for a word that is not known, or that the recipe has no use for.
    """
    from .gpus import load_gpu
    from .job import Job

    microbatches = None if setup.microbatches is None else parse_count(str(setup.microbatches), "--microbatches")
    gpu = None if setup.gpu is None else load_gpu(setup.gpu)
    offloaded = _offloaded(setup)
    recipe = _recipe(run, setup, offloaded)
    return Job(
        recipe=recipe,
        microbatches=microbatches,
        schedule=setup.pp_schedule,
        split=None if setup.pp_split is None else _split(setup.pp_split, run),
        gpu=gpu,
        offload_activations="activations" in offloaded,
        allocator=_allocator(setup),
        return_outputs=setup.return_outputs and _returns(run, recipe),
    )


def _returns(run: Run, recipe: Recipe) -> bool:
    """True, where there is a pipeline of torch's whose last stage may return its outputs."""
    from .sharding import strategy_of

    if run.mesh.pp == 1 or strategy_of(recipe, run.mesh).pipelines != "torch":
        wrong, allowed = "there is no pipeline of torch's", "with --pp 2 or more, and a recipe that torch runs"
        raise InputError(wrong, where="--return-outputs", allowed=allowed)
    return True


def _allocator(setup: Setup) -> Allocator:
    from .gpus import ALLOCATORS

    word = setup.allocator or ALLOCATORS[0]
    for known in ALLOCATORS:
        if word == known:
            return known
    raise InputError(f"unknown value {word[:64]!r}", where="--allocator", choices=ALLOCATORS, got=word[:64])


def _split(text: str, run: Run) -> PipelineSplit:
    """`first=4,last=3`, or `embedding,loss`."""
    from .states import PipelineSplit

    if run.mesh.pp == 1:
        raise InputError("there is one pipeline stage", where="--pp-split", allowed="with --pp 2 or more")
    made: dict[str, Any] = {}
    for part in (word.strip() for word in text.split(",")):
        name, equals, number = part.partition("=")
        counted = name in COUNTED
        if name in made or name not in COUNTED + FLAGGED or bool(equals) is not counted:
            choices = [*(f"{one}=N" for one in COUNTED), *FLAGGED]
            raise InputError(f"unknown part {part[:64]!r}", where="--pp-split", choices=choices, got=part[:64])
        made[name] = parse_count(number, "--pp-split") if counted else True
    return PipelineSplit(**made)


def _offloaded(setup: Setup) -> tuple[str, ...]:
    if setup.offload is None:
        return ()
    parts = tuple(part.strip() for part in setup.offload.split(","))
    for part in parts:
        if part not in OFFLOADED:
            raise InputError(f"unknown part {part[:64]!r}", where="--offload", choices=OFFLOADED, got=part[:64])
    return parts


def _recipe(run: Run, setup: Setup, offloaded: tuple[str, ...]) -> Recipe:
    from ..training.recipes import Offload, load_recipe
    from .distributed import told

    recipe = load_recipe(setup.recipe or run.usual_recipe, setup.optimizer)
    changes: dict[str, object] = {"sharding": told(recipe.sharding, msgspec.structs.asdict(setup), recipe.name)}
    moved = Offload(parameters="parameters" in offloaded, optimizer="optimizer" in offloaded)
    if moved != Offload():
        changes["offload"] = moved
    if setup.optimizer_in_backward:
        changes["optimizer_in_backward"] = True
    if setup.zero_grad is not None:
        changes["zeroed"] = _zeroed(setup)
    return dataclasses.replace(recipe, **changes)  # type: ignore[arg-type]


def _zeroed(setup: Setup) -> bool:
    """Whether gradients stay allocated between steps."""
    word = str(setup.zero_grad)[:64]
    if word not in ZERO_GRAD:
        raise InputError(f"unknown value {word!r}", where="--zero-grad", choices=ZERO_GRAD, got=word)
    if word == "zeros" and setup.optimizer_in_backward:
        wrong = "the optimizer in backward frees each gradient at once"
        raise InputError(wrong, where="--zero-grad", allowed="none with --optimizer-in-backward")
    return word == "zeros"


def target_of(setup: Setup, gpu: Gpu | None) -> Target | None:
    """Return the limit, in bytes, and what must be within it; None where neither a limit nor a device is set.

    Raises InputError for a word that is not known, or for `fit_on` and `strict` without a limit.
    """
    from .target import FIT_ON, Target

    if setup.fit_on not in FIT_ON:
        raise InputError(
            f"unknown value {setup.fit_on[:64]!r}", where="--fit-on", choices=FIT_ON, got=setup.fit_on[:64]
        )
    if setup.limit is not None:
        limit = parse_size(setup.limit, "--limit")
        device = None if gpu is None else gpu.name
        return Target(limit_bytes=limit, fit_on=setup.fit_on, device=device, strict=setup.strict)
    if gpu is not None:
        return Target(limit_bytes=gpu.memory_bytes, fit_on=setup.fit_on, device=gpu.name, strict=setup.strict)
    for flag, given in (("--fit-on", setup.fit_on != "device"), ("--strict", setup.strict)):
        if given:
            raise InputError(f"{flag} is about a limit", where=flag, allowed="with --gpu or --limit")
    return None
