"""The profile of a model whose architecture is known: its layers are run on shapes, in the stack that the run names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..autograd import Tape
from ..autograd.bookkeeping import OUTSIDE
from ..autograd.meter import Allocation
from ..autograd.storage import SavedTensor
from ..basics.allocator import rounded
from ..basics.errors import InputError
from ..basics.units import FP32, DType
from ..model import Model
from ..report import ModelInfo, Peak, PeakRow, RunInfo
from ..stacks import stack_of
from ..stacks.walking import Walk
from ..training import Run
from ..training.choices import said_of
from ..training.mesh import Mesh
from ..training.policies import EveryLayer, Layers, NoCheckpoint, Policy, recomputed_parts
from .chain import Chain
from .layers import Measured
from .measured import measure
from .profile import Profile, Segmented

if TYPE_CHECKING:
    from .selective import Menus


@lru_cache(maxsize=16)
def known(model: Model, run: Run) -> KnownProfile:
    """Return the one profile of a model and run."""
    return KnownProfile(model, run)


class KnownProfile(Profile):
    """See `Profile`.

    Where parts of layers are checkpoints of their own (`policies.Modules`), the layers are those of that run.
    Where the run leaves open whether embedded tokens get a gradient, it is one of two profiles: what the run's own
    checkpointing says, which `under` exchanges for the other where a policy says otherwise.
    """

    def __init__(self, model: Model, run: Run) -> None:
        self.model, self.given = model, run
        self.run = replace(run, input_require_grads=run.embeds_with_gradient(run.checkpoint))
        self._chains: dict[tuple[bool, bool], Chain] = {}

    @property
    def architecture(self) -> Model:
        return self.model

    def with_run(self, run: Run) -> Profile:
        return known(self.model, run)

    def check(self) -> None:
        stack_of(self.given).check(self.model, self.given)

    def recomputes(self, policy: Policy) -> bool:
        return self.run.stack == "transformers" or stack_of(self.run).recomputes(policy, self.run)

    @cached_property
    def measured(self) -> Measured:
        """A run's checkpointing of whole layers has no part in it, so that all policies share one."""
        return measure(self.model, self._plain_run)

    @cached_property
    def _plain_run(self) -> Run:
        """The run without its checkpointing of whole layers."""
        inner = self.run.checkpoint if self.parts else NoCheckpoint()
        return replace(self.run.keeping_whole(), checkpoint=inner)

    @property
    def parts(self) -> frozenset[str]:
        return recomputed_parts(self.run.checkpoint)

    @property
    def whole(self) -> Profile:
        return self.with_run(replace(self.run, checkpoint=NoCheckpoint())) if self.parts else self

    @property
    def menus(self) -> Menus:
        from .selective import menus

        return menus(self.model, self._plain_run)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(layer.kind for layer in self.model.layers)

    @cached_property
    def layers(self) -> Layers:
        saved = [layer.saved_bytes for layer in self.measured.layers]
        return Layers(self.model.num_layers, self.model.block(), saved, self.model.lead)

    @property
    def residual_bytes(self) -> int:
        """B·T·hidden·layers·bytes."""
        model, run = self.model, self.run
        return run.tokens * model.hidden_size * model.num_layers * run.dtype.itemsize

    @cached_property
    def num_parameters(self) -> int:
        """Counted by running the layers; on a mesh, by running them undivided."""
        if self.given.mesh == Mesh():
            return self.measured.num_parameters
        whole = Run(sequence_length=1, mtp=self.run.mtp)
        return self.with_run(whole).measured.num_parameters

    def held_bytes(self, stage: int) -> int:
        return self._held_bytes

    @cached_property
    def _held_bytes(self) -> int:
        made = self.run.residual_dtype
        dtype = self.run.checkpoint_dtype or made
        return -(-self.measured.boundary_bytes * dtype.itemsize // (made.itemsize * self.run.kept_share))

    @property
    def _logits_dtype(self) -> DType:
        """The type in which the model returns its logits."""
        return FP32 if self.model.head.fp32 else self.run.autocast_dtype or self.run.residual_dtype

    @property
    def logits_bytes(self) -> int:
        words = self.model.vocab_size
        if not self.run.loss_kind.gathers:
            words = self.run.mesh.divide(words, "tp", "the vocabulary")
        return self.run.tokens * words * self._logits_dtype.itemsize

    def outside_part(self, row: SavedTensor) -> str:
        return stack_of(self.run).outside_part(self.model, row.module)

    @property
    def distinct(self) -> Sequence[int]:
        return self.menus.sampled.places

    def deepened(self, layers: int) -> Profile:
        model = self.model
        lead = model.layers[: model.lead]
        block = model.layers[model.lead : model.lead + model.block()]
        row = (lead + block * (layers // len(block) + 1))[:layers]
        return known(replace(model, layers=row, exits=()), self.given)

    def rebuilt_bytes(self, stage: int) -> int:
        return self.menus.rebuilt(stage)

    def unfitted(self, *, checkpointed: bool, first_stored: bool) -> Chain:
        key = checkpointed, first_stored
        if key not in self._chains:
            copy = rounded(self._held_bytes) if self._held_bytes != self.measured.boundary_bytes else 0
            self._chains[key] = self.measured.chain(checkpointed=checkpointed, first_stored=first_stored, copy=copy)
        return self._chains[key]

    def split(self, *, keeps_graph: bool = False) -> Profile:
        return self.with_run(replace(self.run, split_backward=True, keeps_graph=keeps_graph))

    def checkpointing(self) -> Profile:
        fed = self.given.embeds_with_gradient(EveryLayer())
        return self if fed == self.run.input_require_grads else self._fed(fed)

    def _fed(self, fed: bool) -> Profile:
        return self.with_run(replace(self.given, input_require_grads=fed))

    def under(self, policy: Policy) -> Segmented:
        if recomputed_parts(policy) != self.parts:
            return self.with_run(replace(self.given, checkpoint=policy)).under(policy)
        if self.parts and self.run.checkpoint_dtype is not None:
            wrong = "parts of a layer keep their inputs as they are"
            raise InputError(wrong, where="--checkpoint-dtype", allowed="with a policy of whole layers")
        fed = self.given.embeds_with_gradient(policy)
        if fed != self.run.input_require_grads:
            return self._fed(fed).under(policy)
        return super().under(policy)

    # --- as it is listed -----------------------------------------------------------------------------------------

    def _walked(self, chosen: Segmented, tape: Tape | None = None) -> Walk:
        run = self.given
        return stack_of(run).walk(self.model, run, chosen.segments, keeps=chosen.keeps, tape=tape)

    def saved(self, chosen: Segmented) -> Sequence[SavedTensor]:
        # a mask that a checkpoint is given is the whole model's: it stays alive, and no stage keeps it
        return [row for row in self._walked(chosen).tape.ledger if row.stage != OUTSIDE]

    def picture(self, chosen: Segmented) -> Peak:
        """The whole model is run twice, once to find the moment and once to look."""
        first = self._walked(chosen)
        second = self._walked(chosen, Tape(photograph=first.peak_event))
        backward = first.peak_backward_bytes > first.peak_forward_bytes
        return Peak(
            phase="backward" if backward else "forward",
            stage=first.stage_name(first.peak_stage),
            bytes=max(first.peak_forward_bytes, first.peak_backward_bytes),
            alive=_alive(second.tape.meter.picture),
        )

    def model_info(self) -> ModelInfo:
        model = self.model
        return ModelInfo(
            name=model.name,
            title=model.title,
            source=model.source,
            num_layers=model.num_layers,
            pattern=model.pattern(),
            num_parameters=self.num_parameters,
            layer_kinds=model.layer_kinds(),
        )

    def run_info(self) -> RunInfo:
        """An unset checkpoint type is the model's own."""
        run = self.given
        said = {**said_of(run), "checkpoint_dtype": str(run.checkpoint_dtype or run.dtype)}
        if run.stack_options is not None and run.stack_options.changed():
            said["stack_options"] = run.stack_options.changed()
        return RunInfo(**said, **_adapted(run))


def _alive(picture: Sequence[Allocation]) -> tuple[PeakRow, ...]:
    counts: dict[Allocation, int] = {}
    for allocation in picture:
        counts[allocation] = counts.get(allocation, 0) + 1
    rows = [
        PeakRow(module=a.module or "loss", name=a.op, shape=a.shape, dtype=a.dtype, bytes=a.nbytes, count=count)
        for a, count in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes * row.count, row.module)))


def _adapted(run: Run) -> dict[str, Any]:
    """Adapters and quantised base, each in one piece for the settings that make it."""
    said: dict[str, Any] = {}
    if run.adapters is not None:
        lora = run.adapters
        saved = f", {' and '.join(lora.modules_to_save)} in full" if lora.modules_to_save else ""
        kind = "dora" if lora.dora else "lora"
        said["adapters"] = f"{kind} of rank {lora.rank} on {', '.join(lora.targets)}{saved}"
        said["lora_dtype"] = str(lora.dtype or run.residual_dtype)
        if lora.dropout:
            said["lora_dropout"] = lora.dropout
        if run.quantised is None:
            said["base_dtype"] = str(run.base_dtype or run.dtype)
    if run.quantised is not None:
        from ..training.quantising import describe

        rest = "fp32" if run.quantised.upcast else run.dtype
        said["quantised"] = f"{describe(run.quantised)}, the rest in {rest}"
    return said
