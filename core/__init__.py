"""Value types, definitions, time, errors and binary codecs: what every other layer speaks about."""
