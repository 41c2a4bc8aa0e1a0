"""Delivery policies: the messages of a step that a policy lets pass, `wr.Delivery`."""
