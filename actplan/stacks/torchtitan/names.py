"""What torchtitan calls the modules around its blocks."""

OUTSIDE = {"tok_embeddings": "embedding", "norm": "final_norm", "lm_head": "head"}
"""Module -> part of the report."""
