"""windrow: windowed stream processing with exactly-once state, in plain Python and on Spark."""

__version__ = "0.1.0"
