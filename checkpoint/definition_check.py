"""Check of definitions against a job's state: the one that wrote it opens it, and one that has grown from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from windrow.checkpoint.records import Epoch
from windrow.core.errors import DefinitionChanged
from windrow.core.zones import DATABASE
from windrow.operators.evolution import ALONE, DESCRIBED, EVOLUTION, Before, Growth
from windrow.operators.operator import Definition

#: The release of the time zone database, where a definition names a zone.
TIME_ZONES = "time_zones"


def noted(
    definitions: Mapping[str, Definition], growth: Mapping[str, Growth], sharding: Mapping[str, int]
) -> dict[str, Any]:
    """Return the metadata that an opening records of its operators."""
    return {
        "definitions": {n: repr(d) for n, d in definitions.items()},
        DESCRIBED: {n: json.dumps(d.describe()) for n, d in definitions.items()},
        **({EVOLUTION: {n: g.dump() for n, g in growth.items()}} if growth else {}),
        **({"sharding": dict(sharding)} if sharding else {}),
        **({TIME_ZONES: DATABASE} if name_a_zone(definitions.values()) else {}),
    }


def name_a_zone(definitions: Iterable[Definition]) -> bool:
    """True if a definition names a time zone, so that its windows or event times depend on the database."""
    return any("time_zone=" in repr(definition) for definition in definitions)


def grown_until(epoch: Epoch, name: str) -> Growth:
    """Return the growth of an operator up to that opening of the job."""
    return Growth.load(epoch.meta.get(EVOLUTION, {}).get(name))


def growth_of(definition: Definition, epoch: Epoch, reached_us: int, location: str) -> Growth:
    """Return the growth of an operator up to this opening. Raises `DefinitionChanged` where its state would be misread.

    epoch: the opening before. reached_us: how far event time had come.
    """
    name, growth = definition.name, grown_until(epoch, definition.name)
    fingerprint = epoch.fingerprints[name]
    same = definition.fingerprint == fingerprint
    if same and not definition.recompute:
        return growth
    text = json.dumps(definition.describe()) if same else epoch.meta[DESCRIBED][name]
    verdict = definition.growth(Before(json.loads(text), growth, reached_us))
    if isinstance(verdict, Growth):
        return verdict
    before = epoch.meta.get("definitions", {}).get(name, fingerprint)
    apart = verdict.count(ALONE) == verdict.count("\n  - ") > 0
    use = "Open it with one of these changes first, and then with the next; or use" if apart else "Use"
    raise DefinitionChanged(
        f"the state at {location} was written by\n  {before}\nand would be misread by\n  {definition!r}{verdict}\n"
        f"{use} the former definition, begin at another location, or clear the state with: windrow reset {location}"
    )
