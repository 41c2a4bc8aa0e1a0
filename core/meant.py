"""Which name was probably to be written."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(given: str, known: Iterable[str]) -> str | None:
    """The one of `known` that was probably to be written; upper and lower case are one."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), by_lower, 1)
    return by_lower[near[0]] if near else None
