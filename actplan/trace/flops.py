"""FLOPs of matrix products, convolutions and attention, counted as the ops run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SINKS: list[tuple[Callable[[int], None], Callable[[str, int], None]]] = []


@contextmanager
def counting(flops: Callable[[int], None], hint: Callable[[str, int], None]) -> Iterator[None]:
    """Send what stand-in kernels report to a recorder, inside this block."""
    _SINKS.append((flops, hint))
    try:
        yield
    finally:
        _SINKS.pop()


def add_flops(count: int) -> None:
    """A stand-in kernel ran this many multiply-adds, counted twice each."""
    if _SINKS:
        _SINKS[-1][0](count)


def add_hint(name: str, value: int) -> None:
    """A constant that a stand-in kernel's sizes depend on; the fit needs it."""
    if _SINKS:
        _SINKS[-1][1](name, value)


def op_flops(name: str, args: tuple[Any, ...], out: Any) -> int:
    """FLOPs of one aten op (`mm`, `addmm`, `bmm`, `baddbmm`, `convolution`, `_grouped_mm`), 0 for any
    other."""
    count = _COUNTERS.get(name)
    return count(args, out) if count else 0


def attention_flops(q: Any, k: Any, v: Any, causal: bool) -> int:
    """Two products of (T × S × width), multiply and add, halved under a causal mask. Tensors are (B, T, H, D)."""
    batch, rows, heads, width = q.shape
    full: int = 2 * batch * heads * rows * k.shape[1] * (width + v.shape[-1])
    return full // 2 if causal else full


def _sdpa(args: tuple[Any, ...], first: int, causal: bool) -> int:
    """Heads-first q, k and v from argument `first` on."""
    q, k, v = (x.transpose(1, 2) for x in args[first : first + 3])
    return attention_flops(q, k, v, causal)


def _product(a: Any, b: Any) -> int:
    """(…, m, k) by (…, k, n)."""
    total = 2 * a.shape[-1] * b.shape[-1]
    for size in a.shape[:-1]:
        total *= size
    return int(total)


def _convolution(args: tuple[Any, ...], out: Any) -> int:
    weight, transposed = args[1], bool(args[6]) if len(args) > 6 else False
    side = args[0] if transposed else out
    return 2 * int(side.shape[0]) * int(side.shape[2:].numel()) * int(weight.numel())


def _convolution_backward(args: tuple[Any, ...], out: Any) -> int:
    grad, weight = args[0], args[2]
    each = 2 * int(grad.shape[0]) * int(grad.shape[2:].numel()) * int(weight.numel())
    return each * sum(x is not None for x in out[:2])


def _grouped(args: tuple[Any, ...], out: Any) -> int:
    a, b = args[0], args[1]
    if a.dim() == 2 and b.dim() == 3:  # rows of a shared out among the groups
        return 2 * int(a.shape[0]) * int(a.shape[1]) * int(b.shape[-1])
    if a.dim() == 2 and b.dim() == 2:  # weight gradients: the groups share the inner dimension
        return 2 * int(a.shape[0]) * int(a.shape[1]) * int(b.shape[1])
    return _product(a, b)


def _at(args: tuple[Any, ...], i: int) -> bool:
    """A flag that is left out where it is false."""
    return len(args) > i and bool(args[i])


_COUNTERS: dict[str, Callable[[tuple[Any, ...], Any], int]] = {
    "mm": lambda args, out: _product(args[0], args[1]),
    "bmm": lambda args, out: _product(args[0], args[1]),
    "addmm": lambda args, out: _product(args[1], args[2]),
    "baddbmm": lambda args, out: _product(args[1], args[2]),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_grouped_mm": _grouped,
    "_scaled_dot_product_flash_attention": lambda args, out: _sdpa(args, 0, _at(args, 4)),
    "_scaled_dot_product_flash_attention_backward": lambda args, out: 2 * _sdpa(args, 1, args[11]),
    "_scaled_dot_product_flash_attention_for_cpu": lambda args, out: _sdpa(args, 0, _at(args, 4)),
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda args, out: 2 * _sdpa(args, 1, args[7]),
    "_scaled_dot_product_efficient_attention": lambda args, out: _sdpa(args, 0, _at(args, 6)),
    "_scaled_dot_product_efficient_attention_backward": lambda args, out: 2 * _sdpa(args, 1, _at(args, 11)),
}
