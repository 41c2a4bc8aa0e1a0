"""Windowed aggregates over time, tuple and global windows."""
