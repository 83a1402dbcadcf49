"""Why FlashAttention saves each of its tensors: the words that a ledger gives for them."""

from __future__ import annotations

QUERIES = "the queries, to compute attention again"
KEYS = "the keys, to compute attention again"
VALUES = "the values, to compute attention again"
OUTPUT = "the attention output, for the softmax gradient"
ROWS = "the log-sum-exp of each row, to compute probabilities again"
STATE = "the state of the dropout generator"
