"""The input's schema as an operator knows it: columns may be added, numbers may widen."""

from __future__ import annotations

import pyarrow as pa

from windrow.core.errors import TypeClash


def learn(known: pa.Schema | None, seen: pa.Schema) -> pa.Schema:
    """The schema after a slice with `seen` columns; system columns (two underscores) are no part of it."""
    user = pa.schema([f.with_nullable(True).remove_metadata() for f in seen if not f.name.startswith("__")])
    if known is None or known.equals(user):
        return user
    try:
        return pa.unify_schemas([known, user], promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise TypeClash(
            f"the input's columns changed from {show(known)} to {show(user)}, which do not go together: {error}; "
            "cast the column to its former type before it reaches the operator"
        ) from None


def show(schema: pa.Schema) -> str:
    return "{" + ", ".join(f"{f.name}: {f.type}" for f in schema) + "}"
