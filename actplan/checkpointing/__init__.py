"""What fits: the cheapest schedule within a limit, the whole trade-off, the largest length, batch or depth."""
