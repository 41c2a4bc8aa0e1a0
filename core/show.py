"""Values as text: `repr` of a definition is the expression that builds it, and JSON of any value is JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, time
from typing import Any


def call(name: str, /, *args: Any, **kwargs: Any) -> str:
    """Return `wr.<name>(args, kwargs)`; keyword arguments that are None are left out."""
    parts = [a if isinstance(a, Raw) else repr(a) for a in args]
    parts += [f"{k}={v if isinstance(v, Raw) else repr(v)}" for k, v in kwargs.items() if v is not None]
    return f"wr.{name}({', '.join(str(p) for p in parts)})"


class Raw(str):
    """Text that a `call` shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def json_text(value: Any, default: Callable[[Any], str] = str) -> str:
    """Write a value as JSON. NaN and the infinities, which JSON has not, are text, as Spark writes them.

    default: gives the text of what is none of JSON's types
    """
    try:
        return json.dumps(value, default=default, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_with_numbers(value), default=default, ensure_ascii=False)


def rfc3339(value: Any) -> str:
    """Write a time as strict parsers take it, with a T; text of anything else."""
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def _with_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _with_numbers(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_numbers(v) for v in value]
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
