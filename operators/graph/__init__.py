"""Operators of which one takes what another tells."""
