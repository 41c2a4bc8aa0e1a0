"""Session windows of an aggregate: ranges of event time of one key between two pauses.

A message passes `logic.py` (the two steps), `assignment.py` (which session; lateness is decided here), `merging.py` (values of
merged sessions), `../timing.py` (early, on time or late), `panes.py` with `../emitter.py` (panes, retractions). `rows.py` has
the stored rows, `timers.py` their timers, `splitting.py` the cuts at a maximum length, `oracle.py` the specification.
"""
