"""Costs of windrow, and of the alternatives to it: `python -m benchmarks [--quick] [names...]`."""
