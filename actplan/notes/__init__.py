"""What a reader must know beside the numbers: each note has a code, a condition and a text."""
