"""`repr` of a definition is the expression that builds it."""

from __future__ import annotations

from typing import Any


def call(name: str, /, *args: Any, **kwargs: Any) -> str:
    """`wr.<name>(args, kwargs)`; keyword arguments that are None are left out."""
    parts = [a if isinstance(a, Raw) else repr(a) for a in args]
    parts += [f"{k}={v if isinstance(v, Raw) else repr(v)}" for k, v in kwargs.items() if v is not None]
    return f"wr.{name}({', '.join(str(p) for p in parts)})"


class Raw(str):
    """Text that stands as it is in a `call`."""

    def __repr__(self) -> str:
        return str(self)
