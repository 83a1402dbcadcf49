"""What a user can change about a run that does not fit, and what each change costs.

Changes are sorted by the kind of their cost: nothing, work on the device, more exchange, more GPUs, less of a model's
context. Whether one helps is tried (`remedies.py`); whether the framework of the recipe can do it is asked here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from enum import IntEnum

import msgspec
from msgspec.structs import replace

from ..model import Model, Moe
from ..training import Run
from ..training.optimizers import OPTIMIZERS
from ..training.policies import EveryLayer, Modules, NoCheckpoint, Selective
from ..training.recipe_run import under
from ..training.recipes import Offload, Recipe, load_recipe
from .job import Job
from .sharding import strategy_of
from .sharding.megatron import MegatronStrategy

CHEAP = Selective(("attention", "matmul"))


class Price(IntEnum):
    """The kind of a change's cost, the cheapest first."""

    NOTHING = 0
    WORK = 1
    EXCHANGE = 2
    MORE_GPUS = 3
    SHORTER = 4


class Change(msgspec.Struct, frozen=True):
    """One thing a user can change, in words with its options, what it costs, and how it is done."""

    words: str
    cost: str
    price: Price
    apply: Callable[[Run, Job], tuple[Run, Job]]


def changes(model: Model, run: Run, job: Job) -> Iterator[Change]:
    """Give what is worth trying on a known model that the framework of its recipe can do, in no order."""
    megatron = _is_megatron(job)
    if run.loss_kind.logits_sized and not megatron:
        fused = run.fused_loss
        yield _run(f"a fused loss (--loss {fused})", "none: the same loss, in chunks", Price.NOTHING, loss=fused)
    if run.attention == "eager":
        words = "none: the same attention, without T × T"
        yield _run("--attention flash", words, Price.NOTHING, attention="flash")
    if run.stack == "transformers" and run.kernels == "hf" and model.liger and not megatron:
        words = "none: the same norms and activations, fused"
        yield _run("--kernels liger", words, Price.NOTHING, kernels="liger")
    if run.quantised is not None and run.quantised.bits == 4 and not run.quantised.experts and _has_experts(model):
        experts = replace(run.quantised, experts=True)
        words = "experts are dequantised in each forward"
        yield _run("--quantise-experts", words, Price.WORK, quantised=experts)
    if isinstance(run.checkpoint, NoCheckpoint | Modules) and not megatron:
        words = "next to none: norms and activations run again, products do not"
        yield _run(f"--checkpoint {CHEAP}", words, Price.NOTHING, checkpoint=CHEAP)
    yield from of_any(run, job)
    yield from _dealt(run, job)
    yield from _grown(run, job)


def of_any(run: Run, job: Job) -> Iterator[Change]:
    """Give what is worth trying on a model that is what it is: a ledger."""
    if job.allocator == "default":
        yield Change(
            "--allocator expandable",
            "none: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            Price.NOTHING,
            lambda run, job: (run, replace(job, allocator="expandable")),
        )
    if not isinstance(run.checkpoint, EveryLayer):
        words = "one more forward of every layer"
        yield _run("--checkpoint layer", words, Price.WORK, checkpoint=EveryLayer())
    if job.recipe.optimizer.name == "adamw" and not _is_megatron(job):
        yield _optimizer("adamw8bit", "moments in 8 bits: little change in quality is reported")
    yield from _sharded(run, job)
    yield from _offloaded(run, job)
    if run.micro_batch_size > 1:
        half = run.micro_batch_size // 2
        words = "twice the micro-batches for the same step"
        yield _run(f"--batch {half}", words, Price.EXCHANGE, micro_batch_size=half)
    if job.recipe.sharding.gathers or _is_megatron(job):
        for factor in (2, 4, 8):
            yield _mesh(run, f"{factor} times the GPUs, each with less of the states", Price.MORE_GPUS,
                        dp=run.mesh.dp * factor)  # fmt: skip
    half = run.sequence_length // 2
    if half:
        yield _run(f"--seq {half}", "shorter sequences", Price.SHORTER, sequence_length=half)


def _is_megatron(job: Job) -> bool:
    return isinstance(strategy_of(job.recipe), MegatronStrategy)


def _has_experts(model: Model) -> bool:
    return any(isinstance(layer.mlp, Moe) for layer in model.layers)


def _divides_layers(job: Job) -> bool:
    """Whether the recipe's framework divides layers and sequences: bitsandbytes' quantised linears are whole."""
    return job.recipe.base is None


def _dealt(run: Run, job: Job) -> Iterator[Change]:
    """The same GPUs dealt otherwise: fewer replicas, each of several GPUs."""
    mesh = run.mesh
    if not _divides_layers(job):
        return
    for part in (2, 4):
        if mesh.dp % part == 0:
            words = f"none: attention exchanges keys and values; 1/{part} of the sequences a step"
            yield _mesh(run, words, Price.NOTHING, dp=mesh.dp // part, cp=mesh.cp * part)
    if mesh.dp % 2 == 0:
        words = "two collectives a layer and pass; half the sequences a step"
        yield _mesh(run, words, Price.EXCHANGE, dp=mesh.dp // 2, tp=mesh.tp * 2, sp=True)


def _grown(run: Run, job: Job) -> Iterator[Change]:
    """More GPUs, that divide each sequence or each layer."""
    if not _divides_layers(job):
        return
    mesh = run.mesh
    yield _mesh(run, "twice the GPUs; attention exchanges keys and values", Price.MORE_GPUS, cp=mesh.cp * 2)
    yield _mesh(run, "twice the GPUs; two collectives a layer and pass", Price.MORE_GPUS, tp=mesh.tp * 2, sp=True)


def _run(words: str, cost: str, price: Price, **changed: object) -> Change:
    return Change(words, cost, price, lambda run, job: (replace(run, **changed), job))


def _mesh(run: Run, cost: str, price: Price, **degrees: object) -> Change:
    words = " ".join("--sp" if name == "sp" else f"--{name} {value}" for name, value in degrees.items())
    return Change(words, cost, price, lambda run, job: (replace(run, mesh=replace(run.mesh, **degrees)), job))


def _optimizer(name: str, cost: str) -> Change:
    def apply(run: Run, job: Job) -> tuple[Run, Job]:
        return run, replace(job, recipe=dataclasses.replace(job.recipe, optimizer=OPTIMIZERS[name]))

    return Change(f"--optimizer {name}", cost, Price.WORK, apply)


def _sharded(run: Run, job: Job) -> Iterator[Change]:
    """The same ranks, or eight, dividing what each of them now holds whole."""
    further = strategy_of(job.recipe, run.mesh).further
    if further is not None:
        yield _recipe(run, further.recipe, further.cost)


def _recipe(run: Run, name: str, cost: str) -> Change:
    """Another recipe with the optimizer that was chosen, over the ranks there are, or over eight."""
    ranks = run.mesh.dp if run.mesh.data_ranks > 1 else 8
    more = "" if run.mesh.data_ranks > 1 else f" --dp {ranks}"

    def apply(run: Run, job: Job) -> tuple[Run, Job]:
        recipe: Recipe = dataclasses.replace(load_recipe(name), optimizer=job.recipe.optimizer)
        run = replace(run, mesh=replace(run.mesh, dp=ranks), precision="pure")
        dtype = run.dtype if run.dtype in recipe.types else None
        return under(run, recipe, dtype=dtype), replace(job, recipe=recipe)

    price = Price.MORE_GPUS if more else Price.EXCHANGE
    return Change(f"--recipe {name}{more}", cost + (f"; {ranks} GPUs" if more else ""), price, apply)


def _offloaded(run: Run, job: Job) -> Iterator[Change]:
    """Host memory for what is used once a step, or once a layer."""
    if not isinstance(run.checkpoint, NoCheckpoint | Modules) and not job.offload_activations:
        yield Change(
            "--offload activations",
            "every boundary crosses the link to the host twice",
            Price.EXCHANGE,
            lambda run, job: (run, replace(job, offload_activations=True)),
        )
    if strategy_of(job.recipe).offloads_optimizer and not job.recipe.offload.optimizer:
        moved = Offload(parameters=job.recipe.offload.parameters, optimizer=True)
        yield Change(
            "--offload optimizer",
            "the step runs on the CPU, gradients and weights cross the link",
            Price.EXCHANGE,
            lambda run, job: (run, replace(job, recipe=dataclasses.replace(job.recipe, offload=moved))),
        )
