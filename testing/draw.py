"""Operators and messages that a seed draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from random import Random
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa

import windrow as wr
from windrow.core.errors import ConfigurationError
from windrow.core.time import to_datetime

T = TypeVar("T")
S, HOUR = 1_000_000, 3_600_000_000
#: How often options that do not fit each other are drawn again.
MOST_TRIES = 200
BASE_US = 1_000_000_000 * S
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("g", pa.int64()),
        ("i", pa.int64()),
        ("v", pa.int64()),
    ]
)
#: What makes a message one that no operator can count; and what does where that is a key.
WRONG: tuple[dict[str, Any], ...] = ({"t": None}, {"t": "no time"}, {"t": float("nan")})
WRONG_KEY = {"k": "\ud800"}
HOWS = ("inner", "left", "right", "full", "semi", "anti", "asof")


class Busy:
    """A process function that keeps state and sets timers of both kinds, by what its messages say."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        state["n"] = state.get("n", 0) + 1
        match message["i"]:
            case 0:
                raise ValueError("no")
            case 1:
                timers.set(timers.time + timedelta(seconds=3))
            case 2:
                timers.set(timers.now + timedelta(seconds=4), of="now")
            case 3 if state["n"] > 3:
                state.clear()
                return None
        return {"said": "message", "n": state["n"]}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
        state["fired"] = state.get("fired", 0) + 1
        yield {"said": timers.of, "n": state["fired"]}


class Draw:
    """Choices of one seed. unit_us: what a message comes after another, about; widths are in it."""

    def __init__(self, chance: Random, unit_us: int = S) -> None:
        self.chance, self.unit_us = chance, unit_us

    def pick(self, *options: T) -> T:
        return self.chance.choice(options)

    def units(self, n: int) -> timedelta:
        return timedelta(microseconds=n * self.unit_us)

    def valid(self, make: Callable[[], T]) -> T:
        """What is made, drawn again where options do not fit each other."""
        for _ in range(MOST_TRIES):
            with contextlib.suppress(ConfigurationError):
                return make()
        return make()

    # -- operators --------------------------------------------------------------------------------------------------

    def aggregate(self, name: str, **given: Any) -> wr.Aggregate:
        """Any aggregate. given: what of it is decided already; `window` "in time": one that ends."""
        return self.valid(lambda: self._aggregate(name, given))

    def _aggregate(self, name: str, given: dict[str, Any]) -> wr.Aggregate:
        window, tuples, bounded = self._window(given.get("window") == "in time")
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g"), ()),
            "event_time": "t",
            "agg": self._aggregations("v"),
            "watermark": self.watermark(),
            "emit": self._emit(),
            "null_keys": self.pick("group", "group", "dead_letter"),
            "retention": self._retention(tuples, bounded),
            "allowed_lateness": self.pick(None, None, self.units(4)) if bounded else None,
            "ids": self.pick(None, None, None, wr.ids("i", "v")),
            **given,
            "window": window,
        }
        return wr.Aggregate(name=name, **options)

    def _window(self, in_time: bool) -> tuple[Any, bool, bool]:
        """(a window, True if it counts messages, True if event time ends it)."""
        kinds = ["tumbling", "tumbling", "hopping", "hopping", "gaps", "session", "session"]
        kinds += ["calendar"] * 5 if self.unit_us > S else []
        match self.pick(*kinds, *([] if in_time else ["tuples", "tuples", "sliding", "global"])):
            case "tumbling":
                return wr.tumbling(self.units(10), offset=self.units(self.pick(0, 3))), False, True
            case "hopping":
                return wr.hopping(self.units(10), self.units(self.pick(5, 4))), False, True
            case "gaps":
                return wr.hopping(self.units(3), self.units(7), gaps=True), False, True
            case "session":
                return wr.session(self.units(self.pick(1, 2, 4))), False, True
            case "calendar":
                zone = self.pick("Europe/Berlin", "UTC")
                return wr.calendar(self.pick("day", "2 days"), time_zone=zone), False, True
            case "tuples":
                return wr.tuples(self.pick(1, 3)), True, False
            case "sliding":
                return wr.tuples(self.pick(2, 5), step=self.pick(1, 2)), True, False
            case _:
                return wr.global_window(), False, False

    def _retention(self, tuples: bool, bounded: bool) -> Any:
        if tuples:
            return self.pick(wr.forever, wr.Retain(windows=2), wr.Retain(messages=6))
        if not bounded:
            return wr.forever
        limits = {"windows": self.pick(None, None, 2), "messages": self.pick(None, None, 5)}
        return wr.Retain(self.units(self.pick(8, 20, 30)), **limits, per=self.pick("key", "key", "job"))

    def _emit(self) -> wr.Emit:
        triggers: list[Any] = [
            wr.never,
            wr.every_batch,
            wr.every(2),
            wr.every(self.units(2)),
            wr.every(self.units(5)),
        ]
        return wr.Emit(
            early=self.pick(*triggers),
            late=self.pick(*triggers),
            on_time=self.pick(True, True, True, False),
            mode=self.pick("accumulating", "discarding", "retracting"),
            only_if_changed=self.pick(True, False),
            closing_pane=self.pick(True, False),
        )

    def _aggregations(self, column: str) -> dict[str, Any]:
        some = {
            "total": wr.sum(column),
            "mean": wr.avg(column),
            "least": wr.min(column),
            "first": wr.first(column),
            "last": wr.last(column),
            "earliest": wr.earliest(column),
            "values": wr.collect_list(column),
            "large": wr.sum(column).where(wr.col(column) > 5),
            "middle": wr.median(column),
            "quarter": wr.percentile(column, 0.25),
        }
        chosen = self.chance.sample(sorted(some), self.pick(1, 1, 2, 3))
        return {"n": wr.count(), **{name: some[name] for name in chosen}}

    def watermark(self) -> Any:
        return self.pick(
            self.units(0),
            self.units(3),
            self.units(5),
            wr.bounded(self.units(2), idle=self.units(10)),
            wr.fixed(self.units(5)),
        )

    def input(self, name: str, window: Any = None, **given: Any) -> Any:
        options = {"event_time": "t", "watermark": self.pick(self.units(0), self.units(3)), **given}
        return wr.Input(name, window=window, **options)

    def join(
        self,
        name: str,
        left: str,
        right: str,
        *,
        hows: Sequence[str] = HOWS,
        said: Mapping[str, dict[str, Any]] = MappingProxyType({}),
        **given: Any,
    ) -> wr.Join:
        """Any join of two inputs. said: what of an input is decided already; given: what of the join is."""
        return self.valid(lambda: self._join(name, left, right, hows, said, given))

    def _join(
        self,
        name: str,
        left: str,
        right: str,
        hows: Sequence[str],
        said: Mapping[str, dict[str, Any]],
        given: Mapping[str, Any],
    ) -> wr.Join:
        how = self.pick(*hows)
        low, high = sorted((self.chance.randint(-6, 3), self.chance.randint(-3, 6)))
        within = (self.units(low), self.units(min(high, 0) if how == "asof" else high))
        beside = [wr.sliding(self.units(5)), wr.tumbling(self.units(6)), wr.rows(2), wr.unbounded(), None]
        windows = self.pick((None, None), (None, None), (self.pick(*beside), self.pick(*beside)))
        if how == "asof":
            windows = (None, None)
        options: dict[str, Any] = {
            "how": how,
            "on": self.pick("k", "k", ("k", "g"), ()),
            "within": within if windows == (None, None) else self.pick(within, None),
            "retention": self.pick(None, self.units(20), self.units(40)),
            "allowed_lateness": self.pick(None, None, self.units(0), self.units(4)),
            "emit": self.pick(None, None, wr.Emit(early=wr.every(self.units(4)), late=wr.every_batch)),
            **given,
        }
        return wr.Join(
            left=self.input(left, windows[0], **said.get(left, {})),
            right=self.input(right, windows[1], **said.get(right, {})),
            name=name,
            **options,
        )

    def deduplicate(self, name: str, **given: Any) -> wr.Deduplicate:
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g"), ()),
            "event_time": "t",
            "ids": wr.ids("i"),
            "within": self.pick(self.units(3), self.units(10), wr.forever),
            "watermark": self.watermark(),
            "null_keys": self.pick("group", "dead_letter"),
            **given,
        }
        return wr.Deduplicate(name=name, **options)

    def process(self, name: str, **given: Any) -> wr.Process:
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g")),
            "event_time": "t",
            "function": Busy,
            "emits": {"said": pa.string(), "n": pa.int64()},
            "ttl": self.pick(self.units(3), self.units(10), wr.forever),
            "watermark": self.watermark(),
            "null_keys": "dead_letter",
            **given,
        }
        return wr.Process(name=name, **options)

    def over(self, name: str, **given: Any) -> wr.Over:
        """Any windows around messages."""
        return self.valid(lambda: self._over(name, given))

    def _over(self, name: str, given: Mapping[str, Any]) -> wr.Over:
        ends = self.chance.randint(-6, 1), self.chance.randint(-2, 4)
        counted = self.pick(True, False)
        if counted:
            frame: Any = wr.rows_between(*ends, partial=self.pick("skip", "emit", "null"))
        else:
            closed = self.pick("both", "both", "left", "right")
            frame = wr.range_between(self.units(ends[0]), self.units(ends[1]), closed=closed)
        agg = {"around": wr.count(), "near": wr.sum("v"), "top": wr.max("v"), "all": wr.collect_list("v")}
        running = {"so_far": wr.count().over(), "last_two": wr.avg("v").over(2)}
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g"), ()),
            "event_time": "t",
            "frame": frame,
            "agg": {**agg, **running} if self.pick(True, False) or counted else agg,
            "watermark": self.watermark(),
            "null_keys": self.pick("group", "dead_letter"),
            **given,
        }
        if any(not hasattr(a.frame or frame, "low_us") for a in options["agg"].values()):
            options["ttl"] = self.pick(self.units(3), self.units(10), wr.forever)
        return wr.Over(name=name, **options)

    # -- messages ---------------------------------------------------------------------------------------------------

    def messages(self, names: Sequence[str], n: int) -> list[tuple[str, dict[str, Any]]]:
        """Messages of these inputs: mostly in order, some late, some too late, some that cannot be counted."""
        chance, found = self.chance, []
        for number in range(n):
            at = number + chance.choice([0, 0, 0, 0, 1, -4, -15, -60])
            time_us = BASE_US + at * self.unit_us
            row: dict[str, Any] = {
                "k": None if chance.random() < 0.03 else chance.choice("abcde"),
                "t": None if chance.random() < 0.03 else to_datetime(time_us),
                "g": chance.choice([0, 0, 1]),
                "i": None if chance.random() < 0.03 else chance.choice([0, 1, 1, 2, 3]),
                "v": None if chance.random() < 0.05 else number,
            }
            found.append((chance.choice(names), row))
        return found
