"""What a stage of torch.distributed.pipelining holds at the fullest moments of a step.

Inputs and gradients of outputs lie in receive buffers (`buffers.torch_buffers`). A micro-batch keeps its graph and its
output from its forward to the end of its backward. Weights have no gradients before the first backward of their chunk.
A backward that is split keeps the whole graph, and the gradient at each weight's product, until the weights' turn; the
gradient of the stage's input stays until the next step. After torch/distributed/pipelining/stage.py
(forward_one_chunk, backward_one_chunk, backward_weight_one_chunk), _backward.py (stage_backward_input,
stage_backward_weight) and schedules.py of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add

from msgspec.structs import replace

from ..autograd.storage import SavedTensor
from ..basics.allocator import rounded
from ..ops.linear import INPUT
from ..profile.profile import Profile
from ..training.pipelining import Holding, place_of
from ..training.recipes import Recipe
from .chunk import Alive, Chunk, Link
from .job import Job
from .pipeline_stages import StagePlan
from .runtime import Held, Runtime, times
from .sharding import strategy_of
from .states import stage_chunks, units_of


class TorchRuntime(Runtime):
    """A stage's chunks as torch's pipeline runs them."""

    def __init__(self, plan: StagePlan, body: Profile, recipe: Recipe, job: Job, *, first_step: bool = False) -> None:
        self.plan, self.body, self.recipe, self.job, self.first_step = plan, body, recipe, job, first_step
        mesh, split = body.run.mesh, job.split_of(body.run.mesh)
        places = [place_of(mesh, plan.number, chunk, folded=split.folded) for chunk in range(mesh.vpp)]
        self.links = [Link(received=place != 0, local=place + 1 in places, joined=True) for place in places]
        self.sends_gradient = [int(place != 0 and place - 1 not in places) for place in places]
        strategy = strategy_of(recipe, mesh)
        grows = not strategy.gradients_stay and not strategy.gathers_units
        self.splits = any(held.kind == "I" for held in plan.holdings)
        self.chunks = self._made(body)
        self.settled = self._made(body, settled=True) if grows else self.chunks
        self.halved = self._made(body.split(keeps_graph=True), settled=True, retained=True) if self.splits else []
        self.boundary = rounded(body.measured.boundary_bytes)
        own = stage_chunks(units_of(body.measured), mesh, plan.number, split)
        each = [[p for unit in units for p in unit.parameters if p.trainable] for units in own]
        self.gradients = [sum(map(strategy.gradient_bytes, of)) if grows else 0 for of in each]
        self.largest = [max(map(strategy.gradient_bytes, of), default=0) for of in each]

    def _made(self, body: Profile, *, settled: bool = False, retained: bool = False) -> list[Chunk]:
        links = [replace(link, retained=retained) for link in self.links]
        how = {"first_step": self.first_step, "settled": settled}
        return [
            Chunk(span, self.plan, body, self.recipe, self.job, link=link, **how)
            for span, link in zip(self.plan.chunks, links, strict=True)
        ]

    def moments(self) -> Iterator[Held]:
        for held, one in zip(self._holdings_by_moment(), super().moments(), strict=True):
            gradients, sent = times(held.accumulated, self.gradients), self._sent(held)
            alive = replace(one.alive, gradients=one.alive.gradients + gradients, held=one.alive.held + sent)
            yield replace(one, alive=alive, waiting=one.waiting + self._returned(held))

    def _returned(self, held: Holding) -> int:
        """Logits of micro-batches that are through, which the step returns (output_chunks)."""
        if not self.job.return_outputs or not self.plan.head:
            return 0
        last = next(i for i, chunk in enumerate(self.chunks) if chunk.head)
        waiting = held.kept[last] + (held.chunk == last)
        return max(0, self.recipe.accumulation_steps - waiting) * rounded(self.body.logits_bytes)

    def _holdings_by_moment(self) -> Iterator[Holding]:
        for held in self.plan.holdings:
            for _ in self._running(held):
                yield held

    def _running(self, held: Holding) -> Iterator[Alive]:
        i = held.chunk
        if held.kind == "W":
            waits = self._owed()[i]
            yield Alive(activations=waits, gradients=self.largest[i])
            if self.chunks[i].replayed:
                yield Alive(activations=self._graphs()[i] + self._replaying(self.chunks[i]))
        elif held.kind == "I":
            yield from self.halved[i].backward()
        else:
            chunk = (self.settled if held.accumulated[i] else self.chunks)[i]
            yield from chunk.forward() if held.kind == "F" else chunk.backward()

    def _owed(self) -> list[int]:
        """Of a micro-batch that waits for its weights' gradients, in each chunk: its graph and those of products."""
        if not self.splits:
            return [0] * len(self.chunks)
        return list(map(add, [chunk.owed_bytes for chunk in self.halved], self._graphs()))

    def _replaying(self, chunk: Chunk) -> int:
        """Bytes of replays while the last one runs, and of the gradients of products that are not used up by then: of
        the head's, or of the norms of the last layer."""
        logits = rounded(self.body.logits_bytes) if chunk.head else 2 * self.boundary
        return replays_bytes(chunk) + logits + RUNNING * self.boundary

    def _graphs(self) -> list[int]:
        return [chunk.kept_bytes - chunk.freed_bytes for chunk in self.chunks]

    def _sent(self, held: Holding) -> int:
        """Gradients of inputs: of every split backward of the step, and in schedules of one chunk the last one, which
        is held while the next action runs."""
        last = len(self.chunks) == 1 and self.links[0].received and held.accumulated[0]
        return self.boundary * (times(held.split, self.sends_gradient) + (1 if last else 0))

    @property
    def owed_bytes(self) -> int:
        own = [chunk.owed_bytes for chunk in self.halved] or [0] * len(self.chunks)
        return max(times(held.owed, own) for held in self.plan.holdings)

    @property
    def graph_bytes(self) -> int:
        return max(times(held.owed, self._graphs()) for held in self.plan.holdings)

    @property
    def sent_bytes(self) -> int:
        most = [0] * len(self.chunks)
        for held in self.plan.holdings:
            for i, split in enumerate(held.split):
                most[i] = max(most[i], split + (held.kind == "I" and held.chunk == i))
        return self.boundary * times(most, self.sends_gradient)


RUNNING = 5
"""Hidden states in the local variables of a layer's own forward when its last linear saves its input: the residual
stream twice, what both norms made, the last product (transformers/models/llama/modeling_llama.py,
LlamaDecoderLayer.forward)."""


def replays_bytes(chunk: Chunk) -> int:
    """Count the bytes of what checkpointed layers have been run again for, when the last weights get their gradients.

    `stage_backward_weight` runs a backward of its own for each weight, and every one of them runs a checkpoint again:
    its recomputed tensors stay in the checkpoint's frame until the graph is gone (torch/utils/checkpoint.py,
    _checkpoint_hook.unpack_hook), but for those that the weights' own products have used by then. The graph of the
    chunk's last layer goes with its last product, before its norms have had their turn, unless a head stands behind
    it. An implementation that kept what it had recomputed once would take a single replay.
    """
    total = 0
    for segment in chunk.replayed:
        weights = sum(p.trainable for layer in segment for p in layer.parameters)
        bytes_each = sum(row.nbytes for layer in segment for row in layer.saved if not _used_by_weights(row))
        if segment is chunk.replayed[-1]:
            used = [row for row in segment[-1].saved if _used_by_weights(row)]
            factors = [row.nbytes for row in used if row.reason != INPUT]
            product = used[-1].nbytes if used else 0
            if chunk.head:  # its last norm's turn comes last
                bytes_each += factors[-1] if factors else 0
                total += product
            else:
                weights -= len(factors)
                bytes_each += sum(factors) + product
        total += weights * bytes_each
    return total


def _used_by_weights(row: SavedTensor) -> bool:
    """Whether only a weight's own product saves it: a linear's input, what a norm's weight multiplies."""
    return row.reason == INPUT or (row.op == "MulBackward0" and "norm" in row.module and row.dtype != "float32")
