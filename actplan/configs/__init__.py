"""Other tools' configuration files: what they mean for memory, and how to write them.

One module a framework: its keys, its defaults with their source, and its traps. All of them give a `Reading` in one
small vocabulary (`vocabulary.FIELDS`). `planning` is the one place that says which options of actplan
a reading amounts to. Nothing here knows how a number is made. Files are untrusted: they are parsed strictly, never run.
"""
