"""The waist: what every answer is made from.

A model of a known family, run once, layer kind by layer kind, and a ledger file each give stages in a row. Nothing
above this room knows which of them stands behind a stage; nothing in it knows what is asked.
"""
