"""A window around each message: `wr.Over`."""
