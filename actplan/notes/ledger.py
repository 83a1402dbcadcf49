"""What a reader of the saved tensors of one layer must know beside them."""

from __future__ import annotations

from ..checkpointing.segmented import segmented
from ..model import Model
from ..report import Note
from ..training import Run


def ledger_notes(model: Model, run: Run, layer: int) -> tuple[Note, ...]:
    """Say why a layer keeps nothing: it runs again with the layers before it, or nothing in it or below is trained."""
    chosen = segmented(model, run, run.checkpoint)
    if chosen.layer_saved_bytes[layer]:
        return ()
    for first, last in chosen.segments:
        if first < layer <= last:
            said = f"layers {first} to {last} run again together: their one input is saved with layer {first}"
            return (Note(code="inside-segment", message=said),)
    said = f"layer {layer} keeps nothing: no parameter in it or below it is trained"
    return (Note(code="nothing-trained", message=said),)
