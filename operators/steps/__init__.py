"""Steps: parts that all operators share."""
