"""For programs of tests that need a store alone: without all the names of `windrow` they begin in half the time."""

import windrow

#: What such a program begins with: a package whose modules are found, and which imports none.
BARE = (
    "import sys, types; sys.modules['windrow'] = types.ModuleType('windrow'); "
    f"sys.modules['windrow'].__path__ = {list(windrow.__path__)!r}\n"
)
