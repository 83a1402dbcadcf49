"""The repeating block of a row of layers: its size, and where the repetition begins.

`--checkpoint block`, the pattern in words and layers that are added beyond those of a model all ask this one question,
of a model's layers, of a ledger's and of a measured chain's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple


class Repeating(NamedTuple):
    """The shortest pattern that repeats to the end of a row of layers.

    Attributes:
        lead: layers before the repetition begins, half of all at most (3 in DeepSeek-V3: its dense layers).
        block: layers of one repetition, 1 at least; all layers where nothing repeats.
    """

    lead: int
    block: int


def repeating(kinds: Sequence[object]) -> Repeating:
    """Find the repeating block of layers, of which those of one kind compare equal.

    The repetition begins as early as it can, so that it covers most layers, and its pattern comes twice at least; the
    last repetition may be cut (Gemma 3: 62 layers in blocks of 6, the eleventh of 2). Among patterns that begin there
    it is the shortest. It takes time linear in the number of layers.

    Source of the method: the failure function of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977), computed over the
    layers backwards, gives the period of every part at the end at once.
    """
    n, k = len(kinds), 0
    backwards, failure = list(reversed(kinds)), [0] * n
    for i in range(1, n):
        while k and backwards[i] != backwards[k]:
            k = failure[k - 1]
        k += backwards[i] == backwards[k]
        failure[i] = k
    for lead in range(n // 2 + 1):
        length = n - lead
        block = length - failure[length - 1] if length else 1
        if 2 * block <= length:
            return Repeating(lead, block)
    return Repeating(0, max(n, 1))


def in_words(names: Sequence[str], found: Repeating) -> str:
    """Write a row of layers short: `16 x [3 x gated_deltanet, full_attention]`; a cut last repetition stands apart."""
    lead, block = found
    times = (len(names) - lead) // block
    inner = _runs(names[lead : lead + block])
    repeated = inner if times == 1 else f"{times} x {inner}" if block == 1 else f"{times} x [{inner}]"
    parts = (_runs(names[:lead]), repeated if names else "", _runs(names[lead + times * block :]))
    return ", ".join(part for part in parts if part)


def _runs(names: Sequence[str]) -> str:
    counted = [(name, len(list(run))) for name, run in groupby(names)]
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counted)
