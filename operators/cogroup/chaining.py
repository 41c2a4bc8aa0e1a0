"""Chaining of an aggregate over several inputs: it takes the rows of an upstream operator on the input with its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.core.errors import BadWatermark, ConfigurationError
from windrow.core.policy import bounded
from windrow.operators.operator import Taker

if TYPE_CHECKING:
    from windrow.operators.cogroup.definition import CoGroupDefinition


def taker(definition: CoGroupDefinition, before: str) -> Taker:
    """Return the taker of the rows of the operator `before`."""
    names = [i.name for i in definition.inputs]
    if before not in names:
        raise ConfigurationError(
            f"{definition.name!r}, which follows {before!r}, takes the inputs {names}, none of which is {before!r}: name the "
            f"input that takes its rows {before!r}, e.g. wr.Input({before!r}, event_time=...)"
        )
    given = definition.input(before)
    explicit = given.watermark.kind == "explicit" and all(
        i.watermark.kind == "explicit" for i in definition.inputs
    )
    if given.watermark != bounded() and not explicit:
        raise BadWatermark(
            f"watermark={given.watermark!r} of input {before!r} of {definition.name!r}, which follows {before!r}: its "
            f"watermark is that of {before!r}, leave it out"
        )
    if given.positions is not None:
        raise ConfigurationError(
            f"positions={given.positions!r} of input {before!r} of {definition.name!r}, which follows {before!r}: its messages "
            f"are the rows of {before!r}, each emitted once and in order; leave it out"
        )
    if definition.ids is not None:
        raise ConfigurationError(
            f"ids={definition.ids!r} of {definition.name!r}, which follows {before!r}: the rows of {before!r} are emitted once "
            "each, and have no ids; leave it out"
        )
    mine = [part for a in definition.agg.values() if (part := a.part(before)) is not None]
    wanted = dict.fromkeys([*definition.keys(given), *(c for part in mine for c in part.columns)])
    why = "it takes the rows of several inputs, and takes none of them back"
    return Taker(
        definition.name, given, tuple(wanted), why, uses=tuple(e for p in mine for e in p.expressions)
    )
