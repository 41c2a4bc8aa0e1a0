"""The messages of a step that a policy lets pass: `wr.Delivery`."""
