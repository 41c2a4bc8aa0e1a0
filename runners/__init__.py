"""Drivers of the commit protocol: this process (embedded) or Spark (foreachBatch)."""
