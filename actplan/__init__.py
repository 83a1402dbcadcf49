"""actplan: where the memory of a training step goes, and which checkpointing makes it fit."""

__version__ = "0.1.0"
