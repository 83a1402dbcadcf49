"""Op rules: what an op allocates, what it saves, and what its backward allocates. One file a family."""
