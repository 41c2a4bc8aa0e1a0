"""Temporal rules over several inputs: `wr.Rules`."""
