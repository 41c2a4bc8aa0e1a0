"""The first message of each id: `wr.Deduplicate`."""
