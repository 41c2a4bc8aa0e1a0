"""Quoting of names and texts for Spark SQL. It is done only here."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a column's name, whatever is in it: a dot is no field of a struct, a backtick does not end it."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """Return a literal of text."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


_PLAIN = "__x"


def plain(name: str) -> str:
    """Return a name that PySpark's `mapInArrow` passes on unchanged: it parses names as SQL and cannot quote them."""
    return _PLAIN + name.encode().hex() if "." in name or "`" in name else name


def as_given(name: str) -> str:
    """Return the name of which `plain` made this one."""
    return bytes.fromhex(name.removeprefix(_PLAIN)).decode() if name.startswith(_PLAIN) else name
