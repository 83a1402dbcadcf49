"""Units, typed errors, and files read strictly: what knows nothing of models."""
