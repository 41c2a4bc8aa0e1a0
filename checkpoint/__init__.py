"""The log of epochs, the commit protocol of a shard and the pure recovery decisions."""
