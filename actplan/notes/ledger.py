"""What a reader of the saved tensors of one layer must know beside them."""

from __future__ import annotations

from ..profile.profile import Profile
from ..report import Note


def ledger_notes(profile: Profile, layer: int) -> tuple[Note, ...]:
    """Say why a layer keeps nothing: it runs again with the layers before it, or nothing in it or below is trained."""
    chosen = profile.under(profile.given.checkpoint)
    if chosen.layer_saved_bytes[layer]:
        return ()
    for first, last in chosen.layer_segments:
        if first < layer <= last:
            said = f"layers {first} to {last} run again together: their one input is saved with layer {first}"
            return (Note(code="inside-segment", message=said),)
    said = f"layer {layer} keeps nothing: no parameter in it or below it is trained"
    return (Note(code="nothing-trained", message=said),)
