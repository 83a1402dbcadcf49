"""What a framework is to a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from ...training.policies import EveryK, EveryLayer, FirstN, NoCheckpoint, OneIn, Policy, Segment, Selective

if TYPE_CHECKING:
    from ...profile.chain import Chain
    from ...profile.profile import Profile


class Framework:
    """What a framework can be set to checkpoint. This class is the one without limits.

    Attributes:
        name: what `--only` calls it.
        long_segments: whether a segment may hold more than one layer.
        listed: whether its settings are few, so that all are tried (`settings`); otherwise schedules are solved for.
        nested: whether it can run a checkpoint within a checkpoint (`use_reentrant=False`).
        menus: whether it can run the further choices that a measured chain gives for a stage.
        per_op: whether a layer may keep single outputs; `per_op_by_default`: and does so where nobody says.
    """

    name: ClassVar[str]
    long_segments: ClassVar[bool] = True
    listed: ClassVar[bool] = False
    nested: ClassVar[bool] = False
    menus: ClassVar[bool] = True
    per_op: ClassVar[bool] = False
    per_op_by_default: ClassVar[bool] = False

    @property
    def any_segments(self) -> bool:
        """Whether any consecutive layers may be a segment, whatever the other segments are."""
        return self.long_segments and not self.listed

    def may_checkpoint(self, chain: Chain) -> list[bool]:
        """Return for each stage whether it may be part of a checkpointed segment: here the layers."""
        return [stage.is_layer for stage in chain.stages]

    def runs(self, segments: Sequence[Segment], layers: int) -> bool:
        """Return whether it can be set to checkpoint exactly these segments of so many layers."""
        return True

    def settings(self, layers: int) -> Iterator[Policy]:
        """Yield every setting of whole layers that it has beside none; only where it is `listed`."""
        return iter(())

    def named(self, layers: int) -> Iterator[Policy]:
        """Yield the policies with a name that it can run, the plainest first."""
        yield from (NoCheckpoint(), EveryLayer())
        yield from (EveryK(k) for k in range(2, layers + 1))
        yield from (FirstN(n) for n in range(1, layers))
        yield from (OneIn(k) for k in range(2, layers + 1))

    def rules(self, layers: int) -> Iterator[tuple[str, Policy]]:
        """Yield rules of its own among the alternatives of a plan: what each is called, and its policy."""
        return iter(())

    def selective(self, profile: Profile, *, per_op: bool) -> tuple[Policy, ...]:
        """Return its settings for all layers at once by what an op or a part of a layer is.

        Args:
            per_op: whether single outputs may be kept.
        """
        return ()

    def described(self, policy: Policy) -> str:
        """Return one of its selective settings in words."""
        kept = policy.ops if isinstance(policy, Selective) else ()
        words = [{"matmul": "every product"}.get(word, word) for word in kept]
        return f"{' and '.join(words)} kept (selective)"
