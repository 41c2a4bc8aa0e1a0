"""Micro-batching: many steps of one message each, run as few columnar ones."""
