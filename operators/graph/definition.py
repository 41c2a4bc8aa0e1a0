"""The definition of a graph: operators of which one takes the rows of others as messages, in the same commit.

Seed 002 "window propagation"; semantics "Chains". A frozen value, checked when built, whose `repr` builds it again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from windrow.core.errors import BadTrigger, BadWatermark, ConfigurationError
from windrow.core.inputs import UNNAMED, Input
from windrow.core.policy import Watermark
from windrow.core.show import call
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.evolution import Before, Growth
from windrow.operators.operator import Definition, Logic, Taker
from windrow.operators.oracle.oracle import Oracle


@dataclass(frozen=True)
class Feed:
    """An edge from an operator to one downstream. part: the upstream operator; input: the input that takes its rows; again:
    rows may retract others.
    """

    part: int
    input: Input
    output_delay_us: int
    again: bool = False


@dataclass(frozen=True, repr=False)
class ChainDefinition(Definition):
    """Operators in an order in which each takes rows only of those before it. See `wr.chain`."""

    operators: tuple[Definition, ...]

    @property
    def parts(self) -> tuple[Definition, ...]:
        return self.operators

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise ConfigurationError(f"a chain of {len(self.parts)} operators: give two or more")
        check_names(self.parts, "a chain")
        object.__setattr__(self, "operators", _with_named_inputs(self))
        assert self.feeds  # checks every pair
        self.check_begins()
        _check_connected(self)
        check_inputs(self)

    @property
    def first(self) -> Definition:
        return self.parts[0]

    @property
    def last(self) -> Definition:
        return self.parts[-1]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the last operator, whose panes or rows are the results."""
        return self.parts[-1].name

    # -- edges ------------------------------------------------------------------------------------------------------

    @cached_property
    def feeds(self) -> tuple[tuple[Feed, ...], ...]:
        """Return the feeds of each operator: earlier operators that its inputs name, or the one before it if an
        operator has one input without a name. (See `_begins`.)
        """
        return tuple(feeds for feeds, _ in self._fed)

    @cached_property
    def taking(self) -> tuple[Definition, ...]:
        """The operators as they take the rows of others, which were judged already."""
        return tuple(part for _, part in self._fed)

    @cached_property
    def _fed(self) -> tuple[tuple[tuple[Feed, ...], Definition], ...]:
        found: list[tuple[tuple[Feed, ...], Definition]] = []
        for i, part in enumerate(self.parts):
            feeds = tuple(_feeds(self.parts, i, [before for _, before in found]))
            for feed in feeds:
                part = part.of_forwarded_rows(feed.input)
                if feed.again:
                    _check_takes_all(part, feed, self.parts[feed.part].name)
                    part = part.taking_back()
                    before, first = found[feed.part]
                    found[feed.part] = (before, first.with_retractions())
            found.append((feeds, part))
        return tuple(found)

    def inputs_of(self, part: int) -> tuple[Input, ...]:
        """Return the inputs of an operator that come from outside."""
        fed = {feed.input.name for feed in self.feeds[part]}
        return tuple(i for i in self.parts[part].inputs if i.name not in fed)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs from outside, in the order of the operators that take them."""
        found: dict[str, Input] = {}
        for part in range(len(self.parts)):
            for input in self.inputs_of(part):
                found.setdefault(input.name, input)
        return tuple(found.values())

    def taken_by(self, name: str) -> int:
        """Return the first operator that takes an input from outside."""
        return next(i for i in range(len(self.parts)) if name in [n.name for n in self.inputs_of(i)])

    def columns_of(self, input: Input) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for i, part in enumerate(self.parts):
            for own in self.inputs_of(i):
                if own.name == input.name:
                    found.update(dict.fromkeys(part.columns_of(own)))
        return tuple(found)

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        parts = []
        for i, part in enumerate(self.parts):
            own = {n.name: watermarks[n.name] for n in self.inputs_of(i) if n.name in watermarks}
            parts.append(part.with_watermarks(own) if own else part)
        return replace(self, operators=tuple(parts))

    @property
    def ids(self) -> Any:
        return None if self.by_input else self.first.ids

    @property
    def dead_letter_limit(self) -> int:  # type: ignore[override]
        return self.first.dead_letter_limit

    def growth(self, before: Before) -> Growth | str:
        return growth_of(self, before)

    def grown(self, growth: Growth) -> Self:
        parts = (p.grown(growth.parts.get(p.name, Growth())) for p in self.operators)
        return replace(self, operators=tuple(parts)) if growth or self.recompute else self

    @property
    def recompute(self) -> bool:  # type: ignore[override]
        return any(p.recompute for p in self.operators)

    def recomputing(self) -> Self:
        return replace(self, operators=tuple(p.recomputing() for p in self.operators))

    def filing(self) -> dict[str, Any]:
        return {f"{p.name}.{fact}": value for p in self.parts for fact, value in p.filing().items()}

    # -- how it is spread -------------------------------------------------------------------------------------------

    @property
    def by(self) -> tuple[str, ...]:  # type: ignore[override]
        """The key columns that all operators share, by their names in the first: rows that differ in them never match."""
        return tuple(self.first.by[places[0]] for places in self.shared_keys)

    @cached_property
    def shared_keys(self) -> tuple[dict[int, int], ...]:
        """Return, for each key that all operators share, its place among the keys of every operator."""
        return tuple(places for n in range(len(self.first.by)) if (places := self._followed(n)) is not None)

    def _followed(self, place: int) -> dict[int, int] | None:
        """Return the places of a key of the first operator; None where it does not reach them all, or not as one."""
        places = {0: place}
        pairs = [(feed, i) for i in range(len(self.parts)) for feed in self.feeds[i]]
        while True:
            before = dict(places)
            for feed, i in pairs:
                emitted, taken = self.parts[feed.part].by, self.parts[i].keys(feed.input)
                if feed.part in places:
                    name = emitted[places[feed.part]]
                    if name not in taken or places.setdefault(i, taken.index(name)) != taken.index(name):
                        return None
                elif i in places:
                    name = taken[places[i]]
                    if name not in emitted:
                        return None
                    places[feed.part] = emitted.index(name)
            if places == before:
                return places if len(places) == len(self.parts) else None

    def keys(self, input: Input) -> tuple[str, ...]:
        part = self.taken_by(input.name)
        keys = self.parts[part].keys(input)
        return tuple(keys[places[part]] for places in self.shared_keys)

    def one_shard(self) -> str | None:
        for part in self.parts:
            if (reason := part.one_shard()) is not None:
                return reason
            for name in sorted(part.copied):
                return f"every row of table {name!r} goes with all keys of {part.name!r}, which is in a chain"
        for input in self.inputs:
            takers = [i for i in range(len(self.parts)) if input.name in [n.name for n in self.inputs_of(i)]]
            if len({tuple(self.parts[i].keys(input)[p[i]] for p in self.shared_keys) for i in takers}) > 1:
                return f"its operators take {input.called} by different keys"
        if not self.by:
            keys = ", ".join(f"{p.name!r} by {list(p.by)}" for p in self.parts)
            return f"its operators share no key ({keys})"
        return None

    # -- times ------------------------------------------------------------------------------------------------------

    def watermark_at(self, part: int, watermark_us: int) -> int:
        """Return the watermark of an operator under that of the graph, `watermark_us`: it trails its upstream operators."""
        if watermark_us == END_OF_TIME_US:
            return watermark_us
        fed = [
            max(self.watermark_at(f.part, watermark_us) - f.output_delay_us, START_OF_TIME_US)
            for f in self.feeds[part]
        ]
        return min(fed, default=watermark_us)

    def watermark_of(self, name: str, watermark_us: int) -> int:
        return self.watermark_at([p.name for p in self.parts].index(name), watermark_us)

    # -- description ------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        parts = [{"name": p.name, **p.describe()} for p in self.parts]
        for i, feeds in enumerate(self.feeds):
            if any(feed.again for feed in feeds):
                # A message that came too late must not be retracted when a later one is allowed.
                late_us = self.parts[i].taker(self.parts[feeds[0].part].name).allowed_lateness_us
                parts[i] |= {"takes_back": True, "allowed_lateness_us": late_us}
        return {"operator": "chain", "parts": parts}

    def __repr__(self) -> str:
        return call("chain", *self.parts)

    @property
    def periods(self) -> frozenset[int] | None:
        each = [p.periods for p in self.parts]
        return None if None in each else frozenset(us for periods in each for us in periods or ())

    @property
    def tables(self) -> tuple[str, ...]:
        return self.last.tables

    def fed_by(self, name: str) -> Mapping[str, str]:
        part = [p.name for p in self.parts].index(name)
        return {feed.input.name: self.parts[feed.part].name for feed in self.feeds[part]}

    @property
    def known_by(self) -> tuple[str, ...] | None:
        return self.last.known_by

    @property
    def emission_mode(self) -> str:
        return self.taking[-1].emission_mode

    @property
    def output_columns(self) -> tuple[str, ...] | None:
        return self.last.output_columns

    def values(self, rows: pa.Table, job: str) -> Iterable[Any]:
        return self.last.values(rows, job)

    def check_begins(self) -> None:
        for part, feeds in zip(self.parts, self.feeds, strict=True):
            if not feeds:
                part.check_begins()

    def taker(self, before: str) -> Taker:
        raise ConfigurationError(f"{self.name!r} is a chain: give its operators to wr.chain one by one")

    def check_followed(self, taker: Taker) -> None:
        self.last.check_followed(taker)

    def output_delay_us(self, event_time: str) -> int:
        return self.last.output_delay_us(event_time)

    def times_of(self, event_time: str) -> Input | None:
        return self.taking[-1].times_of(event_time)

    def of_forwarded_rows(self, input: Input) -> Self:
        return self

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.graph.logic import ChainOperator

        return ChainOperator(self, outputs)

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.graph.oracle import ChainOracle

        return ChainOracle(self, schemas)


def check_names(parts: Sequence[Definition], what: str) -> None:
    """Reject operators of one name."""
    names = [p.name for p in parts]
    if len(set(names)) != len(names):
        raise ConfigurationError(
            f"the operators of {what} are named {names}: give each a name of its own with name=..."
        )


def _feeds(parts: tuple[Definition, ...], part: int, taking: Sequence[Definition]) -> Iterable[Feed]:
    """Yield the feeds of an operator; rejects rows that it could not count. taking: earlier operators, as they are fed."""
    definition = parts[part]
    earlier = {p.name: j for j, p in enumerate(parts[:part])}
    named = [i.name for i in definition.inputs if i.name in earlier]
    if not named and part and not _begins(parts, part):
        named = [parts[part - 1].name]
    for name in named:
        before = taking[earlier[name]]
        taker = definition.taker(name)
        before.check_followed(taker)
        input, times = taker.input, before.times_of(taker.event_time)
        if times is not None:
            input = replace(input, time_zone=times.time_zone, event_time_unit=times.event_time_unit)
        yield Feed(earlier[name], input, before.output_delay_us(taker.event_time), before.emits_updates)


def _check_takes_all(part: Definition, feed: Feed, before: str) -> None:
    """Reject a policy that could skip a row which another one retracts."""
    policy = feed.input.deliver
    if policy is not None and policy.skips:
        raise BadTrigger(
            f"deliver={policy!r} of {part.name!r}, which takes rows of {before!r} that may be taken back: what takes back "
            f"a row that was skipped would be counted; leave it out, or give it to {before!r}"
        )


def _begins(parts: tuple[Definition, ...], part: int) -> bool:
    """True if an operator takes no rows of earlier ones: all of its inputs are named and come from outside. A join without
    a downstream operator would be unconnected: it takes the rows of the one before it.
    """
    definition = parts[part]
    taken = any(definition.name in [i.name for i in later.inputs] for later in parts[part + 1 :])
    return definition.by_input and (len(definition.inputs) == 1 or taken)


def _check_connected(chain: ChainDefinition) -> None:
    """Reject operators that are not connected to the rest: they would be a job of their own."""
    reached, waiting = set[int](), [len(chain.parts) - 1]
    edges = [(feed.part, i) for i in range(len(chain.parts)) for feed in chain.feeds[i]]
    while waiting:
        part = waiting.pop()
        if part not in reached:
            reached.add(part)
            waiting += [b if a == part else a for a, b in edges if part in (a, b)]
    alone = [p.name for i, p in enumerate(chain.parts) if i not in reached]
    if alone:
        raise ConfigurationError(
            f"{alone[0]!r} and {chain.name!r} take nothing of each other: give them to one job side by side, as "
            "wr.open([...]), wr.foreach_batch([...]) and wr.writeStream([...]) take them"
        )


def _with_named_inputs(chain: ChainDefinition) -> tuple[Definition, ...]:
    """Return the operators of a chain. Among named inputs from outside, one without a name has that of its operator."""
    own = [chain.inputs_of(i) for i in range(len(chain.parts))]
    names = {input.name for inputs in own for input in inputs}
    for cached in ("feeds", "_fed"):
        chain.__dict__.pop(cached, None)
    if names <= {UNNAMED} or UNNAMED not in names:
        return chain.operators
    return tuple(
        part.with_input_name(part.name) if UNNAMED in [input.name for input in inputs] else part
        for part, inputs in zip(chain.parts, own, strict=True)
    )


def check_inputs(chain: ChainDefinition) -> None:
    """Check that outside inputs have names of their own, which are not those of operators, and one kind of watermark.

    An input without a name is the only one.
    """
    known: dict[str, Input] = {}
    named = next((i.name for i in chain.inputs if i.name != UNNAMED), UNNAMED)
    for i, part in enumerate(chain.parts):
        for input in chain.inputs_of(i):
            if named and input.name == UNNAMED:
                raise ConfigurationError(
                    f"{part.name!r} does not say which of the inputs of the job it takes: give it input={named!r}"
                )
            same = known.setdefault(input.name, input)
            if same.stream != input.stream:
                raise ConfigurationError(
                    f"{input.called} is taken by several operators, as {same!r} and as {input!r}: it has one event "
                    "time and one watermark; make them equal but for window, keys and filter, or give the inputs names of "
                    "their own"
                )
            if input.name != part.name and input.name in [p.name for p in chain.parts]:
                raise ConfigurationError(
                    f"input {input.name!r} of {part.name!r} comes from outside and has the name of an operator of the chain: "
                    + (
                        f"a join takes the rows of the operator before it, {chain.parts[i - 1].name!r}; "
                        if i
                        else ""
                    )
                    + "give the input another name"
                )
    kinds = {i.watermark.kind == "explicit" for i in chain.inputs}
    if len(kinds) > 1:
        shown = ", ".join(f"{i.name!r}: {i.watermark!r}" for i in chain.inputs)
        raise BadWatermark(
            f"the inputs of the chain have the watermarks {shown}: an explicit watermark is the whole chain's, use "
            "wr.explicit() on all inputs"
        )


#: Fields that the graph sets in the description of an operator.
_OF_GRAPH = ("name", "takes_back", "allowed_lateness_us")


def growth_of(chain: ChainDefinition, before: Before) -> Growth | str:
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
