"""Validation of an aggregate over several inputs: checks options and turns them into the fields of its definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.deliver import policy_of
from windrow.core.errors import BadAggregate, BadWindow, ConfigurationError, ReservedColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.policy import forever
from windrow.core.windows import Inherited, Session
from windrow.operators.aggregate.validation import normalise
from windrow.operators.cogroup.names import TIME, is_ours
from windrow.operators.several_inputs import normalise_inputs


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
