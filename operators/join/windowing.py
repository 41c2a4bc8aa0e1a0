"""The sessions of a join as an aggregate over the messages that make them, which reports every change."""

from __future__ import annotations

from dataclasses import replace

from windrow.core.aggregations import count
from windrow.core.emit import Emit, every_batch
from windrow.core.expressions import Expr, col
from windrow.core.policy import explicit, forever
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.validation import normalise
from windrow.operators.join.definition import JoinDefinition

#: Its columns: the keys of a message as one, its event time, and its gap in microseconds where it has its own; how many
#: messages a session has.
KEY, TIME, GAP, COUNT = "key", "time", "gap", "n"


def windowing(join: JoinDefinition) -> AggregateDefinition:
    """Return the aggregate that emits each changed session, retracts the one it replaces, and emits each closed session."""
    assert join.sessions is not None
    fields = normalise(
        by=KEY,
        event_time=TIME,
        window=join.sessions if join.own_gap is None else replace(join.sessions, gap=Expr(col(GAP))),
        agg={COUNT: count()},
        retention=forever,
        watermark=explicit(),
        emit=Emit(early=every_batch, late=every_batch, on_time=False, closing_pane=join.how != "inner"),
        name=join.name,
        max_ahead=forever,
        dead_letter_limit=0,
    )
    own = {"name": f"{join.name}.sessions", "allowed_lateness_us": join.allowed_lateness_us}
    definition = object.__new__(AggregateDefinition)
    definition._set(**fields | own | {"retention": join.retention})
    return definition
