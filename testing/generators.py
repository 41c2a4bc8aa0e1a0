"""Operators and messages that a seed draws."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

import windrow as wr
from windrow.core.errors import ConfigurationError
from windrow.core.time import to_datetime
from windrow.testing.variation import Variation


class Busy:
    """A process function that keeps state and sets timers of both kinds, as its messages order."""

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


T = TypeVar("T")
S, HOUR = 1_000_000, 3_600_000_000
#: The number of draws for options that do not fit each other.
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
#: Values that make a message uncountable for any operator; and those that do so as a key.
WRONG: tuple[dict[str, Any], ...] = ({"t": None}, {"t": "no time"}, {"t": float("nan")})
WRONG_KEY = {"k": "\ud800"}
HOWS = ("inner", "left", "right", "full", "semi", "anti", "asof")


class Draw:
    """The choices of one seed. unit_us: about how much time lies between two messages; widths are in it."""

    def __init__(self, chance: Random, unit_us: int = S) -> None:
        self.chance, self.unit_us = chance, unit_us
        self.variation = Variation(chance, self.units)

    def pick(self, *options: T) -> T:
        return self.chance.choice(options)

    def units(self, n: int) -> timedelta:
        return timedelta(microseconds=n * self.unit_us)

    def valid(self, make: Callable[[], T]) -> T:
        """Draw until the options fit each other."""
        for _ in range(MOST_TRIES):
            with contextlib.suppress(ConfigurationError):
                return make()
        return make()

    # -- operators --------------------------------------------------------------------------------------------------

    def aggregate(self, name: str, **decided: Any) -> wr.Aggregate:
        """Draw any aggregate. decided: options; `window` "in time": one that ends, "session": of any kind."""
        return self.valid(lambda: self._aggregate(name, decided))

    def _aggregate(self, name: str, fixed: dict[str, Any]) -> wr.Aggregate:
        window, tuples, bounded = self._window(fixed.get("window"))
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
            "deliver": self.policy(),
            **fixed,
            "window": window,
        }
        return self.variation.of(partial(wr.Aggregate, name=name), options, fixed)

    def cogroup(self, name: str, *inputs: str, **decided: Any) -> wr.CoGroup:
        """Draw any aggregate over these inputs. decided: as for `aggregate`."""
        return self.valid(lambda: self._cogroup(name, inputs, decided))

    def _cogroup(self, name: str, inputs: Sequence[str], fixed: Mapping[str, Any]) -> wr.CoGroup:
        window, tuples, bounded = self._window(fixed.get("window"))
        agg = {alias: self._of(a, inputs) for alias, a in self._aggregations("v").items()}
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g"), ()),
            "agg": {"all": wr.count(), **agg},
            "emit": self._emit(),
            "null_keys": self.pick("group", "group", "dead_letter"),
            "retention": self._retention(tuples, bounded),
            "allowed_lateness": self.pick(None, None, self.units(4)) if bounded else None,
            "ids": self.pick(None, None, None, wr.ids("i", "v")),
            **fixed,
            "window": window,
        }
        both = [
            wr.Input(i, event_time="t", watermark=self.watermark(), deliver=self.policy()) for i in inputs
        ]
        return self.variation.of(partial(wr.CoGroup, inputs=both, name=name), options, fixed)

    def _of(self, aggregation: Any, inputs: Sequence[str]) -> Any:
        of = self.pick(None, *inputs)
        return aggregation if of is None else aggregation.of(of)

    def rules(self, name: str, *inputs: str) -> wr.Rules:
        """Any rules over these inputs."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of absences that suppress themselves
            return self.valid(lambda: self._rules(name, inputs))

    def _rules(self, name: str, inputs: Sequence[str]) -> wr.Rules:
        return wr.Rules(
            by=self.pick("k", "k", ()),
            inputs=[wr.Input(i, event_time="t", watermark=self.watermark()) for i in inputs],
            rules={rule: self._rule(inputs) for rule in ("one", "two")[: self.pick(1, 2)]},
            allowed_lateness=self.units(self.pick(0, 0, 3)),
            null_keys=self.pick("group", "group", "dead_letter"),
            name=name,
        )

    def _rule(self, inputs: Sequence[str]) -> wr.Rule:
        when: dict[str, Any] = {"x": wr.event(self.pick(*inputs), where=self.pick(None, wr.col("v") > 0))}
        if self.pick(True, False):
            then = self.pick(None, wr.col("v") > wr.col("x.v"))
            on = self.pick((), "x.g")
            when["y"] = wr.event(
                self.pick(*inputs), time=self._relation("x"), where=then, on=on, other_than="x"
            )
        last = self.pick(*when)
        match self.pick("event", "absent", "absent", "accumulate"):
            case "absent":
                when["n"] = wr.absent(self.pick(*inputs), time=self._relation(last), other_than=last)
            case "accumulate":
                agg = {"n": wr.count(), "total": wr.sum("v")}
                when["n"] = wr.accumulate(self.pick(*inputs), time=self._relation(last), agg=agg)
        columns = {"v": wr.col("x.v"), "w": wr.col(f"{last}.g")}
        return wr.Rule(
            when=when, then=columns | ({"total": wr.col("n.total")} if "n" in when and when["n"].agg else {})
        )

    def _relation(self, other: str) -> Any:
        low, high = self.units(self.pick(-2, -1, 0, 1)), self.units(self.pick(2, 4))
        one = self.pick(wr.after, wr.before)(other, low, high)
        return self.pick(one, one, wr.coincides(other, self.units(2)), [one, ~wr.coincides(other)])

    def join_window(self, name: str, **decided: Any) -> wr.JoinWindow:
        """Draw any join window. decided: as for `aggregate`."""
        return self.valid(lambda: self._join_window(name, decided))

    def _join_window(self, name: str, fixed: Mapping[str, Any]) -> wr.JoinWindow:
        window, tuples, bounded = self._window(fixed.get("window"))
        triggers: list[Any] = [wr.every_batch, wr.every_batch, wr.never, wr.every(2), wr.every(self.units(4))]
        emit = wr.Emit(early=self.pick(*triggers), late=self.pick(*triggers))
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ()),
            "event_time": "t",
            "join_keys": self.pick((), "i", ("i", "g")),
            "retention": self._retention(tuples, bounded),
            "allowed_lateness": self.pick(None, None, self.units(4)) if bounded else None,
            "emit": self.pick(None, emit),
            "watermark": self.watermark(),
            "null_keys": self.pick("group", "group", "dead_letter"),
            "ids": self.pick(None, None, None, wr.ids("i", "v")),
            "deliver": self.policy(),
            **fixed,
            "window": window,
        }
        return wr.JoinWindow(name=name, **options)

    def _window(self, kind: str | None) -> tuple[Any, bool, bool]:
        """Draw (a window, True if it counts messages, True if event time ends it)."""
        kinds = ["tumbling", "tumbling", "hopping", "hopping", "gaps", "session", "session"]
        kinds += ["calendar"] * 5 if self.unit_us > S else []
        kinds += [] if kind == "in time" else ["tuples", "tuples", "sliding", "global", "session"]
        match "session" if kind == "session" else self.pick(*kinds):
            case "tumbling":
                return wr.tumbling(self.units(10), offset=self.units(self.pick(0, 3))), False, True
            case "hopping":
                return wr.hopping(self.units(10), self.units(self.pick(5, 4))), False, True
            case "gaps":
                return wr.hopping(self.units(3), self.units(7), gaps=True), False, True
            case "session":
                return self._session(kind == "in time")
            case "calendar":
                zone = self.pick("Europe/Berlin", "UTC")
                return wr.calendar(self.pick("day", "2 days"), time_zone=zone), False, True
            case "tuples":
                return wr.tuples(self.pick(1, 3)), True, False
            case "sliding":
                return wr.tuples(self.pick(2, 5), step=self.pick(1, 2)), True, False
            case _:
                return wr.global_window(), False, False

    def _session(self, in_time: bool) -> tuple[Any, bool, bool]:
        gap = self.units(self.pick(1, 2, 4))
        match self.pick(
            "gap", "gap", "cut", *["longest"] * 4, *([] if in_time else ["own", "own", "messages"])
        ):
            case "cut":
                return wr.session(gap, cut=wr.tumbling(self.units(9))), False, True
            case "own":
                return wr.session((wr.col("g") + 1) * self.unit_us), False, True
            case "longest":
                return wr.session(gap, max_length=self.units(self.pick(3, 7))), False, True
            case "messages":
                return wr.session(messages=self.pick(0, 1, 3)), True, False
            case _:
                return wr.session(gap), False, True

    def _retention(self, tuples: bool, bounded: bool) -> Any:
        if tuples:
            per_job = wr.Retain(messages=8, per="job")
            return self.pick(wr.forever, wr.Retain(windows=2), wr.Retain(messages=6), per_job)
        if not bounded:
            return wr.forever
        limits = {"windows": self.pick(None, None, 2), "messages": self.pick(None, None, 5)}
        return wr.Retain(self.units(self.pick(8, 20, 30)), **limits, per=self.pick("key", "key", "job"))

    def _emit(self) -> wr.Emit:
        return wr.Emit(
            early=self._trigger(),
            late=self._trigger(),
            on_time=self.pick(True, True, True, False),
            mode=self.pick("accumulating", "discarding", "retracting"),
            only_if_changed=self.pick(True, False),
            closing_pane=self.pick(True, False),
        )

    def _trigger(self) -> Any:
        """Mostly a plain one."""
        period, delay = self.units(self.pick(2, 5)), self.units(self.pick(1, 4))
        plain = (wr.never, wr.every_batch, wr.every(2), wr.every(period))
        if self.chance.random() < 0.6:
            return self.pick(*plain)
        return self.pick(
            wr.delay(delay),
            wr.when(wr.col("n") >= 3),
            wr.every(period, always=True),
            wr.any_of(wr.every(3), wr.delay(delay), wr.all_of(wr.every(2), wr.delay(2 * delay))),
            wr.all_of(wr.when(wr.col("n") != 3), wr.every(period)),
        )

    def _aggregations(self, column: str) -> dict[str, Any]:
        aggregations = {
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
        chosen = self.chance.sample(sorted(aggregations), self.pick(1, 1, 2, 3))
        return {"n": wr.count(), **{name: aggregations[name] for name in chosen}}

    def watermark(self) -> Any:
        return self.pick(
            self.units(0),
            self.units(3),
            self.units(5),
            wr.bounded(self.units(2), idle=self.units(10)),
            wr.fixed(self.units(5)),
        )

    def policy(self, *, surely: bool = True) -> Any:
        """Draw the policy of an input's `deliver=`, mostly none. surely: some messages may be guaranteed."""
        if self.chance.random() < 0.8:
            return None
        return self.any_policy(surely=surely)

    def any_policy(self, *, surely: bool = True) -> Any:
        made = self.pick(
            wr.deliver.latest(),
            wr.deliver.newest(2, per="input", record="dead_letters"),
            wr.deliver.throttle(self.units(self.pick(2, 6))),
            wr.deliver.throttle(self.units(4), per="input"),
            wr.deliver.within(self.units(self.pick(5, 30)), record=self.pick(None, "dead_letters")),
        )
        return self.pick(made, made, made.guarantee(wr.col("i") == 2) if surely else made)

    def input(self, name: str, window: Any = None, **decided: Any) -> Any:
        options = {"event_time": "t", "watermark": self.pick(self.units(0), self.units(3)), **decided}
        if not options.get("static"):
            options.setdefault("deliver", self.policy())
        return wr.Input(name, window=window, **options)

    def join(
        self,
        name: str,
        left: str,
        right: str,
        *,
        hows: Sequence[str] = HOWS,
        said: Mapping[str, dict[str, Any]] = MappingProxyType({}),
        **decided: Any,
    ) -> wr.Join:
        """Draw any join of two inputs. said: decided options of an input; decided: those of the join."""
        return self.valid(lambda: self._join(name, left, right, hows, said, decided))

    def _join(
        self,
        name: str,
        left: str,
        right: str,
        hows: Sequence[str],
        said: Mapping[str, dict[str, Any]],
        fixed: Mapping[str, Any],
    ) -> wr.Join:
        how = self.pick(*hows)
        low, high = sorted((self.chance.randint(-6, 3), self.chance.randint(-3, 6)))
        within = (self.units(low), self.units(min(high, 0) if how == "asof" else high))
        beside = [wr.sliding(self.units(5)), wr.tumbling(self.units(6)), wr.rows(2), wr.unbounded(), None]
        windows = self.pick((None, None), (None, None), (self.pick(*beside), self.pick(*beside)))
        sessions = self.pick(None, None, None, (True, True), (True, False), (False, True))
        if how == "asof":
            windows, sessions = (None, None), None
        if sessions is not None:
            gap = self.pick(*map(self.units, (1, 2, 4)), (wr.col("g") + 1) * self.unit_us)
            spec = wr.session(gap, cut=self.pick(None, None, wr.tumbling(self.units(9))))
            windows = (spec if sessions[0] else None, spec if sessions[1] else None)
        common = sessions == (True, True)
        options: dict[str, Any] = {
            "how": how,
            "on": self.pick("k", "k", ("k", "g"), *([] if sessions else [()])),
            "window": windows[0] if common else None,
            "within": within if windows == (None, None) else self.pick(within, None),
            "retention": self.pick(
                None, self.units(20), self.units(40), *([self._retention(False, True)] if sessions else [])
            ),
            "allowed_lateness": self.pick(None, None, self.units(0), self.units(4)),
            "emit": self.pick(None, None, wr.Emit(early=wr.every(self.units(4)), late=wr.every_batch)),
            **fixed,
        }
        if common:
            windows = (None, None)
        return wr.Join(
            left=self.input(left, windows[0], **said.get(left, {})),
            right=self.input(right, windows[1], **said.get(right, {})),
            name=name,
            **options,
        )

    def deduplicate(self, name: str, **decided: Any) -> wr.Deduplicate:
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g"), ()),
            "event_time": "t",
            "ids": wr.ids("i"),
            "within": self.pick(self.units(3), self.units(10), wr.forever),
            "watermark": self.watermark(),
            "null_keys": self.pick("group", "dead_letter"),
            "deliver": self.pick(*[None] * 5, wr.deliver.within(self.units(8))),
            **decided,
        }
        return wr.Deduplicate(name=name, **options)

    def delivery(self, name: str, **decided: Any) -> wr.Delivery:
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g"), ()),
            "event_time": "t",
            "policy": self.any_policy(),
            "watermark": self.watermark(),
            "null_keys": self.pick("group", "dead_letter"),
            **decided,
        }
        return wr.Delivery(name=name, **options)

    def process(self, name: str, **decided: Any) -> wr.Process:
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g")),
            "event_time": "t",
            "function": Busy,
            "emits": {"said": pa.string(), "n": pa.int64()},
            "ttl": self.pick(self.units(3), self.units(10), wr.forever),
            "watermark": self.watermark(),
            "null_keys": "dead_letter",
            "deliver": self.policy(),
            **decided,
        }
        return wr.Process(name=name, **options)

    def alert(self, name: str, **decided: Any) -> wr.Alert:
        """Any alert."""
        return self.valid(lambda: self._alert(name, decided))

    def _alert(self, name: str, fixed: Mapping[str, Any]) -> wr.Alert:
        frame: Any = self.pick(None, self.units(4), self.units(9), 3)
        value = wr.col("v" if frame is None else "newest")
        repeat = self.pick(wr.never, wr.every(2), wr.every(self.units(5)))
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g"), ()),
            "event_time": "t",
            "frame": frame,
            "agg": None if frame is None else {"n": wr.count(), "newest": wr.latest("v")},
            "variables": {"twice": value * 2},
            "when": self.pick(value > 3, wr.col("twice") > 9),
            "until": self.pick(None, value < 2, wr.col("count") > 2),
            "evaluate": None if frame is None else self.pick(None, wr.every(self.units(6))),
            "leaving": self.pick(True, False),
            "actions": {
                "mail": wr.Action(delay=self.pick(None, self.units(3)), repeat=repeat),
                "log": wr.Action(cancel=self.pick(True, False), where=wr.col("count") < 4),
            },
            "ttl": self.pick(self.units(10), self.units(20), wr.forever),
            "watermark": self.watermark(),
            "null_keys": self.pick("group", "dead_letter"),
            "deliver": self.policy(),
            **fixed,
        }
        return wr.Alert(name=name, **options)

    def over(self, name: str, **decided: Any) -> wr.Over:
        """Any windows around messages."""
        return self.valid(lambda: self._over(name, decided))

    def _over(self, name: str, fixed: Mapping[str, Any]) -> wr.Over:
        ends = self.chance.randint(-6, 1), self.chance.randint(-2, 4)
        counted = self.pick(True, False)
        if counted:
            frame: Any = wr.rows_between(*ends, partial=self.pick("skip", "emit", "null"))
        else:
            closed = self.pick("both", "both", "left", "right")
            frame = wr.range_between(self.units(ends[0]), self.units(ends[1]), closed=closed)
        agg = {"around": wr.count(), "near": wr.sum("v"), "top": wr.max("v"), "all": wr.collect_list("v")}
        running = {"so_far": wr.count().over(), "last_two": wr.avg("v").over(2)}
        if not counted:
            running["so_far_and_peers"] = wr.sum("v").over(wr.range_between(wr.unbounded, 0))
        options: dict[str, Any] = {
            "by": self.pick("k", "k", ("k", "g"), ()),
            "event_time": "t",
            "frame": frame,
            "agg": {**agg, **running} if self.pick(True, False) or counted else agg,
            "watermark": self.watermark(),
            "null_keys": self.pick("group", "dead_letter"),
            "deliver": self.policy(),
            **self._again(),
            **fixed,
        }
        if any(not hasattr(a.frame or frame, "low_us") for a in options["agg"].values()):
            options["ttl"] = self.pick(self.units(3), self.units(10), wr.forever)
        return self.variation.of(partial(wr.Over, name=name), options, fixed)

    def _again(self) -> dict[str, Any]:
        """Draw the update options of windows around messages, half of the time none."""
        triggers: list[Any] = [wr.never, wr.every_batch]
        emit = wr.Emit(
            early=self.pick(*triggers),
            late=wr.every_batch,
            mode=self.pick("retracting", "retracting", "accumulating"),
            only_if_changed=self.pick(True, False),
        )
        return self.pick({}, {"emit": emit, "allowed_lateness": self.units(self.pick(0, 4, 20))})

    def anchored(self, name: str, messages: str, anchors: str | None, **decided: Any) -> wr.Over:
        """Any windows around the messages of another input; anchors=None: of a clock."""
        return self.valid(lambda: self._anchored(name, messages, anchors, decided))

    def _anchored(self, name: str, messages: str, anchors: str | None, fixed: Mapping[str, Any]) -> wr.Over:
        frame, bounded, again = self._span(anchors is None)
        agg = {"around": wr.count(), "near": wr.sum("v"), "top": wr.max("v"), "all": wr.collect_list("v")}
        options: dict[str, Any] = {
            "by": () if anchors is None else self.pick("k", "k", ("k", "g"), ()),
            "event_time": "t",
            "frame": frame,
            "agg": {alias: agg[alias] for alias in self.chance.sample(sorted(agg), 2)},
            "anchors": wr.sources.clock(self.units(self.pick(2, 5)))
            if anchors is None
            else self.input(anchors),
            "retention": None if bounded else self.pick(self.units(8), self.units(8), wr.forever),
            "empty": self.pick("emit", "emit", "skip"),
            "watermark": self.pick(self.units(0), self.units(3)),
            "null_keys": self.pick("group", "dead_letter"),
            "deliver": self.policy(),
            **(self._again() if again else {}),
            **fixed,
        }
        return wr.Over(name=name, input=messages, **options)

    def _span(self, fixed: bool) -> tuple[Any, bool, bool]:
        """Draw (the window around an anchor, True if all anchors have the same, True if rows may be updated)."""
        low, high = sorted((self.chance.randint(-6, 2), self.chance.randint(-2, 4)))
        closed = "both" if low == high else self.pick("both", "both", "left", "right")
        if fixed or self.pick(True, False):
            return wr.range_between(self.units(low), self.units(high), closed=closed), True, not fixed
        at, back = wr.col("t"), pa.scalar(2 * self.unit_us, pa.duration("us"))
        later = pc.if_else(pc.equal(wr.col("g"), 0), at, pc.add(at, back))
        promises = self.pick(True, False)
        obsolete = pc.subtract(at, back) if promises else None
        return wr.between(pc.subtract(at, back), later, obsolete=obsolete, closed=closed), False, not promises

    # -- messages ---------------------------------------------------------------------------------------------------

    def messages(self, names: Sequence[str], n: int) -> list[tuple[str, dict[str, Any]]]:
        """Draw messages of these inputs: mostly in order, some late, some too late, some that cannot be counted."""
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
