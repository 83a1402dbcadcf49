"""How high a compiled region stands in its forward and in its backward.

Kernels run in the order of their ops. What fuses is written only where somebody has to read it: an op that nothing
fuses with, the backward, or the caller. A buffer dies with its last use, and a result takes the place of one of its
size that dies with it, as Inductor's buffers do (torch/_inductor/scheduler.py and codegen/wrapper.py of PyTorch 2.13).
The order in which Inductor runs kernels that do not depend on one another is its own, so that heights are near and
not exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..autograd.graph import Node
from ..basics.allocator import rounded
from .cut import UNFUSED_READERS
from .graph import JOINED, Value


class _Buffers:
    """Buffers with the time of their last use, and the bytes alive at most."""

    def __init__(self, there: Sequence[tuple[int, int]] = ()) -> None:
        """there: (bytes, time of the last use) of what is alive at the beginning."""
        self.live = self.peak = sum(size for size, _ in there)
        self._dies: dict[int, list[int]] = {}
        for size, last in there:
            self._dies.setdefault(last, []).append(size)

    def take(self, size: int, now: int, last: int) -> None:
        """Allocate at the time `now` what is used up to `last`."""
        dying = self._dies.get(now, [])
        if size in dying:
            dying.remove(size)
            self.live -= size
        self.live += size
        self.peak = max(self.peak, self.live)
        self._dies.setdefault(last, []).append(size)

    def end(self, now: int) -> None:
        """Free what was used for the last time."""
        self.live -= sum(self._dies.pop(now, ()))


def forward_height(values: Sequence[Value], kept: Sequence[Value]) -> int:
    """Return how many bytes are alive at most in a region's forward beside what it is given."""
    numbers = {one.number for one in kept}
    written = [one for one in values if _is_written(one, numbers)]
    last = {one.storage: one.number for one in written}
    for one in written:
        for source in _read_by(one, numbers):
            last[source.storage] = max(last.get(source.storage, 0), one.number)
    last.update({one.storage: len(values) for one in (*kept, *values) if one.number in numbers or one.returned})
    buffers, there = _Buffers(), set[int]()
    for one in written:
        if one.storage not in there:
            there.add(one.storage)
            buffers.take(rounded(one.nbytes), one.number, last[one.storage])
        buffers.end(one.number)
    return buffers.peak


def _is_written(value: Value, kept: set[int]) -> bool:
    """Whether a value is a buffer of its own."""
    if value.given or value.is_view:
        return False
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one.returned or one.number in kept or not one.fusible:
            return True
        waiting.extend(user for user in one.users if user.is_view)
        if any(not user.fusible and not user.is_view and user.op != JOINED for user in one.users):
            return True
    return False


def _read_by(value: Value, kept: set[int]) -> Iterator[Value]:
    """The buffers that the kernel which makes a value reads."""
    waiting, seen = list(value.sources), set[int]()
    while waiting:
        one = waiting.pop()
        if one.number in seen or one.given:
            continue
        seen.add(one.number)
        if _is_written(one, kept):
            yield one
        else:
            waiting.extend(one.sources)


def backward_height(values: Sequence[Value], kept: Sequence[Value]) -> int:
    """Return how many bytes more are alive at most in a region's backward than when it begins, with all that was kept
    and the gradient of the result."""
    return _Backward(values).height(kept)


class _Backward:
    """The kernels of a region's backward. Their times are those of their ops, counted from the end of the region."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.values, self.end = values, len(values)
        self.made: dict[Node, list[Value]] = {}
        for value in values:
            if value.maker is not None:
                self.made.setdefault(value.maker, []).append(value)

    def height(self, kept: Sequence[Value]) -> int:
        """See `backward_height`. Gradients of weights stay to the end."""
        buffers = _Buffers(tuple(self._kept_until(kept)))
        start = buffers.live
        there = set[int]()
        for node, made in sorted(self.made.items(), key=lambda one: -one[1][0].number):
            if not _stands_alone(made[0]):
                continue
            now = self.end - made[0].number
            for gradient in map(_same_gradient, made):
                if not (gradient.returned or gradient.number in there or self._comes_as_it_is(gradient)):
                    there.add(gradient.number)
                    buffers.take(rounded(gradient.nbytes), now, self._until(gradient))
            for source, edge in zip(made[0].sources, node.edges, strict=False):
                if edge is not None:
                    last = self.end + 1 if _is_weight(source) else self._until(source)
                    buffers.take(rounded(source.nbytes), now, last)
            buffers.end(now)
        entered = next((one for one in self.values if one.given and not one.static), None)
        if entered is not None:
            buffers.take(rounded(entered.nbytes), self.end, self.end + 1)
        return buffers.peak - start

    def _comes_as_it_is(self, value: Value) -> bool:
        """Whether the gradient of a value is what the kernel of its one user wrote."""
        return len(value.users) == 1 and _stands_alone(value.users[0])

    def _until(self, value: Value) -> int:
        """The time up to which a gradient is read: by the kernels that stand alone before it, and by the gradient of
        what the region is given."""
        last, waiting, seen = 0, list(value.sources), {value.number}
        while waiting:
            one = waiting.pop()
            if one.number in seen or one.static:
                continue
            seen.add(one.number)
            if one.given:
                last = self.end
            elif _stands_alone(one):
                last = max(last, self.end - one.number)
            else:
                waiting.extend(one.sources)
        return last or self.end

    def _kept_until(self, kept: Sequence[Value]) -> Iterator[tuple[int, int]]:
        """(bytes, time of the last use) of what the region itself made and keeps."""
        numbers = {one.number for one in kept}
        found: dict[int, tuple[int, int]] = {}
        for value in kept:
            if value.given:
                continue
            last, waiting, seen = 0, [value], set[int]()
            while waiting:
                one = waiting.pop()
                if one.number in seen or (one is not value and one.number in numbers):
                    continue
                seen.add(one.number)
                last = max([last, *map(self._time_of, one.needed)])
                waiting.extend(one.users)
            size, before = found.get(value.storage, (0, 0))
            own = rounded(value.storage_bytes if value.is_view else value.nbytes)
            found[value.storage] = max(size, own), max(before, last)
        yield from found.values()

    def _time_of(self, node: Node) -> int:
        """When the backward of an op is computed: with the kernel that its gradients are fused into."""
        made = self.made.get(node)
        if made is None:
            return self.end
        return self.end - made[0].number if _stands_alone(made[0]) else self._until(made[0])


def _stands_alone(value: Value) -> bool:
    """Whether the backward of a value's op is a kernel of its own."""
    return value.op in UNFUSED_READERS or value.op.endswith("Function")


def _same_gradient(value: Value) -> Value:
    """The last value whose gradient is the same buffer: through views and sums that are its one user."""
    while len(value.users) == 1 and (value.users[0].is_view or value.users[0].op == "AddBackward0"):
        value = value.users[0]
    return value


def _is_weight(value: Value) -> bool:
    """Whether a value is a parameter, or one seen or cast otherwise."""
    while value.is_view or value.op == "ToCopyBackward0":
        value = value.sources[0]
    return value.static
