"""Results as text. Views (`estimate`, `ledger`, `sweep`, `presets`) turn a result into blocks or CSV records;
writers (`text`, `terminal`, `markdown`, `csv`) turn those into text. GiB exists here and nowhere else.
"""
