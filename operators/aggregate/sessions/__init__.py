"""Session windows of an aggregate: ranges of event time of one key between two pauses."""
