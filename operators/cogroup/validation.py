"""Validation of an aggregate over several inputs: checks options and turns them into the fields of its definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.deliver import policy_of
from windrow.core.emit import Emit
from windrow.core.errors import BadAggregate, BadWatermark, BadWindow, ConfigurationError, ReservedColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.policy import Forever, Retention, forever
from windrow.core.positions import Ids
from windrow.core.time import Duration
from windrow.core.windows import Inherited, Session, WindowSpec
from windrow.operators.aggregate.validation import normalise
from windrow.operators.cogroup.names import TIME, is_ours


def normalise_cogroup(
    *,
    inputs: Sequence[Input],
    by: str | Sequence[str],
    window: WindowSpec,
    agg: Mapping[str, Aggregation],
    retention: Duration | Retention | Forever | None,
    allowed_lateness: Duration | None,
    emit: Emit,
    name: str,
    null_keys: str,
    scale: str | None,
    integer_overflow: str,
    ids: Ids | str | Sequence[str] | None,
    dead_letter_limit: int,
    dead_letter_retention: Duration | Forever | None,
) -> dict[str, Any]:
    """Check the user's options and turn them into the fields of `CoGroupDefinition`."""
    given = _inputs(inputs)
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
    fields = normalise(
        by=by,
        event_time=TIME,
        window=window,
        agg=agg,
        retention=retention,
        watermark="0 seconds",
        allowed_lateness=allowed_lateness,
        emit=emit,
        name=name,
        null_keys=null_keys,
        time_zone=None,
        event_time_unit=None,
        max_ahead=forever,
        scale=scale,
        integer_overflow=integer_overflow,
        positions=None,
        ids=ids,
        dead_letter_limit=dead_letter_limit,
        dead_letter_retention=dead_letter_retention,
        inputs=[i.name for i in given],
    )
    for one in given:
        policy_of(one.deliver, fields["ids"])
    _check_keys(fields["by"], given)
    _check_aggregations(agg, given)
    return {**fields, "given_inputs": given}


def _inputs(inputs: Any) -> tuple[Input, ...]:
    """Return the inputs, checked: names are distinct, and an aggregate can take them."""
    remedy = "give them as inputs=(wr.Input('orders', event_time='t'), wr.Input('paid', event_time='t'))"
    if isinstance(inputs, Input) or not isinstance(inputs, Sequence) or not inputs:
        raise ConfigurationError(f"inputs={inputs!r} are no inputs: {remedy}")
    for given in inputs:
        if not isinstance(given, Input):
            raise ConfigurationError(f"{given!r} of inputs= is no input: {remedy}")
        given.refuse_rules("wr.CoGroup")
        if given.window is not None:
            raise BadWindow(
                f"window={given.window!r} of input {given.name!r} is for joins: all inputs share the window of the operator, "
                "window=..."
            )
        if given.static:
            raise ConfigurationError(
                f"input {given.name!r} is static=True: a table has no part in windows; leave it out, or join it before"
            )
    names = [i.name for i in inputs]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"the inputs are named {names}: give each a name of its own")
    if len({i.watermark.kind == "explicit" for i in inputs}) > 1:
        shown = ", ".join(f"{i.name!r}: {i.watermark!r}" for i in inputs)
        raise BadWatermark(
            f"the inputs have the watermarks {shown}: an explicit watermark is the whole operator's, use it on all of them"
        )
    return tuple(inputs)


def _check_keys(by: Sequence[str], inputs: Sequence[Input]) -> None:
    """Reject keys that do not correspond to each other, or that have reserved names."""
    for given in inputs:
        if given.by is not None and len(given.by) != len(by):
            raise ConfigurationError(
                f"by={given.by!r} of input {given.name!r} and by={tuple(by)!r}: name as many columns, in the same order"
            )
        if given.by is not None and len(set(given.by)) != len(given.by):
            raise ConfigurationError(
                f"by={given.by!r} of input {given.name!r} names a column twice: name each once"
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
    for given in inputs:
        if all(a.part(given.name) is None for a in agg.values()):
            raise BadAggregate(
                f"no aggregation is of input {given.name!r}: add wr.count().of({given.name!r}), or leave the input out"
            )
