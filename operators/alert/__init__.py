"""A condition that is evaluated again and again, with a status per key: `wr.Alert`."""
