"""What windrow costs, beside what else one would run: `python -m benchmarks [--quick] [names...]`."""
