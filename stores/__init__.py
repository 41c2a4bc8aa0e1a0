"""Key layouts, RocksDB, the message and window-metadata stores, changelogs and snapshots."""
