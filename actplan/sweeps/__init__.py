"""Many points at once: their rows, and the parts of a job array."""
