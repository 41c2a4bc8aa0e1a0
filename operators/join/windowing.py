"""The sessions of a join, as windows of an aggregate over the messages that make them, which tells of any change."""

from __future__ import annotations

from windrow.core.aggregations import count
from windrow.core.emit import Emit, every_batch
from windrow.core.policy import explicit, forever
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.given import normalise
from windrow.operators.join.definition import JoinDefinition

#: Its columns: the keys of a message as one, and its event time; how many messages a session has.
KEY, TIME, COUNT = "key", "time", "n"


def windowing(join: JoinDefinition) -> AggregateDefinition:
    """What tells each session that a step changes, and what that takes the place of; and each that closes."""
    assert join.sessions is not None
    made = normalise(
        by=KEY,
        event_time=TIME,
        window=join.sessions,
        agg={COUNT: count()},
        retention=forever,
        watermark=explicit(),
        allowed_lateness=None,
        emit=Emit(early=every_batch, late=every_batch, on_time=False, closing_pane=join.how != "inner"),
        name=join.name,
        null_keys="group",
        time_zone=None,
        event_time_unit=None,
        max_ahead=forever,
        scale=None,
        integer_overflow="dead_letter",
        positions=None,
        ids=None,
        dead_letter_limit=0,
        dead_letter_retention=None,
    )
    made["name"] = f"{join.name}.sessions"
    made["retention"] = join.retention
    made["allowed_lateness_us"] = join.allowed_lateness_us
    definition = object.__new__(AggregateDefinition)
    for field, value in made.items():
        object.__setattr__(definition, field, value)
    return definition
