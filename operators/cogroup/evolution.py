"""Evolution of an aggregate over several inputs: added aggregations are computed from the kept messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from windrow.core.aggregation import Aggregation
from windrow.core.time import START_OF_TIME_US

if TYPE_CHECKING:
    from windrow.operators.cogroup.definition import CoGroupDefinition


def kept_since_us(definition: CoGroupDefinition, alias: str, since: Mapping[str, int]) -> int:
    """Return the event time from which kept messages have all columns that an aggregation takes.

    A message is kept with the columns that aggregations of its input, or of all, name; whole for a table function of its input.
    """
    own, never_us = definition.agg[alias], since[alias]
    whole_us, known = never_us, dict[tuple[str | None, str], int]()
    for other, aggregation in definition.agg.items():
        us = since.get(other, START_OF_TIME_US)
        if other == alias:
            continue
        if aggregation.kind == "table_function" and aggregation.input == own.input is not None:
            whole_us = min(whole_us, us)
        for place in _places(definition, aggregation):
            known[place] = min(us, known.get(place, never_us))
    if own.kind == "table_function":
        return whole_us
    found_us = max([START_OF_TIME_US, *(known.get(place, never_us) for place in _places(definition, own))])
    for input, part in _parts(definition, own):
        there = {name: us for (of, name), us in known.items() if of == input}
        for use in part.expressions:
            found_us = max([found_us, *(us for name, us in there.items() if use.mentions(name))])
            found_us = never_us if use.lacks(there, unsure=True) else found_us
    return min(found_us, whole_us)


def _parts(
    definition: CoGroupDefinition, aggregation: Aggregation
) -> Iterator[tuple[str | None, Aggregation]]:
    """Yield (input, part of an aggregation); the input is None for a part of all inputs."""
    if aggregation.of_all:
        yield None, aggregation
        return
    for given in definition.inputs:
        part = aggregation.part(given.name)
        if part is not None:
            yield given.name, part


def _places(definition: CoGroupDefinition, aggregation: Aggregation) -> Iterator[tuple[str | None, str]]:
    """Yield (input, column) of the plain columns that it names."""
    for input, part in _parts(definition, aggregation):
        for column in part.columns:
            yield input, column
