"""Rules in a graph: which rows of another operator they take, and which operator may take theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.core.errors import BadTrigger, BadWatermark, ConfigurationError, UnknownColumn
from windrow.core.policy import bounded
from windrow.operators.operator import Taker

if TYPE_CHECKING:
    from windrow.operators.rules.definition import RulesDefinition

#: The columns of every row, between the keys and those of `then`; and the last one.
RULE, MATCH_ID, MATCH_TIME, MESSAGES = "rule", "match_id", "match_time", "messages"


def taker(rules: RulesDefinition, before: str) -> Taker:
    """Give how rules take the rows of the operator `before`: on the input that has its name."""
    names = [i.name for i in rules.inputs]
    if before not in names:
        raise ConfigurationError(
            f"{rules.name!r}, which follows {before!r}, has the inputs {names}, none of which is {before!r}: name the input "
            f"that takes its rows {before!r}, e.g. wr.Input({before!r}, event_time=...)"
        )
    given = rules.input(before)
    if given.static or given.stamped:
        raise ConfigurationError(
            f"{given!r} of {rules.name!r} takes the rows of {before!r}: use wr.Input with the event time of these rows"
        )
    others = [i.watermark for i in rules.inputs if i is not given and not i.static]
    follows = given.watermark.kind == "explicit" and given.watermark in others
    if (given.watermark != bounded() and not follows) or given.positions is not None:
        raise BadWatermark(
            f"{given!r} of {rules.name!r} takes the rows of {before!r}, whose watermark and positions they have: leave "
            "watermark= and positions= out"
        )
    return Taker(rules.name, given, rules.columns_of(given), "rules take no message back", rules.late_us)


def check_followed(rules: RulesDefinition, second: Taker) -> None:
    """Refuse an operator that reads another time than that of the match, or cannot take a row back."""
    if second.event_time != MATCH_TIME:
        raise UnknownColumn(
            f"event_time={second.event_time!r} of {second.name!r}: a row of {rules.name!r} has the time of its match; use "
            f"event_time={MATCH_TIME!r}"
        )
    if rules.retracts and second.keeps:
        raise BadTrigger(
            f"{rules.emit!r} of {rules.name!r}, before {second.name!r}: rows may be taken back; {second.keeps}; or leave emit= "
            "out"
        )
    if rules.told_columns is not None:
        second.check_columns(rules.told_columns, f"{rules.name!r}, whose rows")


def behind_us(rules: RulesDefinition) -> int:
    """Compute how far below the watermark the time of a match may lie when its row is emitted."""
    waits = [
        max([rule.delay_us or 0, *(p.wait_us for p in rule.when.values())]) for rule in rules.rules.values()
    ]
    return rules.late_us + max(waits)
