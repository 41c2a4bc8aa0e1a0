"""Groups of rules over the same events: their pairs are joined once for all of them, and each rule is a mask over these.

A group joins the messages that any of its rules takes, in a range that covers those of all. What is computed of a pair alone,
its order, times, and half of its ids, is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.relations import INFINITE_US
from windrow.operators.rules.chains import Candidates, Chain, Hop, Joined, OfCandidates, Tuples, width
from windrow.operators.rules.framed import evaluation_of
from windrow.operators.rules.step_messages import Planned

#: Rules of more events are joined alone.
_EVENTS = 2


@dataclass(frozen=True)
class Group:
    """Rules that bind messages of the same inputs under the same names, with the same equal columns."""

    rules: tuple[Planned, ...]

    @property
    def events(self) -> dict[str, str]:
        """The input of each binding of an event."""
        return {binding: pattern.input for binding, pattern in self.rules[0].rule.events.items()}

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """The joins whose tuples are those of all rules, and more where there are several."""
        if len(self.rules) == 1:
            return self.rules[0].chains
        return tuple(map(_covering, zip(*(planned.chains for planned in self.rules), strict=True)))

    def takes(self, candidates: Mapping[str, Candidates]) -> dict[str, BoolArray]:
        """True for the candidates of each binding that any rule takes."""
        return {
            binding: np.logical_or.reduce([one.fits[planned.name, binding] for planned in self.rules])
            for binding, one in candidates.items()
        }

    def of_rules(self, joined: Joined, tuples: Tuples) -> Iterator[tuple[Planned, IntArray]]:
        """Give the rows of the tuples of each rule."""
        n = len(next(iter(tuples.values())))
        if len(self.rules) == 1:
            yield self.rules[0], np.arange(n, dtype=np.int64)
            return
        moments = OfCandidates(joined.inputs, tuples)
        for planned in self.rules:
            kept = np.ones(n, dtype=bool)
            for binding, rows in tuples.items():
                fits = joined.inputs[binding].fits[planned.name, binding]
                if not fits.all():
                    kept &= fits[rows]
            kept &= joined.fit_alone(planned.chains[0], moments, n)
            for hop in planned.chains[0].hops:
                kept &= joined.fits(hop, tuples, moments, n)
            rows = np.flatnonzero(kept)
            if len(rows):
                yield planned, rows


def groups_of(planned: Sequence[Planned]) -> tuple[Group, ...]:
    """Divide rules into groups, in the order of their first rules.

    A rule joins a group unless the range that covers all would be wider than those of its rules together.
    """
    groups: dict[object, list[list[Planned]]] = {}
    for one in planned:
        alike = groups.setdefault(_likeness(one), [])
        rules = next((rules for rules in alike if _is_near(rules, one)), None)
        if rules is None:
            alike.append([one])
        else:
            rules.append(one)
    found = [Group(tuple(rules)) for alike in groups.values() for rules in alike]
    return tuple(sorted(found, key=lambda group: group.rules[0].place))


def _likeness(planned: Planned) -> object:
    """Return the value that is equal for rules of one group."""
    events = planned.rule.events
    if len(events) > _EVENTS or evaluation_of(planned.rule) is not None:
        return planned.name
    bindings = tuple((binding, pattern.input) for binding, pattern in events.items())
    return bindings, tuple(tuple(sorted(hop.on)) for chain in planned.chains for hop in chain.hops)


def _is_near(rules: Sequence[Planned], other: Planned) -> bool:
    """True if the range that covers a rule and the last ones of a group is no wider than theirs together."""
    hops = [chain.hops for chain in (rules[0].chains[0], rules[-1].chains[0], other.chains[0])]
    return all(
        width(_covering_hop(same_hops)) <= sum(map(width, same_hops)) for same_hops in zip(*hops, strict=True)
    )


def _covering(chains: Iterable[Chain]) -> Chain:
    """Give one chain whose ranges cover those of all, without their further conditions."""
    chains = tuple(chains)
    hops = zip(*(chain.hops for chain in chains), strict=True)
    return replace(chains[0], hops=tuple(_covering_hop(hop) for hop in hops), own=())


def _covering_hop(hops: Sequence[Hop]) -> Hop:
    ranges = [{point: (down, up) for point, down, up in hop.ranges} for hop in hops]
    common = [point for point in ranges[0] if all(point in others for others in ranges)]
    covering = [
        (point, min(one[point][0] for one in ranges), max(one[point][1] for one in ranges))
        for point in common
    ]
    bounded = tuple(r for r in covering if r[1] > -INFINITE_US or r[2] < INFINITE_US)
    return replace(hops[0], ranges=bounded, relations=(), links=(), others=())
