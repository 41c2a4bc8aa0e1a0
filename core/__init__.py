"""Value types, definitions, time, errors and binary codecs, which every other layer uses."""
