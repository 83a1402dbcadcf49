"""PyTorch itself: `torch.utils.checkpoint` around whatever the caller puts there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...training.policies import Policy, Selective
from .framework import Framework

if TYPE_CHECKING:
    from ...profile.chain import Chain
    from ...profile.profile import Profile


class PyTorch(Framework):
    """Segments of any consecutive layers; embedding, norms and head stay stored. Single outputs where asked for."""

    name = "torch"
    nested = True
    per_op = True

    def selective(self, profile: Profile, *, per_op: bool) -> tuple[Policy, ...]:
        """Return: attention kept; attention and every product kept; of these, what the model has."""
        if not per_op:
            return ()
        words = profile.menus.words
        sets = (tuple(word for word in wanted if word in words) for wanted in (("attention",), ("attention", "matmul")))
        return tuple(Selective(kept) for kept in dict.fromkeys(sets) if kept)


class Anything(PyTorch):
    """The same with no framework in mind: every stage that a chain lets be checkpointed, single outputs as well."""

    name = "any"
    per_op_by_default = True

    def may_checkpoint(self, chain: Chain) -> list[bool]:
        """Return for each stage whether the chain lets it be checkpointed."""
        return [stage.checkpointable for stage in chain.stages]
