"""The waist: what every answer is made from.

A model of a known family, run once, layer kind by layer kind, and a ledger file each give stages in a row. Nothing
above this room knows which of them stands behind a stage; nothing in it knows what is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..model import Model

if TYPE_CHECKING:
    from ..training import Run
    from ..training.policies import Policy
    from .ledger_file import LedgerModel
    from .profile import Profile, Segmented

Source: TypeAlias = "Model | LedgerModel"
"""What a profile is made from."""


def architecture_of(source: Source) -> Model | None:
    """Return the architecture that a source describes; None for a ledger, which holds stages alone."""
    return source if isinstance(source, Model) else None


def profile_of(source: Source, run: Run) -> Profile:
    """Return the one profile of a model, or of a ledger file, under a run.

    Raises:
        InputError: a run that the model refuses, or that a ledger cannot follow.
    """
    if isinstance(source, Model):
        from .of_model import known

        return known(source, run)
    from .of_ledger import traced

    return traced(source, run)


def segmented(source: Source, run: Run, policy: Policy) -> Segmented:
    """Return a model under a run with the segments that a policy chooses."""
    return profile_of(source, run).under(policy)
