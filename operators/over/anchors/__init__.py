"""Windows around the messages of another input, or of a clock."""
