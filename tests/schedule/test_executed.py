"""Planned segments run by real PyTorch: the predicted peak, the predicted recomputation, the same gradients.

A counter of live storage bytes stands under everything that PyTorch runs; the chain is measured with the same
counter, one stage at a time, and the plans are executed by `torch.utils.checkpoint` (non-reentrant).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from actplan.checkpointing.solvers import frontier, plan, segmented, solve_nested, under
from actplan.profile.chain import Chain, Stage
from actplan.profile.evaluation import evaluate
from actplan.profile.schedule import Checkpointed, Schedule, Stored, Unit
from actplan.training.policies import Sqrt

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch
ROWS, WIDTH = 256, 64
HYBRID = (192, 192, 192, 576) * 2
"""Hidden widths of the blocks: three light ones, then a heavy one."""
LOSS = 8
"""The loss and its gradient, which the caller holds: 4 bytes each."""
DEEP = (32,) * 14
"""Light blocks only, where their boundaries weigh and nesting pays."""


class Counter:
    """Live and peak bytes of every storage that an op has made since the counter was entered."""

    def __init__(self) -> None:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        self.live = self.peak = 0
        self.seen: dict[int, Any] = {}
        counter = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                for value in torch.utils._pytree.tree_leaves(out):
                    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                        counter.note(value.untyped_storage())
                return out

        self.mode = Mode()

    def note(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return

        def gone(_: object) -> None:
            del self.seen[key]
            self.live -= size

        self.seen[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)

    def ignore(self, tensors: Any) -> None:
        """Tensors that are there before: the parameters."""
        for tensor in tensors:
            self.seen[tensor.untyped_storage()._cdata] = None


def build(widths: tuple[int, ...]) -> Any:
    """Stages: blocks with a hidden matmul, an activation and dropout; a head with its loss."""
    import torch
    from torch import nn

    class Block(nn.Module):
        runs = 0

        def __init__(self, wide: int) -> None:
            super().__init__()
            self.up, self.down, self.drop = nn.Linear(WIDTH, wide), nn.Linear(wide, WIDTH), nn.Dropout(0.2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.runs += 1
            return torch.add(x, self.down(self.drop(torch.nn.functional.gelu(self.up(x)))))

    class Head(nn.Module):
        runs = 0

        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(WIDTH, widths[0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.runs += 1
            return torch.logsumexp(self.out(x), -1).square().mean()

    torch.manual_seed(0)
    return nn.ModuleList([*map(Block, widths), Head()])


class StoppedError(Exception):
    """Ends a forward where nothing more is saved."""


def early_transient(module: Any) -> int:
    """Bytes beside what is kept at the highest point of a forward that ends with its last saved tensor."""
    import torch

    saved: list[Any] = []

    def run(last: int | None) -> int:
        counter = Counter()
        counter.ignore(module.parameters())
        saved.clear()

        def pack(tensor: Any) -> None:
            saved.append(tensor)
            if len(saved) == last:
                raise StoppedError

        with counter.mode, torch.autograd.graph.saved_tensors_hooks(pack, lambda _: None):
            x = torch.randn(ROWS, WIDTH).requires_grad_()
            with contextlib.suppress(StoppedError):
                module(x)
        kept = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in (x, *saved)}
        parameters = {p.untyped_storage()._cdata for p in module.parameters()}
        return counter.peak - sum(size for key, size in kept.items() if key not in parameters)

    run(None)
    return run(len(saved))


def measure(stages: Any) -> Chain:
    """The chain, each stage measured on its own, between a neighbour before it and one after it."""
    import torch

    found = []
    for number, module in enumerate(stages):
        counter = Counter()
        counter.ignore(module.parameters())
        with counter.mode:
            leaf = torch.randn(ROWS, WIDTH).requires_grad_()
            x = torch.mul(leaf, 1.5)
            boundary = before = x.untyped_storage().nbytes()
            out = module(x)
            after = out.untyped_storage().nbytes()
            saved, forward_peak = counter.live - before - boundary - after, counter.peak - before
            final = torch.mul(out, 1.5)
            del x, out
            gradient = torch.ones_like(final)
            counter.peak = counter.live
            torch.autograd.backward((final,), (gradient,))
            parameters = sum(p.numel() * p.element_size() for p in module.parameters())
            backward_peak = counter.peak - before - 2 * after
        held = boundary + saved + after
        found.append(
            Stage(
                name=str(number),
                kind="layer" if number < len(stages) - 1 else "head",
                x=boundary,
                s=saved,
                tf=forward_peak - held,
                tb=max(0, backward_peak - held - parameters),
                g=parameters,
                r=1,
                tf_last=early_transient(module),
            )
        )
        for parameter in module.parameters():
            parameter.grad = None
    return Chain(tuple(found), after)


def runner(stages: Any, units: tuple[Unit, ...]) -> Callable[[Any], Any]:
    """The stages called as the units say."""
    from torch.utils.checkpoint import checkpoint

    def run(x: Any) -> Any:
        for unit in units:
            if isinstance(unit, Checkpointed):
                inner = unit.inner or (Stored(unit.first, unit.last),)
                x = checkpoint(runner(stages, inner), x, use_reentrant=False)
            else:
                for index in range(unit.first, unit.last + 1):
                    x = stages[index](x)
        return x

    return run


def execute(schedule: Schedule, widths: tuple[int, ...] = HYBRID) -> tuple[int, int, dict[str, Any]]:
    """(peak bytes, stages run again, gradients by name) of one step."""
    import torch

    stages = build(widths)
    counter = Counter()
    counter.ignore(stages.parameters())
    torch.manual_seed(1)
    with counter.mode:
        run = runner(stages, schedule.units)
        loss = run(torch.randn(ROWS, WIDTH).requires_grad_())
        loss.backward()
    again = sum(module.runs for module in stages) - len(stages)
    return counter.peak, again, {name: p.grad for name, p in stages.named_parameters()}


@pytest.fixture(scope="module")
def chain() -> Chain:
    return measure(build(HYBRID))


@pytest.fixture(scope="module")
def reference() -> tuple[int, int, dict[str, Any]]:
    return execute(Schedule((Stored(0, len(HYBRID)),)))


def check(
    chain: Chain,
    schedule: Schedule,
    reference: tuple[int, int, dict[str, Any]],
    widths: tuple[int, ...] = HYBRID,
) -> None:
    """The prediction against the run."""
    import torch

    peak, again, gradients = execute(schedule, widths)
    predicted = evaluate(chain, schedule)
    assert peak == predicted.peak_bytes + LOSS
    assert again == predicted.cost == len(list(schedule.recomputed()))
    for name, gradient in reference[2].items():
        assert torch.equal(gradients[name], gradient), name


def test_nothing_checkpointed(chain: Chain, reference: tuple[int, int, dict[str, Any]]) -> None:
    check(chain, Schedule((Stored(0, len(HYBRID)),)), reference)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.7, 0.95])
def test_planned_segments(share: float, chain: Chain, reference: tuple[int, int, dict[str, Any]]) -> None:
    points = frontier(chain).points
    span = points[-1].peak_bytes - points[0].peak_bytes
    found = plan(chain, points[0].peak_bytes + int(share * span))
    assert found.feasible
    check(chain, found.schedule, reference)


@pytest.mark.parametrize("only", ["hf", "torchtitan", "megatron", "torch"])
def test_planned_for_a_framework(only: str, chain: Chain, reference: tuple[int, int, dict[str, Any]]) -> None:
    points = frontier(chain, only).points
    for point in {points[0], points[len(points) // 2]}:
        check(chain, point.schedule(), reference)


def test_named_segments(chain: Chain, reference: tuple[int, int, dict[str, Any]]) -> None:
    check(chain, under(chain, Sqrt()), reference)
    check(chain, segmented(chain, [(0, 1), (3, 5), (6, 6)]), reference)


def test_nested_segments() -> None:
    deep = measure(build(DEEP))
    reference = execute(Schedule((Stored(0, len(DEEP)),)), DEEP)
    found = solve_nested(deep, frontier(deep).lowest().peak_bytes - 1)
    points = found.points()
    assert points
    for size, _ in (points[0], points[-1]):
        schedule = found.schedule(size)
        assert schedule is not None
        assert schedule.depth() > 1
        check(deep, schedule, reference, DEEP)
