"""Attention over a divided sequence against PyTorch: live and highest bytes of forward and backward.

all-gather is torch's own code on a group that sends nothing. ring and all-to-all are run as their libraries' loops go
(named in `actplan.ops.context_parallel`, `exchanged_heads`), with real tensors' lifetimes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental._context_parallel._attention as theirs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from actplan.autograd import Tape
from actplan.basics.units import BF16
from actplan.ops import context_parallel as ours
from actplan.ops.attention import flash_attention
from actplan.ops.exchanged_heads import exchanged_attention
from actplan.ops.views import transpose

pytestmark = pytest.mark.torch

SIZES = [(2, 1, 256, 8, 8, 64), (4, 1, 256, 8, 2, 64), (4, 2, 512, 32, 8, 128), (8, 1, 1024, 16, 4, 128)]
"""Ranks, batch, tokens of a rank, query heads, key and value heads, width."""
Peaks = tuple[int, int, int, int]
"""Forward: highest and at its end; backward: highest and at its end, above where it began."""
RNG = 512


class Live(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of storages that ops made and that are still alive, as the allocator rounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # a real one waits and makes nothing
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._born(tensor.untyped_storage())
        return out

    def _born(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = -(-storage.nbytes() // 512) * 512
            self.live += self.sizes[key]
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._died, key)

    def _died(self, key: int) -> None:
        self.live -= self.sizes.pop(key, 0)

    def mark(self) -> int:
        """The highest point since the last mark."""
        peak, self.peak = self.peak, self.live
        return peak


@contextmanager
def group(ranks: int, rank: int) -> Iterator[Any]:
    """One of so many ranks; what is sent goes nowhere."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def flash(q: Any, k: Any, v: Any, **_: Any) -> tuple[Any, Any]:
    """Heads first; lies as FlashAttention leaves it."""
    batch, heads, length, width = q.shape
    return q.new_empty(batch, length, heads, width).transpose(1, 2), q.new_empty(
        batch, heads, length, dtype=torch.float32
    )


def flash_backward(query: Any, key: Any, value: Any, grad_out: Any, **_: Any) -> tuple[Any, Any, Any]:
    """Heads first; gradients of keys and values first for each query head."""
    given = grad_out.transpose(1, 2).contiguous()
    batch, heads, length, width = query.shape
    scratch = [query.new_empty(batch, heads, length, n, dtype=torch.float32) for n in (width, 1)]
    dq = query.new_empty(batch, length, heads, width)
    dk, dv = (x.new_empty(batch, x.shape[2], heads, width) for x in (key, value))
    if key.shape[1] != heads:
        dk = key.new_empty(batch, key.shape[2], key.shape[1], width)
        dv = key.new_empty(batch, key.shape[2], key.shape[1], width)
    del scratch, given
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def measured(forward: Callable[..., Any], backward: Callable[..., Any], size: tuple[int, ...]) -> Peaks:
    _, batch, length, heads, groups, width = size
    with FakeTensorMode(allow_non_fake_inputs=True), Live() as live:
        q, k, v = (torch.empty(batch, length, n, width, dtype=torch.bfloat16) for n in (heads, groups, groups))
        start = live.live
        live.mark()
        saved = forward(*(x.transpose(1, 2) for x in (q, k, v)))
        high, end = live.mark() - start, live.live - start
        gradient = torch.empty(batch, length, heads, width, dtype=torch.bfloat16)
        start = live.live
        live.mark()
        made = backward(gradient.transpose(1, 2), *(x.transpose(1, 2) for x in (q, k, v)), *saved)
        found = (high, end, live.mark() - start, live.live - start)
        del made
    return found


def counted(attention: Callable[..., Any], size: tuple[int, ...]) -> Peaks:
    ranks, batch, length, heads, groups, width = size
    tape = Tape()
    leaves = [tape.empty((batch, length, n, width), BF16, "x") for n in (heads, groups, groups)]
    for leaf in leaves:
        leaf.requires_grad = True
    start = tape.meter.live
    tape.meter.mark()
    out, _ = attention(*(transpose(x, 1, 2) for x in leaves), None, ranks=ranks)
    node = out.node if out.node.saved else out.node.edges[0][0]  # below the copy that makes it tokens-first
    high, end = tape.meter.mark() - start, tape.meter.live - start
    gradient = tape.empty(out.shape, BF16, "gradient")
    start = tape.meter.live
    tape.meter.mark()
    made = node.rule(node, [gradient])
    found = (high, end, tape.meter.mark() - start, tape.meter.live - start)
    del made
    return found


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("method", ["ALL_GATHER", "ALL_TO_ALL"])
@pytest.mark.parametrize("size", SIZES)
def test_balanced_blocks_as_torch_has_them(
    size: tuple[int, ...], method: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theirs._cp_options, "rotate_method", theirs._RotateMethod[method])
    rank = {"first": 0, "middle": (size[0] - 1) // 2, "last": size[0] - 1}[place]

    def forward(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        out, lse, *_ = theirs._templated_ring_attention(world, 2, flash, q, k, v, is_causal=True)
        return out, lse, out.transpose(1, 2).contiguous()  # as Transformers' sdpa_attention_forward hands it on

    def backward(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, _: Any) -> Any:
        return theirs._templated_ring_attention_backward(
            world, 2, flash_backward, grad, "grad_out", q, k, v, out, lse, True
        )

    with group(size[0], rank) as world:
        high, end, highest, left = measured(forward, backward, size)
    gathers = method == "ALL_GATHER"
    found = counted(
        lambda *args, **more: ours.balanced_attention(*args, **more, rank=rank, low=BF16, gathers=gathers), size
    )
    assert found[1::2] == (end + RNG, left)
    assert found[0] == pytest.approx(high, rel=0.01)
    assert found[2] == pytest.approx(highest, rel=0.01)


def ring_forward(ranks: int, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k_used, v_used, out, lse = k, v, None, None
    k_next = v_next = None
    for step in range(ranks):
        if step + 1 < ranks:
            k_next, v_next = torch.empty_like(k_used), torch.empty_like(v_used)
        block, block_lse = flash(*(x.transpose(1, 2) for x in (q, k_used, v_used)))
        if out is None:
            out, lse = block.to(torch.float32), block_lse.unsqueeze(-1)
        else:
            out, lse = ring_update(out, lse, block, block_lse)
        if step + 1 < ranks:
            k_used, v_used = k_next, v_next
    return out.to(q.dtype), lse


def ring_update(out: Any, lse: Any, block: Any, block_lse: Any) -> tuple[Any, Any]:
    block, block_lse = block.to(torch.float32), block_lse.unsqueeze(-1)
    out = out - torch.sigmoid(block_lse - lse) * (out - block)
    return out, lse - torch.nn.functional.logsigmoid(lse - block_lse)


def ring_backward(ranks: int, grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> tuple[Any, ...]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    dq_block, dk_block, dv_block = (torch.empty_like(x) for x in (q, k, v))
    dq = dk = dv = dk_next = dv_next = k_next = v_next = None
    for step in range(ranks):
        if step + 1 < ranks:
            k_next, v_next = torch.empty_like(k), torch.empty_like(v)
        scratch = [q.new_empty(q.shape, dtype=torch.float32), torch.empty_like(lse)]
        if k.shape[2] != q.shape[2]:
            scratch += [q.new_empty(q.shape) for _ in range(2)]
        del scratch
        if dq is None:
            dq, dk, dv = (x.to(torch.float32) for x in (dq_block, dk_block, dv_block))
        else:
            dq += dq_block
            dk = dk_block + dk_next
            dv = dv_block + dv_next
        if step + 1 < ranks:
            k, v = k_next, v_next
        dk_next = torch.empty_like(dk)
        dv_next = torch.empty_like(dv)
    return dq.to(torch.bfloat16), dk_next.to(q.dtype), dv_next.to(q.dtype)


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_as_its_loop_goes(size: tuple[int, ...]) -> None:
    expected = measured(
        lambda q, k, v: ring_forward(size[0], q, k, v), lambda *args: ring_backward(size[0], *args), size
    )
    last = size[0] - 1
    found = counted(lambda *args, **more: ours.ring_attention(*args, **more, rank=last, low=BF16), size)
    assert found[1::2] == expected[1::2]
    assert found[0] == pytest.approx(expected[0], rel=0.01)
    assert found[2] == pytest.approx(expected[2], rel=0.01)


def exchange(ranks: int, x: Any) -> Any:
    """[B, H, T, D] to [B, H / ranks, T · ranks, D]."""
    if x.shape[1] < ranks:
        x = x.repeat_interleave(ranks // x.shape[1], dim=1)
    batch, heads, length, width = x.shape
    x = x.permute(2, 0, 1, 3).reshape(length, batch, ranks, heads // ranks, width).permute(2, 0, 1, 3, 4).contiguous()
    x = torch.empty_like(x)
    x = x.reshape(ranks * length, batch, heads // ranks, width)
    return x.permute(1, 2, 0, 3).contiguous()


def exchanged(ranks: int, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    batch, heads, length, width = q.shape
    q, k, v = (exchange(ranks, x) for x in (q, k, v))
    out, lse = flash(q, k, v)
    given = out.transpose(1, 2).transpose(0, 1).reshape(ranks, length, batch, -1).contiguous()
    given = torch.empty_like(given)
    given = given.permute(1, 2, 0, 3).reshape(length, batch, -1).transpose(0, 1).reshape(batch, length, heads, width)
    return q, k, v, out, lse, given


@pytest.mark.parametrize("size", SIZES)
def test_exchanged_heads(size: tuple[int, ...]) -> None:
    """The forward: what the attention keeps of the whole sequence, and one output more."""
    expected = measured(lambda q, k, v: exchanged(size[0], q, k, v), lambda *args: (), size)
    found = counted(
        lambda *args, **more: exchanged_attention(*args, **more, kernel=flash_attention),
        size,
    )
    assert found[0] == pytest.approx(expected[0], rel=0.05)
    assert found[1] == expected[1] + RNG
