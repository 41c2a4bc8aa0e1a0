"""Any definition, any input, any cut, any crash: the operator gives what the oracle makes of the recorded steps.

WINDROW_DEEP=1 runs many more examples.
"""

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from windrow.core.messages import Message, Position, TupleWindow
from windrow.core.time import to_datetime
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.testing.clock import ManualClock
from windrow.testing.driver import TestDriver
from windrow.testing.faults import CommitPoint
from windrow.testing.ledger import all_panes_equal, ledger, ledger_key, values_equal

PROFILE = examples(120, deep=10_000)
S = 1_000_000
HOUR = 3600 * S


@wr.aggregate_function(name="longest", returns=pa.int64())
class longest:
    """The largest value, as a user would write it."""

    def initial(self) -> int | None:
        return None

    def add(self, state: int | None, value: int | None) -> int | None:
        return value if state is None else state if value is None else max(state, value)

    def merge(self, a: int | None, b: int | None) -> int | None:
        return self.add(a, b)

    def finish(self, state: int | None) -> int | None:
        return state


@wr.aggregate_function(name="rows", returns=pa.int64())
def rows(messages: pa.Table) -> Any:
    """A function of the window's messages."""
    return len(messages) + 100 * pc.count(messages.column("t")).as_py()


INCREMENTAL = {
    "n": wr.count(),
    "nv": wr.count("v"),
    "sum": wr.sum("v"),
    "sumx": wr.sum("x"),
    "avg": wr.avg("x"),
    "min": wr.min("x"),
    "max": wr.max("x"),
    "var": wr.variance("v"),
    "dev": wr.stddev("v", ddof=0),
    "first": wr.first("v"),
    "last": wr.last("v"),
    "earliest": wr.earliest("v"),
    "latest": wr.latest("v"),
    "any": wr.any_value("v"),
    "list": wr.collect_list("v"),
    "timely": wr.collect_list("x", order="event_time"),
    "set": wr.collect_set("v"),
    "distinct": wr.count_distinct("x"),
    "about": wr.approx_count_distinct("v"),
    "mid": wr.approx_percentile("v", 0.5),
    "top": wr.top_k("v", 2),
    "by": wr.max_by("v", "x"),
    "least": wr.min_by("x", "v"),
    "weighted": wr.weighted_avg("x", "v"),
    "where": wr.sum("v").where(wr.col("v") > 1),
    "expr": wr.sum(wr.col("x") * 2),
    "divided": wr.sum(wr.lit(6) / wr.col("v")),  # raises where a whole "v" is 0
    "user": longest("v"),
}
FULL = {"median": wr.median("v"), "p": wr.percentile("x", 0.25), "rows": rows()}

TRIGGERS = ["never", "every_batch", "every 2", "every 3", "period 5", "period 7"]
POINTS = [None, *CommitPoint]


@dataclass(frozen=True)
class Case:
    """A definition, and the scale of its event times."""

    definition: AggregateDefinition
    base_us: int
    unit_us: int
    datetimes: bool

    def time(self, t: int) -> int:
        return self.base_us + t * self.unit_us


def trigger(text: str) -> Any:
    kind, _, n = text.partition(" ")
    if kind == "every":
        return wr.every(int(n))
    if kind == "period":
        return wr.every(timedelta(seconds=int(n)))
    return getattr(wr, kind)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    modes: tuple[str, ...] = ("accumulating", "discarding", "retracting"),
    unbounded: bool = False,
    steady: bool = False,
    ids: bool = False,
    full: bool = False,
) -> Case:
    """Any definition; unbounded: nothing is ever too late; steady: one whose messages added one by one are run together.

    ids: messages are known by the column "u", or by it and another. full: they are kept.
    """

    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    kind = pick("tumbling", "hopping", "uneven", "calendar", "global")
    if not steady and draw(st.integers(0, 2)) == 0:
        kind = pick("gaps", "tuples", "sliding", "hops")
    unit_us, base_us = (
        (6 * HOUR, 1_603_400_000 * S) if kind == "calendar" else (S, pick(0, -20 * S, 10**9 * S))
    )

    def units(n: int) -> timedelta:
        return timedelta(microseconds=n * unit_us)

    window = {
        "tumbling": lambda: wr.tumbling(units(10), offset=units(pick(0, 3))),
        "hopping": lambda: wr.hopping(units(10), units(5)),
        "uneven": lambda: wr.hopping(units(10), units(4), offset=units(1)),
        "gaps": lambda: wr.hopping(units(3), units(7), gaps=True),
        "calendar": lambda: wr.calendar(
            pick("day", "2 days", "week"), time_zone=pick("Europe/Berlin", "UTC")
        ),
        "global": wr.global_window,
        "tuples": lambda: wr.tuples(3),
        "sliding": lambda: wr.tuples(2, step=1),
        "hops": lambda: wr.tuples(5, step=2),
    }[kind]()
    tuples = isinstance(window, wr.core.windows.Tuples)
    lateness = None
    limits: dict[str, Any] = {
        "windows": pick(None, None, 2),
        "messages": pick(None, None, 5),
        "per": pick("key", "job"),
    }
    if steady:
        limits = {}
    triggers = ["never", "period 5", "period 7"] if steady else TRIGGERS
    retention: Any = wr.forever
    if tuples and not unbounded:
        retention = pick(
            wr.forever, wr.Retain(windows=2), wr.Retain(messages=6), wr.Retain(windows=3, per="job")
        )
    elif not (tuples or kind == "global" or unbounded):
        kept = pick(None, 0, 8, 25)
        retention = wr.Retain(None if kept is None else units(kept), **limits)
        lateness = pick(None, None, 0, 4)
        lateness = None if lateness is None or (kept is not None and lateness > kept) else units(lateness)
    drop_late = pick(False, False, False, True) and lateness is None and not unbounded
    emit = wr.Emit(
        early=trigger(draw(st.sampled_from(triggers))),
        # What waits for a count, or for nothing, is told or not by the cut.
        late=trigger(draw(st.sampled_from(["every_batch", "period 5"] if unbounded else triggers))),
        on_time=unbounded or pick(True, True, False),
        mode=draw(st.sampled_from(modes)),
        only_if_changed=draw(st.booleans()),
        closing_pane=draw(st.booleans()),
        drop_late=drop_late,
    )
    names = draw(
        st.lists(
            st.sampled_from([n for n in INCREMENTAL if not steady or n != "user"]),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    if steady and "any" not in names and draw(st.booleans()):
        names.append("any")
    if full or draw(st.integers(0, 3)) == 0:
        names.append(draw(st.sampled_from([*FULL])))
    definition = wr.Aggregate(
        by=pick((), "k", "k", ("k", "g"), "f"),
        event_time="t",
        window=window,
        agg={name: {**INCREMENTAL, **FULL}[name] for name in names},
        retention=retention,
        allowed_lateness=lateness,
        watermark=pick(
            units(0),
            units(3),
            wr.bounded(units(2), idle="20 seconds"),
            wr.bounded(units(1), partitions=[("s", 0), ("s", 1)]),
            wr.explicit(),
            wr.fixed("5 seconds"),
            wr.custom(_custom, name="smallest"),
        ),
        emit=emit,
        null_keys=pick("group", "group", "dead_letter"),
        max_ahead=wr.forever if unbounded else pick(wr.forever, wr.forever, None, units(10), units(40)),
        integer_overflow=pick("dead_letter", "decimal"),
        ids=pick(wr.ids("u"), wr.ids("u"), wr.ids("u", "g")) if ids else None,
    )
    return Case(definition, base_us, unit_us, draw(st.booleans()))


def _custom(marks: dict[tuple[str, int], int], now_us: int) -> int | None:
    return min(marks.values()) - S if marks else None


BAD_TIMES = ["no time", None, math.nan, True, 2**62, 1.5, datetime(2020, 1, 1)]


@st.composite
def messages(draw: st.DrawFn, *, good: bool = False, close: bool = False) -> dict[str, Any]:
    """A row; good: it can be counted; close: its time is near that of the others, and its partition any of two."""
    row: dict[str, Any] = {
        "p": draw(st.sampled_from([0, 1] if close else [0, 0, 0, 1])),
        "t": draw(st.integers(3, 18) if close else st.one_of(st.integers(-5, 60), st.integers(0, 14))),
        "k": draw(st.sampled_from(["a", "b", None])),
        "g": draw(st.sampled_from([1, 2, None])),
        "f": draw(st.sampled_from([0.0, -0.0, 1.5, math.nan, None])),
        "x": draw(st.sampled_from([None, 0.25, -3.0, 7.5, 7.5, math.nan])),
        "v": draw(st.sampled_from([None, 0, 1, 2, 3, 5, -4])),
    }
    if not good and draw(st.integers(0, 12)) == 0:
        row["bad"] = draw(st.sampled_from(BAD_TIMES))
    if not good and draw(st.integers(0, 12)) == 0:
        row["v"] = 2**62
    if draw(st.integers(0, 12)) == 0:
        del row["v"]
    return row


ACTIONS = st.one_of(
    st.tuples(st.just("feed"), st.lists(messages(), min_size=1, max_size=6)),
    st.tuples(st.just("feed"), st.lists(messages(), min_size=1, max_size=6)),
    st.tuples(st.just("each"), st.lists(messages(), min_size=1, max_size=4)),
    st.tuples(st.just("clock"), st.integers(1, 12)),
    st.tuples(st.just("event time"), st.integers(-10, 80)),
    st.tuples(st.just("timeout"), st.none()),
    st.tuples(st.just("panes"), st.none()),
    st.tuples(st.just("crash"), st.sampled_from(POINTS)),
    st.tuples(st.just("replay"), st.integers(1, 5)),
)


@dataclass
class Run:
    """Plays actions; what a crash loses is fed again from where the job says that it stands."""

    case: Case
    driver: TestDriver
    source: dict[int, list[Message]] = field(default_factory=lambda: {0: [], 1: []})
    acknowledged: list[Any] = field(default_factory=list)

    def message(self, row: dict[str, Any]) -> Message:
        partition = self.source[row["p"]]
        payload = {name: value for name, value in row.items() if name not in ("p", "bad")}
        if not partition:
            payload.setdefault("v", None)  # a column that no message has had is a mistake, not a null
        time_us = self.case.time(row["t"])
        payload["t"] = row.get("bad", to_datetime(time_us) if self.case.datetimes else time_us)
        made = Message(payload, Position("s", row["p"], len(partition)))
        partition.append(made)
        return made

    def act(self, kind: str, value: Any) -> None:
        driver = self.driver
        match kind:
            case "feed":
                # However they come, a step takes them in position order.
                driver.feed([self.message(row) for row in value][::-1])
            case "each":
                for row in value:
                    driver.add(self.message(row))
            case "clock":
                driver.advance_clock(value * S)
            case "event time":
                driver.advance_event_time(self.case.time(value))
            case "timeout":
                driver.timeout()
            case "panes":
                self.acknowledged += driver.panes()
            case "replay":
                again = [m for partition in self.source.values() for m in partition[-value:]]
                driver.feed(again)
            case "crash":
                driver.crash(value)
                driver.restart()
                self.redeliver()
            case "drain":
                driver.drain()

    def redeliver(self) -> None:
        offsets = self.driver.next_offsets()
        lost = [m for p, partition in self.source.items() for m in partition[offsets.get(("s", p), 0) :]]
        for i in range(0, len(lost), 3):
            self.driver.feed(lost[i : i + 3])


def play(case: Case, actions: list[tuple[str, Any]]) -> Run:
    """Run the actions and compare with the oracle."""
    with TestDriver(case.definition, clock=ManualClock(case.base_us)) as driver:
        run = Run(case, driver)
        for kind, value in actions:
            run.act(kind, value)
        driver.check()
        panes = driver.committed_panes()
        ledger(panes, retracting=case.definition.emit.mode == "retracting")
        assert all_panes_equal(run.acknowledged + driver.op.get_result(), panes)
    return run


@pytest.mark.proves("Tools: oracle, and operators compared with it")
@given(case=cases(), actions=st.lists(ACTIONS, min_size=1, max_size=14), drained=st.booleans())
@PROFILE
def test_the_operator_gives_what_the_oracle_makes_of_the_recorded_steps(
    case: Case, actions: list[tuple[str, Any]], drained: bool
) -> None:
    play(case, [*actions, *([("clock", 10), ("timeout", None), ("drain", None)] if drained else [])])


ONE_BY_ONE = st.one_of(
    st.tuples(st.just("each"), st.lists(messages(close=True), min_size=1, max_size=12)),
    st.tuples(st.just("each"), st.lists(messages(close=True), min_size=4, max_size=12)),
    st.tuples(st.just("clock"), st.integers(1, 12)),
    ACTIONS,
)


@given(case=cases(steady=True), actions=st.lists(ONE_BY_ONE, min_size=1, max_size=10))
@PROFILE
def test_messages_added_one_by_one_are_steps_of_their_own(case: Case, actions: list[tuple[str, Any]]) -> None:
    play(case, [*actions, ("clock", 10), ("timeout", None)])


def in_the_end(case: Case, rows: list[dict[str, Any]], cut: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What the windows hold after all rows, `cut` a step; and what a consumer holds after the end of time."""
    with TestDriver(case.definition, clock=ManualClock(case.base_us)) as driver:
        run = Run(case, driver)
        made = [run.message(row) for row in rows]
        for i in range(0, len(made), cut):
            driver.feed(made[i : i + cut])
        held = {
            ledger_key(i.key, i.window): (i.messages, i.first, i.last, i.values) for i in driver.windows()
        }
        driver.advance_clock("1 day")
        driver.timeout()
        driver.drain()
        told = ledger(driver.committed_panes(), retracting=case.definition.emit.mode == "retracting")
        assert [letter for letter in driver.dead_letters() if letter.reason == "too_late"] == []
    partial = [key for key in held if isinstance(key[1], TupleWindow) and held[key][0] < _size(key[1])]
    return held, {key: values for key, values in told.items() if key not in partial}


def _size(window: TupleWindow) -> int:
    return window.last - window.first + 1


@pytest.mark.proves("Tools: oracle, and operators compared with it")
@given(
    case=cases(unbounded=True, modes=("accumulating", "retracting")),
    rows=st.lists(messages(good=True), min_size=1, max_size=15),
    cuts=st.tuples(st.integers(1, 3), st.integers(4, 15)),
)
@examples(40, deep=3_000)
def test_where_nothing_is_too_late_contents_and_ledger_do_not_depend_on_the_cut(
    case: Case, rows: list[dict[str, Any]], cuts: tuple[int, int]
) -> None:
    # Positions of two partitions interleave by the cut, and with them the numbers of tuple windows.
    rows = [{**row, "p": 0} for row in rows]
    (held, told), (held_too, told_too) = (in_the_end(case, rows, cut) for cut in cuts)
    assert values_equal(held, held_too)
    assert values_equal(told, told_too)
