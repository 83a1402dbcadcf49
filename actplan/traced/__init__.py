"""A ledger file in place of a model: its estimate, and its step for a budget.

Being folded into `profile`: it repeats for traced stages what `checkpointing` and `memory` do for known ones.
"""
