"""OVER windows around the messages of another input, or the ticks of a clock."""
