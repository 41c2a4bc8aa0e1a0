"""Checks of users' arguments: an error for a wrong type names the value and the remedy."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from windrow.core.errors import ConfigurationError, UnknownOption
from windrow.core.suggestions import meant_option

P = ParamSpec("P")
_NO_KEY = "name a column, several as by=('origin', 'carrier'), or () for no key"
R = TypeVar("R")


def suggests(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that an error for an unknown option suggests the one meant. Its signature and its help stay."""
    parameters = inspect.signature(function).parameters
    known = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    by_place = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    bound = len(by_place[:1]) if by_place[:1] == ["self"] else 0
    what = function.__qualname__.removesuffix(".__init__").removesuffix("Definition")
    said_of = what.removeprefix("Verbs.")  # no user knows that name

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters:
                near = meant_option(name, known)
                said = f"did you mean {near!r}?" if near else f"there are {', '.join(known)}"
                raise UnknownOption(f"{said_of} has no option {name!r}: {said}")
        if len(args) > len(by_place):
            examples = ", ".join(f"{name}=..." for name in known[:2])
            raise UnknownOption(
                f"{said_of} is given {len(args) - bound} arguments by place, and takes {len(by_place) - bound}: name the "
                f"others, {examples}"
            )
        return function(*args, **kwargs)

    if what != function.__qualname__ or "." not in what:
        function.__qualname__ = f"wr.{what}"  # as Python calls it where an argument is missing
    return called


def arguments(local: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method, from its `locals()` at the head."""
    return {name: value for name, value in local.items() if name not in ("self", "__class__")}


def names(value: Any, what: str, remedy: str) -> tuple[str, ...]:
    """Return the columns that `value` names: one as text, several in a sequence."""
    if isinstance(value, str):
        return (value,)
    listed = tuple(value) if isinstance(value, Iterable) else None
    if listed is None or not all(isinstance(v, str) for v in listed):
        raise ConfigurationError(f"{what}={value!r}: {remedy}")
    return listed


def keys(value: Any, remedy: str = _NO_KEY) -> tuple[str, ...]:
    """Return the key columns that `by=` names, each once."""
    by = names(value, "by", remedy)
    if len(set(by)) != len(by):
        raise ConfigurationError(f"by={by!r} names a column twice: name each once")
    return by


def choice(value: Any, what: str, choices: Collection[str]) -> None:
    """Check that `value` is one of the choices of an option."""
    if value not in choices:
        shown = list(map(repr, choices))
        listed = " or ".join(shown) if len(shown) < 3 else f"one of {', '.join(shown)}"
        raise ConfigurationError(f"{what}={value!r}: use {listed}")


def common(options: Mapping[str, Any]) -> None:
    """Check those of the options that many operators have."""
    name(options["name"], "name")
    number(options["dead_letter_limit"], "dead_letter_limit", "use a number of dead letters, 0 or more")
    choice(options.get("null_keys", "group"), "null_keys", ("group", "dead_letter"))
    choice(options.get("integer_overflow", "decimal"), "integer_overflow", ("dead_letter", "decimal"))
    choice(options.get("scale") or "small", "scale", ("small", "large"))


def of_type(
    value: Any, kind: type[Any], what: str, remedy: str, error: type[ConfigurationError] = ConfigurationError
) -> Any:
    """Check that `value` is a `kind`, and return it."""
    if not isinstance(value, kind):
        raise error(f"{what}={value!r}: {remedy}")
    return value


def flag(value: Any, what: str, error: type[ConfigurationError] = ConfigurationError) -> bool:
    """Check that `value` is True or False, and return it: the text "no" would be true."""
    return bool(of_type(value, bool, what, "use True or False", error))


def number(
    value: Any,
    what: str,
    remedy: str,
    *,
    least: int = 0,
    error: type[ConfigurationError] = ConfigurationError,
) -> int:
    """Check that `value` is a whole number, not below `least`, and return it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise error(f"{what}={value!r}: {remedy}")
    return value


#: Files, folders, column families and topics have names with these in them, and a file's name has at most 255 bytes.
_NAME = re.compile(r"(?!\.+\Z)[\w.-]{1,64}")
_MOST_BYTES = 192


def name(value: Any, what: str) -> str:
    """Check that `value` may be the name of an operator or of an input, and return it."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value.encode()) > _MOST_BYTES:
        raise ConfigurationError(
            f"{what}={value!r}: use 1 to 64 letters, digits, '_', '-' or '.', e.g. 'delays_by_origin'"
        )
    return value
