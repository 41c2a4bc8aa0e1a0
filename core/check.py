"""Checks of what people type, before it means anything: a wrong type is told with the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windrow.core.errors import ConfigurationError


def names(value: Any, what: str, remedy: str) -> tuple[str, ...]:
    """The columns that `value` names: one as text, several in a sequence."""
    if isinstance(value, str):
        return (value,)
    listed = tuple(value) if isinstance(value, Iterable) else None
    if listed is None or not all(isinstance(v, str) for v in listed):
        raise ConfigurationError(f"{what}={value!r}: {remedy}")
    return listed


def of_type(
    value: Any, kind: type[Any], what: str, remedy: str, error: type[ConfigurationError] = ConfigurationError
) -> Any:
    """`value`, which is a `kind`."""
    if not isinstance(value, kind):
        raise error(f"{what}={value!r}: {remedy}")
    return value


def flag(value: Any, what: str, error: type[ConfigurationError] = ConfigurationError) -> bool:
    """`value`, which is True or False: the text "no" would be true."""
    return bool(of_type(value, bool, what, "use True or False", error))


def number(
    value: Any,
    what: str,
    remedy: str,
    *,
    least: int = 0,
    error: type[ConfigurationError] = ConfigurationError,
) -> int:
    """`value`, which is a whole number, not below `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise error(f"{what}={value!r}: {remedy}")
    return value
