"""The limit of a budget, and the verdict against it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET

from ..report import Band, Budget

FIT_ON = ("allocated", "reserved", "device")
Verdict = Literal["fits", "tight", "no"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What must be within which limit.

    strict: whether a run that is `tight` counts as one that does not fit.
    """

    limit_bytes: int
    fit_on: str = "device"
    device: str | None = None
    strict: bool = False

    def needed(self, found: Budget) -> Band:
        """Return the bytes that count against the limit, with `typical` set."""
        if self.fit_on == "allocated":
            return Band(low=found.total_bytes, high=found.total_bytes, typical=found.total_bytes)
        return found.reserved_bytes if self.fit_on == "reserved" else found.device_bytes

    def typical(self, found: Budget) -> int:
        """Return what the run typically takes, in bytes."""
        return typically(self.needed(found))

    def verdict(self, found: Budget) -> Verdict:
        """Return the verdict on a budget.

        The caching allocator gives free blocks back before it fails, so a run dies where what it allocates, with what
        cannot be given back, is beyond the device, and not where it would reserve more if there were room.
        """
        if self.typical(found) <= self.limit_bytes:
            return "fits"
        return "tight" if self.needed(found).low <= self.limit_bytes else "no"

    def fits(self, found: Budget) -> bool:
        """Return whether the run is one to start."""
        return self.verdict(found) in (("fits",) if self.strict else ("fits", "tight"))


def typically(band: Band) -> int:
    """Return the band's typical size in bytes; its high end where no measurement says."""
    return band.high if band.typical is UNSET else band.typical
