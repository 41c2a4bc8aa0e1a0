"""The page of `windrow ui`: jobs and their state as live documents in a browser."""
