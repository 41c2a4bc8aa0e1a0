"""Evolution of aggregates in a graph with state: aggregations are added or removed, for each operator by itself.

An operator downstream of another one has seen times as far as the rows of that one, which may be beyond all messages: an early
pane has the last moment of its window.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windrow.operators.evolution import Before, Growth

if TYPE_CHECKING:
    from windrow.operators.graph.definition import ChainDefinition

#: Fields that the graph sets in the description of an operator.
_OF_GRAPH = ("name", "takes_back", "allowed_lateness_us")


def growth(chain: ChainDefinition, before: Before) -> Growth | str:
    """Return the aggregations added to and removed from operators; else a text with the other changes."""
    own = json.loads(json.dumps(chain.describe()))["parts"]
    old = before.described.get("parts")
    if old is None or [p["name"] for p in old] != [p["name"] for p in own]:
        return ""
    grown, wrong = dict[str, Growth](), list[str]()
    reached_us = list[int]()
    for i, part in enumerate(chain.parts):
        until_us = max([before.reached_us, *(reached_us[feed.part] for feed in chain.feeds[i])])
        reached_us.append(part.emitted_until_us(until_us))
        ours, theirs = _of_part(own[i]), _of_part(old[i])
        former = before.growth.parts.get(part.name, Growth())
        if any(own[i].get(name) != old[i].get(name) for name in _OF_GRAPH):
            wrong.append(f"\n{part.name!r} takes messages in another way: {_differs(old[i], own[i])}")
            continue
        found: Growth | str = former
        if ours != theirs or part.recompute:
            # An operator that accepts retractions keeps no messages from which an aggregation could be computed.
            own_part = part.taking_back() if own[i].get("takes_back") else part
            found = own_part.growth(Before(theirs, former, until_us))
        if isinstance(found, Growth):
            grown[part.name] = found
        else:
            wrong.append(f"\n{part.name!r}:{found}" if found else f"\n{part.name!r} was another one")
    return "".join(wrong) if wrong else Growth(parts={name: g for name, g in grown.items() if g})


def _of_part(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's own part of its description."""
    return {name: value for name, value in described.items() if name not in _OF_GRAPH}


def _differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    said = [f"{n} was {old.get(n)!r}, and is {new.get(n)!r}" for n in _OF_GRAPH if old.get(n) != new.get(n)]
    return ", ".join(said) + ": not on this state"
