"""Evolution of an aggregate's state: added and removed aggregations, and a larger gap of sessions.

`docs/reference/semantics/aggregates.md`, `sessions.md`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windrow.core.time import START_OF_TIME_US, duration_us
from windrow.core.windows import Session
from windrow.operators.aggregations.required_columns import keeps_whole
from windrow.operators.evolution import ALONE, Before, Growth

if TYPE_CHECKING:
    from windrow.operators.aggregate.definition import AggregateDefinition

_GAP = re.compile(r"wr\.session\('([^']*)'")
_NONE_KEPT = "it needs every message of a window, and this state keeps none"


def growth(definition: AggregateDefinition, before: Before) -> Growth | str:
    """Return the added and removed aggregations since the state was written; else a text that lists other changes."""
    own = json.loads(json.dumps(definition.describe()))
    described = before.described
    old, new = described.get("agg", {}), own["agg"]
    former = {**before.growth.gone, **old}
    changed = [alias for alias, text in new.items() if former.get(alias, text) != text]
    fixed = definition.inherited
    gap_us = _smaller_gap(definition, described)
    if gap_us is not None and list(_others(own, described)) == ["window"] and old == new:
        return replace(before.growth, gap_us=before.growth.gap_us or gap_us)
    lacks = _lacks(definition, described, before)
    if changed or list(_others(own, described)) or lacks or (fixed and old != new):
        changes = _changes(definition, own, described, former, gap_us, lacks=lacks)
        return "".join(f"\n  - {change}" for change in changes)
    whole_us = before.reached_us + 1
    since = {alias: us for alias, us in before.growth.since_us.items() if alias in new}
    since |= dict.fromkeys((alias for alias in new if alias not in old), whole_us)
    gone = {alias: text for alias, text in former.items() if alias not in new}
    recomputed = {
        alias: us for alias, us in before.growth.recomputed_us.items() if alias in new and alias in old
    }
    keeps = not needs_messages(definition) and _kept(described, before) and not definition.takes_back
    of_kept = (definition.full_state or keeps) and not (fixed or definition.numbered)
    if definition.recompute and of_kept and definition.emit.mode != "discarding":
        kept = {alias: definition.kept_since_us(alias, since) for alias in since}
        better = {alias: us for alias, us in kept.items() if us < since[alias]}
        recomputed |= dict.fromkeys(better, whole_us)
        since = {alias: us for alias, us in {**since, **better}.items() if us > START_OF_TIME_US}
    return Growth(since, gone, recomputed, gap_us=before.growth.gap_us, keeps_messages=keeps)


def needs_messages(definition: AggregateDefinition) -> bool:
    """True if some aggregation needs every message of a window."""
    return any(a.full_state for a in definition.agg.values())


def _kept(described: Mapping[str, Any], before: Before) -> bool:
    """True if the state has the messages of its windows."""
    return before.growth.keeps_messages or described.get("design") == "full-state"


def _lacks(definition: AggregateDefinition, described: Mapping[str, Any], before: Before) -> bool:
    """True if aggregations need messages that the state lacks; one that receives retractions has its own values."""
    return needs_messages(definition) and not (definition.takes_back or _kept(described, before))


def kept_since_us(definition: AggregateDefinition, alias: str, since: Mapping[str, int]) -> int:
    """Return the event time from which kept messages have all columns that an aggregation takes."""
    aggregation = definition.agg[alias]
    stays = {a: since.get(a, START_OF_TIME_US) for a in definition.agg if a != alias}
    never_us = since[alias]
    whole_us = min([never_us, *(us for a, us in stays.items() if keeps_whole(definition.agg[a]))])
    if aggregation.kind == "table_function":
        return whole_us
    known = dict.fromkeys(definition.columns_of(definition.inputs[0]), START_OF_TIME_US)
    for other, us in stays.items():
        for column in definition.agg[other].columns:
            known[column] = min(us, known.get(column, never_us))
    uses = aggregation.expressions
    columns = [*aggregation.columns, *(c for c in known if any(use.mentions(c) for use in uses))]
    found_us = max([START_OF_TIME_US, *(known.get(c, never_us) for c in columns)])
    if any(use.lacks(known, unsure=True) for use in uses):
        found_us = never_us
    return min(found_us, whole_us)


def _changes(
    definition: AggregateDefinition,
    own: Mapping[str, Any],
    described: Mapping[str, Any],
    former: Mapping[str, str],
    gap_us: int | None,
    *,
    lacks: bool,
) -> Iterator[str]:
    """Yield each change, with a note that says if it alone could be opened."""
    changes = "not on such windows" if definition.inherited else ALONE
    old, new = described.get("agg", {}), own["agg"]
    for alias, text in new.items():
        if former.get(alias, text) != text:
            yield f"{alias!r} was {former[alias]}, and is {text}: give the new one a name that there was not"
        elif alias not in old:
            late = lacks and definition.agg[alias].full_state
            yield f"{alias!r} has come, {text}: {_NONE_KEPT if late else changes}"
    for alias, text in old.items():
        if alias not in new:
            yield f"{alias!r} has gone, {text}: {changes}"
    for key in _others(own, described):
        alone = ALONE if key == "window" and gap_us is not None else "not on this state"
        yield f"{key} was {described.get(key)!r}, and is {own.get(key)!r}: {alone}"


def _smaller_gap(definition: AggregateDefinition, described: Mapping[str, Any]) -> int | None:
    """Return the former gap of sessions, if only the gap differs, and it was smaller."""
    window, match = definition.window, _GAP.match(str(described.get("window")))
    whole = isinstance(window, Session) and definition.own_gap is None and window.max_length_us is None
    if not whole or match is None:
        return None
    assert isinstance(window, Session)
    before = replace(window, gap=duration_us(match[1]))
    return before.gap_us if repr(before) == described["window"] and before.gap_us < window.gap_us else None


def _others(own: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that differ, except the aggregations, and the design, which follows from them."""
    for key in sorted({*own, *described}):
        if key not in ("agg", "design") and own.get(key) != described.get(key):
            yield key
