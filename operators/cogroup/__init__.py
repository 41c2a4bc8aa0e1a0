"""One aggregate over several inputs: `wr.CoGroup`."""
