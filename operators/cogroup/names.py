"""Column names of united rows of several inputs.

Keys keep the names that the operator gives them. A column that an aggregation of one input takes is `<column> of <input>`, one
that an aggregation of all takes `<column> of every input`; names of inputs have no spaces. `of <input>` is true for its rows.
"""

from __future__ import annotations

from collections.abc import Collection

#: The event time, in microseconds; and the name for all inputs.
TIME, EVERY = "of event time", "every input"
#: True for rows that pass the filter of their input, if it has one; the input of a row, if rows are known by ids.
PASSES, WHICH = "of what passes", "of which input"


def column(name: str, input: str | None) -> str:
    """Return the united name of a column for aggregations of that input; None: of all."""
    return f"{name}{ending(input)}"


def ending(input: str | None) -> str:
    """Return the suffix of these names."""
    return f" of {EVERY if input is None else input}"


def marker(input: str) -> str:
    """Return the column that is true for rows of the input."""
    return f"of {input}"


def is_ours(name: str, inputs: Collection[str]) -> bool:
    """True of a name that a column of ours may have."""
    return name in (TIME, PASSES, WHICH, *map(marker, inputs)) or name.endswith(
        (ending(None), *map(ending, inputs))
    )
