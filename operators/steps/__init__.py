"""What the steps of all operators share."""
