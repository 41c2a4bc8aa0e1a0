"""The definition of an aggregate over several inputs: a frozen value, checked when built, whose `repr` builds it again.

Seed 001 "Merging two streams": an operator with a watermark of its own, the earlier one of those of its inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windrow.core import check
from windrow.core.aggregation import Aggregation
from windrow.core.deliver import policy_of
from windrow.core.emit import Emit
from windrow.core.errors import BadAggregate, BadWatermark, BadWindow, ConfigurationError, ReservedColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.policy import Forever, Retention, bounded, forever
from windrow.core.positions import Ids
from windrow.core.time import START_OF_TIME_US, Duration
from windrow.core.windows import Inherited, Session, WindowSpec
from windrow.operators.aggregate.definition import (
    AggregateDefinition,
    NullKeys,
    needs_messages,
)
from windrow.operators.aggregate.validation import normalise
from windrow.operators.operator import Logic, Taker
from windrow.operators.several_inputs import NamedInputs, normalise_inputs

# -- validation -------------------------------------------------------------------------------------------------------


def normalise_cogroup(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the user's options and turn them into the fields of `CoGroupDefinition`."""
    inputs, by, window = _inputs(options["inputs"]), options["by"], options["window"]
    if isinstance(window, Inherited):
        raise BadWindow(
            f"{window!r} of an aggregate over several inputs: rows of each have windows of their own; name one"
        )
    if isinstance(window, Session) and isinstance(window.gap, Expr):
        raise BadWindow(
            f"{window!r} of an aggregate over several inputs, whose columns are their own: use one gap, as in "
            "wr.session('30 minutes')"
        )
    if isinstance(by, Mapping):
        raise ConfigurationError(
            f"by={by!r}: name the keys; where an input calls its columns otherwise, wr.Input(..., by=...) says so"
        )
    names = [i.name for i in inputs]
    of_time = {"event_time": TIME, "watermark": "0 seconds", "max_ahead": forever}
    fields = normalise(**{**options, **of_time, "inputs": names})
    for one in inputs:
        policy_of(one.deliver, fields["ids"])
    _check_keys(fields["by"], inputs)
    _check_aggregations(options["agg"], inputs)
    return {**fields, "user_inputs": inputs}


def _inputs(inputs: Any) -> tuple[Input, ...]:
    """Return the inputs, checked: an aggregate can take them."""
    checked = normalise_inputs(
        inputs, "(wr.Input('orders', event_time='t'), wr.Input('paid', event_time='t'))"
    )
    for input in checked:
        input.refuse_rules("wr.CoGroup")
        if input.window is not None:
            raise BadWindow(
                f"window={input.window!r} of input {input.name!r} is for joins: all inputs share the window of the operator, "
                "window=..."
            )
        if input.static:
            raise ConfigurationError(
                f"input {input.name!r} is static=True: a table has no part in windows; leave it out, or join it before"
            )
    return checked


def _check_keys(by: Sequence[str], inputs: Sequence[Input]) -> None:
    """Reject keys that do not correspond to each other, or that have reserved names."""
    for input in inputs:
        if input.by is not None and len(input.by) != len(by):
            raise ConfigurationError(
                f"by={input.by!r} of input {input.name!r} and by={tuple(by)!r}: name as many columns, in the same order"
            )
        if input.by is not None and len(set(input.by)) != len(input.by):
            raise ConfigurationError(
                f"by={input.by!r} of input {input.name!r} names a column twice: name each once"
            )
    for key in by:
        if is_ours(key, [i.name for i in inputs]):
            raise ReservedColumn(f"key {key!r} is called as a column of ours: call it otherwise")


def _check_aggregations(agg: Mapping[str, Aggregation], inputs: Sequence[Input]) -> None:
    """Reject inputs that nothing aggregates, and functions that would see rows of several inputs as those of one."""
    of_all = [alias for alias, a in agg.items() if a.of_all]
    for alias in of_all:
        if agg[alias].kind == "table_function":
            raise BadAggregate(
                f"agg[{alias!r}] = {agg[alias]!r} takes messages with all of their columns, which differ by input: say whose, "
                f"{agg[alias]!r}.of({inputs[0].name!r})"
            )
    for input in inputs:
        if all(a.part(input.name) is None for a in agg.values()):
            raise BadAggregate(
                f"no aggregation is of input {input.name!r}: add wr.count().of({input.name!r}), or leave the input out"
            )


# -- column names of united rows of several inputs --------------------------------------------------------------------
# Keys keep the names that the operator gives them. A column that an aggregation of one input takes is
# `<column> of <input>`, one that an aggregation of all takes `<column> of every input`; names of inputs have no spaces.
# `of <input>` is true for its rows.

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


# -- definition -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False, init=False)
class CoGroupDefinition(NamedInputs, AggregateDefinition):
    """One windowed aggregate over any number of inputs: each aggregation is of the messages of one of them, or of all.

    A frozen value: compare it, print it, pickle it. It runs as `wr.Aggregate` does; messages name their input. Its watermark is
    the earliest of those of its inputs, and decides which messages of any input are late.

    inputs: wr.Input(...) for each: its name, event time, watermark, filter, and its keys, `by=`, if they have other names
    by: key columns (one name or several), as results call them; () for no key
    window: wr.tumbling, wr.hopping, wr.calendar, wr.session, wr.tuples or wr.global_window: sessions and windows of messages
        are made of the messages of all inputs
    agg: name -> aggregation: wr.sum("amount").of("orders") is of that input; without `of` it is of every input, and all of them
        have the columns that it names; a class of yours with add_<input> methods is of these inputs, Owed(orders="amount", ...)
    ids: the columns, in every input, by which a message is known among those of its input and key: wr.ids("order_id")
    retention, allowed_lateness, emit, name, null_keys, scale, integer_overflow, dead_letter_limit, dead_letter_retention: as of
        `wr.Aggregate`

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import windrow as wr
    >>> accounts = wr.CoGroup(
    ...     inputs=(wr.Input("orders", event_time="t"), wr.Input("paid", event_time="at", by="order")),
    ...     by="id", window=wr.tumbling("1 day"), retention="7 days",
    ...     agg={"n": wr.count(), "spent": wr.sum("amount").of("orders"), "paid": wr.sum("sum").of("paid")},
    ... )
    >>> [given.name for given in accounts.inputs]
    ['orders', 'paid']
    """

    #: The inputs, each with the options that an aggregate has for its one input.
    user_inputs: tuple[Input, ...] = ()

    @check.suggests
    def __init__(
        self,
        *,
        inputs: Sequence[Input],
        by: str | Sequence[str] = (),
        window: WindowSpec,
        agg: Mapping[str, Aggregation],
        retention: Duration | Retention | Forever | None = None,
        allowed_lateness: Duration | None = None,
        emit: Emit | None = None,
        name: str = "cogroup",
        null_keys: NullKeys = "group",
        scale: str | None = None,
        integer_overflow: str = "dead_letter",
        ids: Ids | str | Sequence[str] | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
    ) -> None:
        self._set(**normalise_cogroup(check.arguments(locals())))

    def input_of(self, source: str) -> Input:
        """Return the input of messages whose positions have that source: it begins with its name."""
        return self.input(source.partition(":")[0])

    def columns_of(self, input: Input) -> tuple[str, ...]:
        ids = () if self.ids is None else self.ids.columns
        return tuple(dict.fromkeys((input.event_time, *self.keys(input), *ids)))

    def describe(self) -> dict[str, Any]:
        return {
            "operator": "cogroup",
            "ids": None if self.ids is None else list(self.ids.columns),
            "by": list(self.by),
            "inputs": [
                {
                    "name": i.name,
                    "event_time": i.event_time,
                    "by": list(self.keys(i)),
                    "time_zone": i.time_zone,
                    "event_time_unit": i.event_time_unit,
                    "where": None if i.where is None else repr(i.where),
                }
                for i in sorted(self.user_inputs, key=lambda one: one.name)
            ],
            "window": repr(self.window),
            "agg": {name: a.describe() for name, a in self.agg.items()},
            "design": "full-state" if needs_messages(self) else "incremental",
            "mode": "discarding" if self.emit.mode == "discarding" else "accumulating",
            "null_keys": self.null_keys,
            "scale": self.scale,
        }

    def unsettled(self) -> str | None:
        return f"{self.name!r} takes the inputs {[i.name for i in self.user_inputs]}: only what has one input can be checked"

    @property
    def in_runs(self) -> bool:
        return False

    def taker(self, before: str) -> Taker:
        return taker_of(self, before)

    def kept_since_us(self, alias: str, since: Mapping[str, int]) -> int:
        return kept_since_us(self, alias, since)

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.cogroup.logic import CoGroupOperator
        from windrow.operators.delivery_stage import delivering

        return delivering(CoGroupOperator(self))

    def __repr__(self) -> str:
        return self._call("CoGroup", inputs=self.user_inputs, by=self.by)


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
    for input in definition.inputs:
        part = aggregation.part(input.name)
        if part is not None:
            yield input.name, part


def _places(definition: CoGroupDefinition, aggregation: Aggregation) -> Iterator[tuple[str | None, str]]:
    """Yield (input, column) of the plain columns that it names."""
    for input, part in _parts(definition, aggregation):
        for column in part.columns:
            yield input, column


def taker_of(definition: CoGroupDefinition, before: str) -> Taker:
    """Return the taker of the rows of the operator `before`."""
    names = [i.name for i in definition.inputs]
    if before not in names:
        raise ConfigurationError(
            f"{definition.name!r}, which follows {before!r}, takes the inputs {names}, none of which is {before!r}: name the "
            f"input that takes its rows {before!r}, e.g. wr.Input({before!r}, event_time=...)"
        )
    input = definition.input(before)
    explicit = input.watermark.kind == "explicit" and all(
        i.watermark.kind == "explicit" for i in definition.inputs
    )
    if input.watermark != bounded() and not explicit:
        raise BadWatermark(
            f"watermark={input.watermark!r} of input {before!r} of {definition.name!r}, which follows {before!r}: its "
            f"watermark is that of {before!r}, leave it out"
        )
    if input.positions is not None:
        raise ConfigurationError(
            f"positions={input.positions!r} of input {before!r} of {definition.name!r}, which follows {before!r}: its messages "
            f"are the rows of {before!r}, each emitted once and in order; leave it out"
        )
    if definition.ids is not None:
        raise ConfigurationError(
            f"ids={definition.ids!r} of {definition.name!r}, which follows {before!r}: the rows of {before!r} are emitted once "
            "each, and have no ids; leave it out"
        )
    parts = [part for a in definition.agg.values() if (part := a.part(before)) is not None]
    wanted = dict.fromkeys([*definition.keys(input), *(c for part in parts for c in part.columns)])
    why = "it takes the rows of several inputs, and takes none of them back"
    return Taker(
        definition.name, input, tuple(wanted), why, uses=tuple(e for p in parts for e in p.expressions)
    )
