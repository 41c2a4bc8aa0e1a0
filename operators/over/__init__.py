"""OVER windows: one window around each message, `wr.Over`."""
