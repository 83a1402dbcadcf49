"""The profile of a traced model: the stages of a ledger file at the batch and length of a run.

Both ends are one stage each, as those of a known model are: what stands before the first layer, and what stands behind
the last. Kernels, types and loss are those of the trace, whatever the run says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import ClassVar

from msgspec.structs import replace

from ..autograd.storage import SavedTensor
from ..basics.errors import InputError
from ..basics.repeating import Repeating, in_words, repeating
from ..basics.units import parse_dtype
from ..model import Model
from ..report import ModelInfo, Note, Peak, PeakRow, RunInfo
from ..training import Run
from ..training.mesh import Mesh
from ..training.policies import Layers
from ..training.recipes import Recipe
from .chain import Chain
from .layers import EMBEDDING, HEAD, Context, Measured
from .ledger_file import Ledger, LedgerModel, evaluate_ledger, kind_of
from .ledger_notes import check_verdict, provenance
from .ledger_stages import (
    chain_stage,
    head_stage,
    joined,
    layer_profiles,
    owned_parameters,
    stage_profile,
    without_waiting,
)
from .profile import Profile, Segmented

PARTS = {"embedding": "embedding", "final_norm": "final_norm", "head": "head", "loss": "loss", "between": "embedding"}
"""Role of a stage outside the layers -> part of the report."""


@lru_cache(maxsize=16)
def traced(model: LedgerModel, run: Run) -> LedgerProfile:
    """Return the one profile of a ledger and run.

    Raises:
        InputError: a mesh that divides a layer; a batch or length that the ledger does not tell.
    """
    return LedgerProfile(model, run)


class LedgerProfile(Profile):
    """See `Profile`."""

    per_op: ClassVar[bool] = False
    deeper: ClassVar[bool] = False

    def __init__(self, model: LedgerModel, run: Run, *, idle: bool = False) -> None:
        """idle: whether parameters that no gradient reaches have gradients and states."""
        mesh = run.mesh
        if mesh != Mesh(dp=mesh.dp, pp=mesh.pp, vpp=mesh.vpp):
            raise InputError(
                "a traced model is whole on its rank", where="mesh", allowed="Mesh(dp=..., pp=..., vpp=...)"
            )
        self.model, self.ledger, self.idle = model, model.ledger, idle
        self.given, self.run = run, as_traced(model.ledger, run)
        numbers = evaluate_ledger(model.ledger, run.micro_batch_size, run.sequence_length).stages
        self.numbers = without_waiting(numbers, model.ledger.weights) if mesh.pp > 1 else numbers
        if mesh.pp > 1 and len(self.places) < len(self.measured.layers):
            raise InputError("other stages stand between the layers", where="--pp", allowed="1")

    @property
    def architecture(self) -> Model | None:
        return None

    def with_run(self, run: Run) -> Profile:
        return traced(self.model, run)

    def idle_trained(self, held: bool) -> Profile:
        return self if held == self.idle else LedgerProfile(self.model, self.given, idle=held)

    # --- the stages ----------------------------------------------------------------------------------------------

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """Where the first layer stands in the file's row of stages, and where the head begins."""
        layers = [i for i, stage in enumerate(self.numbers) if stage.role == "layer"]
        return (layers[0], layers[-1] + 1) if layers else (1, 1)

    @cached_property
    def places(self) -> tuple[int, ...]:
        first, last = self._ends
        return tuple(i for i, stage in enumerate(self.numbers[first:last]) if stage.role == "layer")

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Without the place of one that saves otherwise than its kind."""
        first, _ = self._ends
        return tuple(kind_of(self.numbers[first + i].kind) for i in self.places)

    @cached_property
    def _repeating(self) -> Repeating:
        return repeating(self.kinds)

    @cached_property
    def layers(self) -> Layers:
        lead, block = self._repeating
        saved = [self.measured.layers[i].saved_bytes for i in self.places]
        return Layers(len(saved), block, saved, lead)

    @property
    def residual_bytes(self) -> int:
        """The inputs of all layers."""
        return sum(self.measured.layers[i].stage.x for i in self.places)

    @property
    def num_parameters(self) -> int:
        """As the file says: a ledger need not list them."""
        return self.ledger.num_parameters

    @cached_property
    def measured(self) -> Measured:
        stages = [chain_stage(one) for one in self.numbers]
        first, last = self._ends
        owned = owned_parameters(self.ledger.weights, idle_trained=self.idle)
        own = [owned.pop(one.name, ()) for one in self.numbers[first:last]]
        at_head = owned.pop(HEAD, ())
        rest = tuple(parameter for parameters in owned.values() for parameter in parameters)
        boundaries = [*(one.x for one in self.numbers), self.numbers[-1].x_out]
        nothing = Context(0, 0, 0)
        layers = stages[first:last]
        return Measured(
            embedding=stage_profile(joined(stages[:first], boundaries[first], EMBEDDING), rest, self.numbers[:first]),
            layers=layer_profiles(layers, own, self.numbers[first:last]),
            head=stage_profile(head_stage(stages[last:], boundaries[-1]), at_head, self.numbers[last:]),
            stored=nothing,
            dropped=nothing,
            boundary_bytes=layers[0].x if layers else 0,
        )

    @cached_property
    def _chain(self) -> Chain:
        """The chain, which is the same whatever is checkpointed."""
        row, copy = self.measured, 0
        dtype = self.run.checkpoint_dtype
        if dtype is not None and dtype != self.run.dtype:
            sizes = {row.layers[i].stage.x for i in self.places}
            if len(sizes) > 1:
                raise InputError("layers differ in width", where="--checkpoint-dtype", allowed="the trace's type")
            copy = self.held_bytes(self.places[0]) if self.places else 0
        layers = tuple(replace(layer.stage, name=one) for layer, one in zip(row.layers, self._names, strict=True))
        return Chain((row.embedding.stage, *layers, row.head.stage), copy=copy)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        first, last = self._ends
        return tuple(one.name for one in self.numbers[first:last])

    def unfitted(self, *, checkpointed: bool, first_stored: bool) -> Chain:
        return self._chain

    def held_bytes(self, stage: int) -> int:
        dtype, made = self.run.checkpoint_dtype or self.run.dtype, self.run.dtype
        return self.measured.layers[stage].stage.x * dtype.itemsize // made.itemsize

    def outside_part(self, row: SavedTensor) -> str:
        return PARTS.get(self.numbers[row.stage].role, "loss")

    @cached_property
    def distinct(self) -> tuple[int, ...]:
        number: dict[int, int] = {}
        return tuple(number.setdefault(id(layer), len(number)) for layer in self.measured.layers)

    def rebuilt_bytes(self, stage: int) -> int:
        """What the layer keeps: a ledger does not tell what else a replay allocates."""
        return self.measured.layers[stage].stage.s

    # --- as it is listed -----------------------------------------------------------------------------------------

    def saved(self, chosen: Segmented) -> Sequence[SavedTensor]:
        row, inside = self.measured, {i for first, last in chosen.segments for i in range(first, last + 1)}
        starts = {first for first, _ in chosen.segments}
        found = [(0, one) for one in row.embedding.saved]
        for i in range(len(row.layers)):
            if i in starts:
                found.append((i + 1, self._input(i)))
            elif i not in inside:
                found += [(i + 1, one) for one in self._rows(i)]
        found += [(len(row.layers) + 1, one) for one in row.head.saved]
        return [replace(one, stage=stage) for stage, one in found]

    def _rows(self, i: int) -> Sequence[SavedTensor]:
        """Rows of a stage under its own names; equal stages share one profile."""
        return self.numbers[self._ends[0] + i].saved

    def _input(self, i: int) -> SavedTensor:
        """What a segment keeps, under the words of known models; its width follows from its size."""
        size, dtype, run = self.held_bytes(i), self.run.checkpoint_dtype or self.run.dtype, self.run
        shape = (run.micro_batch_size, run.sequence_length, size // (run.tokens * dtype.itemsize))
        why = "the input of a checkpointed segment, to run it again"
        return SavedTensor(self._names[i], "checkpoint", shape, dtype.name, size, why, i, i, None)

    def picture(self, chosen: Segmented) -> Peak:
        """What is kept below the stage of the peak, and of that stage what is kept; the rest of the peak is in one row:
        gradients and temporaries, which a ledger holds as sums."""
        found, last = chosen.evaluation, len(self.measured.layers) + 1
        backward = chosen.peak_backward_bytes > chosen.peak_forward_bytes
        stage = found.backward_stage if backward else found.forward_stage
        rows = [one for one in self.saved(chosen) if one.stage <= stage]
        part = next((part for part in chosen.segments if part[0] + 1 <= stage <= part[1] + 1), None)
        if part is not None and backward:
            rows += [one for i in range(part[0], stage) for one in self._rows(i)]
        sizes: dict[tuple[str, str, tuple[int, ...], str, int], int] = {}
        for one in rows:
            key = one.module or "loss", one.op, one.shape, one.dtype, one.nbytes
            sizes[key] = sizes.get(key, 0) + one.count
        alive = [PeakRow(module=m, name=n, shape=s, dtype=d, bytes=b, count=c) for (m, n, s, d, b), c in sizes.items()]
        rest = chosen.peak_bytes - sum(row.bytes * row.count for row in alive)
        name = "head" if stage == last else self._chain.stages[stage].name
        alive.append(PeakRow(module=name, name="gradients and temporaries", shape=(), dtype="", bytes=rest, count=1))
        return Peak(
            phase="backward" if backward else "forward",
            stage=name,
            bytes=chosen.peak_bytes,
            alive=tuple(sorted(alive, key=lambda row: (-row.bytes * row.count, row.module))),
        )

    def model_info(self) -> ModelInfo:
        first, kinds = self._ends[0], dict[str, int]()
        for i in self.places:
            kind = self.numbers[first + i].kind
            kinds[kind] = kinds.get(kind, 0) + 1
        return ModelInfo(
            name=self.ledger.name,
            title=self.ledger.name,
            source=self.model.source,
            num_layers=len(self.places),
            pattern=in_words(self.kinds, self._repeating),
            num_parameters=self.num_parameters,
            layer_kinds=kinds,
        )

    def run_info(self) -> RunInfo:
        words, run = self.ledger.run, self.given
        dtype = words.get("dtype", str(run.dtype))
        return RunInfo(
            sequence_length=run.sequence_length,
            micro_batch_size=run.micro_batch_size,
            dtype=dtype,
            stack="traced",
            attention=words.get("attention", run.attention),
            linear_attention=words.get("linear_attention", run.linear_attention),
            kernels=words.get("kernels", run.kernels),
            loss=words.get("loss", run.loss),
            checkpoint=str(run.checkpoint),
            checkpoint_dtype=dtype if run.checkpoint_dtype is None else str(run.checkpoint_dtype),
        )

    # --- what the trace decided ----------------------------------------------------------------------------------

    @property
    def provenance(self) -> tuple[Note, ...]:
        return provenance(self.ledger, self.run.tokens)

    def check_verdict(self) -> None:
        check_verdict(self.ledger)

    def check_recipe(self, recipe: Recipe) -> None:
        run = self.run
        if not self.ledger.weights:
            wrong, hint = "the ledger lists no parameters", "trace the model again: `actplan trace -o`"
            raise InputError(wrong, where="--ledger", hint=hint)
        frozen = any(not p.trainable for entry in self.ledger.weights for p in entry.parameters)
        if recipe.base is not None:
            raise InputError(f"recipe {recipe.name} quantises its base, the trace did not", where="--recipe")
        if recipe.frozen is not None and not frozen:
            wrong = f"recipe {recipe.name} freezes a base, the trace trained every parameter"
            raise InputError(wrong, where="--recipe")
        if recipe.frozen is None and recipe.compute != run.dtype:
            wrong = f"recipe {recipe.name} computes in {recipe.compute}, the trace ran in {run.dtype}"
            raise InputError(wrong, where="--recipe", hint="trace again in that type")
        if recipe.autocast_cache != (run.precision == "autocast"):
            raise InputError(
                f"recipe {recipe.name} {'runs' if recipe.autocast_cache else 'does not run'} under autocast, the trace "
                f"{'did' if run.precision == 'autocast' else 'did not'}",
                where="--recipe",
            )


def as_traced(ledger: Ledger, run: Run) -> Run:
    """Return the run in the types, and with the attention and loss, of the trace."""
    words = ledger.run
    attention = words.get("attention", run.attention)
    return replace(
        run,
        dtype=parse_dtype(words.get("dtype", str(run.dtype)), "--ledger"),
        precision="autocast" if "autocast" in words else "pure",
        attention="eager" if attention == "eager" else "flash",
        loss="none" if words.get("loss") == "none" else "fused",
        device="cuda",
    )
