"""Joins of two inputs, over time and over rows."""
