"""Where to checkpoint: the table of segmentations, what each framework can run, the cheapest schedule within a limit.

Nothing is imported here: `estimate` needs the table, and neither the planner nor the solvers.
"""
