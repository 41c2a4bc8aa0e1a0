"""Depth of the tests: enough for each change, or with WINDROW_DEEP=1 (`make test-deep`) enough for a release.

Whatever is left out for time is left out through `usually`, so that one variable brings all of it back.
"""

from __future__ import annotations

import os
from typing import TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

DEEP = os.environ.get("WINDROW_DEEP") == "1"


def usually(usual: T, *, deep: T) -> T:
    """`usual`, and with WINDROW_DEEP=1 `deep`."""
    return deep if DEEP else usual


def examples(usual: int, *, deep: int) -> settings:
    """The settings of a property that is tried with so many examples, each of which may take its time."""
    return settings(
        deadline=None,
        max_examples=usually(usual, deep=deep),
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
