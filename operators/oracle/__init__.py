"""Parts of the oracles: lists and loops, shared by operators."""
