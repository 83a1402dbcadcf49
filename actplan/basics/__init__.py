"""Units, typed errors, and files read strictly: what knows nothing of models."""

__version__ = "0.1.0"
