"""Scenario of `simulate` and `interrupt`: a job and its messages."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa

from windrow.core import check
from windrow.core.errors import ConfigurationError, UnknownColumn
from windrow.core.inputs import Input
from windrow.operators.operator import Definition
from windrow.operators.oracle.times import event_time_us

#: Placeholder for the name of an input that has none.
ONLY = "input"
#: A seed plays at most so many messages: a section of all.
MOST_MESSAGES = 64

Rows: TypeAlias = "Iterable[Mapping[str, Any]] | pa.Table"
Messages: TypeAlias = "Rows | Mapping[str, Rows]"


@dataclass(frozen=True)
class Scenario:
    """A scenario: operators, and the messages that they are fed.

    operators: a definition (`wr.Aggregate`, `wr.Join`, `wr.chain(...)`, ...), or several that are one job
    messages: dicts, or a pyarrow Table, in the order in which they come; {input: these} where inputs have names; or a function
        of a `random.Random` that draws them, so that each seed has others

    Of more than 64 messages each seed plays a stretch. Types are those of the table, or of the dicts together.

    >>> import windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
    >>> Scenario(counts, [{"t": "2013-07-01 05:10Z"}, {"t": "2013-07-01 06:20Z"}]).feed(Random(7)).definitions[0].name
    'aggregate'
    """

    operators: Definition | Sequence[Definition]
    messages: Messages | Callable[[Random], Messages]

    @property
    def definitions(self) -> tuple[Definition, ...]:
        operators = (self.operators,) if isinstance(self.operators, Definition) else tuple(self.operators)
        for one in operators:
            check.of_type(
                one, Definition, "operators", "give a definition, such as wr.Aggregate(...), or a list"
            )
        if not operators:
            raise ConfigurationError("operators=[] has no operator: give a definition, or several")
        return operators

    def feed(self, random: Random) -> Feed:
        """Return the messages of one seed's schedule."""
        definitions = self.definitions
        messages = self.messages(random) if callable(self.messages) else self.messages
        inputs = inputs_of(definitions)
        if list(inputs) == [ONLY]:
            tables = {ONLY: _table(messages)}
        else:
            if not isinstance(messages, Mapping) or set(messages) != set(inputs):
                shown = sorted(messages) if isinstance(messages, Mapping) else type(messages).__name__
                raise ConfigurationError(
                    f"messages are {shown}, and the job has the inputs {sorted(inputs)}: give a dict by the names of these"
                )
            tables = {name: _table(messages[name]) for name in inputs}
        _check_columns(definitions, tables)
        tables = {name: _with_times(definitions, name, table) for name, table in tables.items()}
        arrivals = _merged({name: table.to_pylist() for name, table in tables.items()})
        if len(arrivals) > MOST_MESSAGES:
            first = random.randrange(len(arrivals) - MOST_MESSAGES + 1)
            arrivals = arrivals[first : first + MOST_MESSAGES]
        times = [at for name, row in arrivals if (at := _time(inputs[name], row)) is not None] or [0]
        unit_us = max((max(times) - min(times)) // len(arrivals), 1) if arrivals else 1
        schemas = {name: table.schema for name, table in tables.items()}
        return Feed(definitions, schemas, arrivals, max(times), unit_us)


@dataclass(frozen=True)
class Feed:
    """The input of one seed. schemas: the columns of each input; arrivals: (input, row), in the order in which they come.

    start_us: the initial time; unit_us: about how much passes from one message to the next. wrong: values that make a message
    one that cannot be counted. replays: messages that are lost are read from the source again.
    """

    definitions: tuple[Definition, ...]
    schemas: Mapping[str, pa.Schema]
    arrivals: Sequence[tuple[str, dict[str, Any]]]
    start_us: int
    unit_us: int
    wrong: Sequence[Mapping[str, Any]] = ()
    replays: bool = False
    inputs: dict[str, Input] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", inputs_of(self.definitions))

    @property
    def by_input(self) -> bool:
        """True if messages name their input."""
        return list(self.inputs) != [ONLY]

    def source(self, name: str) -> str:
        """Return the topic in positions of an input."""
        return self.inputs[name].source_prefix + name

    @property
    def parts(self) -> dict[str, Definition]:
        """All operators of the job, by name: those inside graphs too."""
        return {part.name: part for definition in self.definitions for part in definition.parts}


#: Playable jobs: a scenario, or a function that draws one.
Played: TypeAlias = "Scenario | Callable[[Random], Scenario | Feed]"


def inputs_of(definitions: Sequence[Definition]) -> dict[str, Input]:
    """Return the inputs of a job by name; the one that has none is `ONLY`."""
    if not any(d.by_input for d in definitions):
        return {ONLY: definitions[0].inputs[0]}
    unnamed = [d.name for d in definitions if not d.by_input]
    if unnamed:
        raise ConfigurationError(
            f"{unnamed[0]!r} does not say which of the inputs of the job it takes: give it input='name'"
        )
    return {input.name: input for definition in definitions for input in definition.inputs}


def feed_of(played: Played, random: Random) -> Feed:
    """Return the input of one seed."""
    found: Any = played if isinstance(played, Scenario) else played(random)
    return found if isinstance(found, Feed) else check_scenario(found).feed(random)


def check_scenario(value: Any) -> Scenario:
    """Return the value if it is a scenario; raise if not."""
    scenario: Scenario = check.of_type(
        value,
        Scenario,
        "the job",
        "give a windrow.testing.Scenario(operators, messages), or a function that draws one",
    )
    return scenario


def scenario_of(operators: Any, messages: Any = None) -> Played:
    """Return the user's job to play: a scenario or a function, or operators and messages."""
    if messages is None:
        return operators if callable(operators) else check_scenario(operators)
    return Scenario(operators, messages)


def load(name: str) -> Played:
    """Import the scenario, or the function, that `module:name` names."""
    return scenario_of(load_name(name))


def load_name(name: str) -> Any:
    """Import the object that `module:name` names."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigurationError(f"{name!r} names nothing: use module:name")
    return getattr(importlib.import_module(module), attribute)


def _table(value: Any) -> pa.Table:
    if isinstance(value, pa.Table):
        return value
    rows = [dict(row) for row in value]
    try:
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigurationError(
            f"the messages have no types in common: {error}. Give a pyarrow Table, or dicts whose values have one type a column"
        ) from None


def _check_columns(definitions: Sequence[Definition], tables: Mapping[str, pa.Table]) -> None:
    for definition in definitions:
        for input in definition.inputs:
            table = tables[input.name if definition.by_input else ONLY]
            for column in definition.columns_of(input):
                if column not in table.column_names:
                    raise UnknownColumn(
                        f"column {column!r} of {definition.name!r} is not in the messages, which have {table.column_names}"
                    )


def _with_times(definitions: Sequence[Definition], name: str, table: pa.Table) -> pa.Table:
    """Convert event times that are text to times, as operators keep them; other values are null."""
    for definition in definitions:
        for input in definition.inputs:
            if name not in (input.name, ONLY) or not pa.types.is_string(
                table.schema.field(input.event_time).type
            ):
                continue
            times = [_time(input, row) for row in table.to_pylist()]
            where = table.column_names.index(input.event_time)
            table = table.set_column(where, input.event_time, pa.array(times, pa.timestamp("us", "UTC")))
    return table


def _merged(rows: Mapping[str, list[dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the messages of all inputs as one sequence: they begin and end together."""
    placed = [
        ((i + 1) / (len(input_rows) + 1), n, name, row)
        for n, (name, input_rows) in enumerate(rows.items())
        for i, row in enumerate(input_rows)
    ]
    return [(name, row) for _, _, name, row in sorted(placed, key=lambda one: one[:2])]


def _time(input: Input, row: Mapping[str, Any]) -> int | None:
    return event_time_us(row.get(input.event_time), input.time_zone, 0, None, input.event_time_unit)
