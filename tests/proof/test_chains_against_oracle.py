"""Any chain, any input, any cut, closed or killed between any two steps: what the log's steps give by the oracles.

WINDROW_DEEP=1 runs many more examples.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from windrow.connectors.sinks import MemorySink
from windrow.core.messages import JoinedRow, Position, Timing
from windrow.core.time import instant_us
from windrow.operators.join.definition import JoinDefinition
from windrow.testing import ChainOracle, ManualClock, all_panes_equal, panes_equal
from windrow.testing.ledger import values_equal

S = 1_000_000
PROFILE = examples(40, deep=3_000)
SCHEMA = pa.schema(
    [("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("g", pa.int64()), ("v", pa.int64())]
)
LATENESS = st.sampled_from([None, "0 seconds", "3 seconds"])
WATERMARKS = st.sampled_from(["0 seconds", "2 seconds", wr.explicit()])
AGGREGATIONS = {"least": wr.min, "first": wr.first, "median": wr.median}


@st.composite
def emits(draw: st.DrawFn, modes: tuple[str, ...], *, before: bool) -> wr.Emit:
    """Emissions of the last operator, or of one before another."""
    mode = draw(st.sampled_from(modes))
    triggers = st.sampled_from([wr.never, wr.every_batch, wr.every(2), wr.every("3 seconds")])
    if before and mode == "accumulating":
        return draw(st.sampled_from([wr.Emit.append(), wr.Emit(late=wr.never)]))
    return wr.Emit(early=draw(triggers), late=draw(triggers), mode=mode)


@st.composite
def aggregates(
    draw: st.DrawFn,
    after: tuple[str, str] | None,
    name: str,
    *,
    last: bool,
    outside: tuple[str, Any] | None = None,
) -> wr.Aggregate:
    """after: (event time, column to sum) of the operator before it; outside: (name, watermark) of an input that is named."""
    event_time, column = after or ("t", "v")
    keys = [("k",), ("k", "g"), ()] if after is None or after[0] == "window_time" else [("k",), ()]
    by = draw(st.sampled_from(keys[: 3 if outside is None else 2] if after is None else [("k",), ()]))
    seconds = st.sampled_from([wr.tumbling("1 second"), wr.hopping("3 seconds", "2 seconds")])
    tens = st.sampled_from(
        [wr.tumbling("10 seconds"), wr.hopping("6 seconds", "4 seconds"), wr.tumbling("1 second")]
    )
    agg: dict[str, Any] = {"n": wr.sum(column), "rows": wr.count()}
    if last:
        chosen = draw(st.sets(st.sampled_from(sorted(AGGREGATIONS))))
        agg |= {name: AGGREGATIONS[name](column) for name in sorted(chosen)}
    emit = draw(emits(("accumulating", "discarding", *(("retracting",) if last else ())), before=not last))
    lateness = None if emit.drop_late else draw(LATENESS)
    return wr.Aggregate(
        by=by,
        event_time=event_time,
        window=draw(tens if after else seconds),
        agg=agg,
        watermark=outside[1] if outside else draw(WATERMARKS) if after is None else "0 seconds",
        input=outside[0] if outside else None,
        retention="20 seconds",
        allowed_lateness=lateness,
        emit=emit,
        name=name,
    )


@st.composite
def joins(draw: st.DrawFn) -> tuple[wr.Join, str]:
    """A join and the column that is the event time of what follows it."""
    how = draw(st.sampled_from(["inner", "left", "right", "semi", "anti", "asof"]))
    within = (
        ("-3 seconds", "0 seconds")
        if how == "asof"
        else draw(st.sampled_from([("-2 seconds", "3 seconds"), None]))
    )
    windows = [None, None] if within else draw(
        st.sampled_from([[wr.sliding("2 seconds"), wr.sliding("1 second")], [wr.tumbling("4 seconds"), None],
                         [wr.rows(2), None]])
    )  # fmt: skip
    watermark = draw(WATERMARKS)
    left, right = (
        wr.Input(name, event_time="t", window=window, watermark=watermark)
        for name, window in zip(("o", "s"), windows, strict=True)
    )
    join = wr.Join(
        left=left, right=right, on="k", within=within, how=how, name="first",
        allowed_lateness=draw(LATENESS), retention="20 seconds",
    )  # fmt: skip
    times = {"left": ["o_t"], "asof": ["o_t"], "right": ["s_t"], "semi": ["t"], "anti": ["t"]}
    return join, draw(st.sampled_from(times.get(how, ["o_t", "s_t"])))


@st.composite
def chains(draw: st.DrawFn) -> wr.Chain:
    if draw(st.booleans()):
        join, time = draw(joins())
        column = {"o_t": "o_v", "s_t": "s_v", "t": "v"}[time]
        second = draw(aggregates((time, column), "second", last=True))
        return wr.chain(join, second)
    first = draw(aggregates(None, "first", last=False))
    parts = [first]
    if draw(st.sampled_from([False, False, True])):
        parts.append(draw(aggregates(("window_time", "n"), "middle", last=False)))
    parts.append(draw(aggregates(("window_time", "n"), "second", last=True)))
    kept = [parts[0]]
    for part in parts[1:]:  # keys can only be left out
        by = tuple(b for b in part.by if b in kept[-1].by)
        kept.append(part if by == part.by else _keyed(part, by))
    return wr.chain(*kept)


def _keyed(part: wr.Aggregate, by: tuple[str, ...]) -> wr.Aggregate:
    made: wr.Aggregate = eval(repr(part).replace(f"by={part.by!r}", f"by={by!r}"))
    return made


@st.composite
def followed(draw: st.DrawFn, before: wr.Join | wr.Aggregate, time: str, column: str) -> list[Any]:
    """A later join on either side, and the event time and column that an aggregate after it may take."""
    how = draw(st.sampled_from(["inner", "left", "right", "semi", "anti", "asof"]))
    handed_left = how == "asof" or draw(st.booleans())
    within = ("-3 seconds", "0 seconds") if how == "asof" else ("-2 seconds", "4 seconds")
    windows = draw(st.sampled_from([(None, None), (wr.rows(2), None)])) if how != "asof" else (None, None)
    theirs = watermark_kind(before)
    rows = wr.Input(before.name, event_time=time, window=windows[0], watermark=theirs)
    own = wr.Input(
        "p", event_time="t", window=windows[1],
        watermark=theirs if theirs == wr.explicit() else draw(st.sampled_from(["0 seconds", "2 seconds"])),
        static=draw(st.sampled_from([False, False, True])),
    )  # fmt: skip
    left, right = (rows, own) if handed_left else (own, rows)
    join = wr.Join(
        left=left, right=right, on="k", within=within, how=how, name="joined",
        allowed_lateness=draw(LATENESS), retention="20 seconds",
    )  # fmt: skip
    both = ("left", "right") if how not in ("left", "semi", "anti", "asof") else ("left",)
    side = draw(st.sampled_from(("right",) if how == "right" else both))
    clash = column == "v" and how not in ("semi", "anti")
    if (side == "left") == handed_left:
        return [join, f"first_{time}" if clash else time, f"first_{column}" if clash else column]
    return [join, None if own.static else "p_t" if clash else "t", "p_v" if clash else "v"]


def watermark_kind(before: Any) -> Any:
    given = before.left if isinstance(before, JoinDefinition) else before
    return wr.explicit() if given.watermark == wr.explicit() else "0 seconds"


@st.composite
def chains_of_joins(draw: st.DrawFn) -> wr.Chain:
    """A join or an aggregate, then a join, then perhaps an aggregate."""
    if draw(st.booleans()):
        first, time = draw(joins())
        column = {"o_t": "o_v", "s_t": "s_v", "t": "v"}[time]
    else:
        first, time, column = (
            draw(aggregates(None, "first", last=False).filter(lambda a: a.by)),
            "window_time",
            "n",
        )
    join, time, column = draw(followed(first, time, column))
    if time is None or draw(st.booleans()):
        return wr.chain(first, join)
    return wr.chain(first, join, draw(aggregates((time, column), "second", last=True)))


@st.composite
def graphs(draw: st.DrawFn) -> wr.Chain:
    """What lines of operators are not: operators side by side, on inputs of their own or on one, and a join of what they tell;
    then perhaps one with an input of its own, or an aggregate.
    """
    watermarks = draw(st.sampled_from([["0 seconds", "2 seconds"], [wr.explicit()]]))
    outside = {name: draw(st.sampled_from(watermarks)) for name in "osp"}
    if draw(st.booleans()):
        sources = ("o", draw(st.sampled_from("os")))
        parts: list[Any] = [
            draw(aggregates(None, name, last=False, outside=(source, outside[source])))
            for name, source in zip(("first", "other"), sources, strict=True)
        ]
        times, values = ("window_time", "window_time"), ("n", "n")
    else:
        shared = draw(st.sampled_from([None, wr.sliding("3 seconds")]))
        parts = [
            wr.Join(
                left=wr.Input("o", event_time="t", window=window, watermark=outside["o"]),
                right=wr.Input(theirs, event_time="t", watermark=outside[theirs]),
                on="k", within=("-1 second", "3 seconds"), how=draw(st.sampled_from(["inner", "left", "semi"])),
                name=name, retention="20 seconds", allowed_lateness=draw(LATENESS),
            )
            for name, theirs, window in (("first", "s", None), ("other", "p", shared))
        ]  # fmt: skip
        times = tuple("t" if p.how == "semi" else "o_t" for p in parts)
        values = tuple("v" if p.how == "semi" else "o_v" for p in parts)
    sides = [wr.Input(p.name, event_time=time) for p, time in zip(parts, times, strict=True)]
    both = wr.Join(
        left=sides[0], right=sides[1], on="k", within=("-2 seconds", "4 seconds"), name="both", retention="20 seconds",
        how=draw(st.sampled_from(["inner", "left", "full", "semi"])), allowed_lateness=draw(LATENESS),
    )  # fmt: skip
    parts.append(both)
    clash = [n for n in (times[0], values[0]) if both.how != "semi" and n in (times[1], values[1])]
    time, value = (f"first_{n}" if n in clash else n for n in (times[0], values[0]))
    if both.how != "full" and draw(st.booleans()):
        parts.append(draw(aggregates((time, value), "second", last=True)))
    return wr.chain(*parts)


@dataclass
class Run:
    """A chain on a directory, all that it was fed, and what it told."""

    chain: wr.Chain
    location: str
    clock: ManualClock = field(default_factory=lambda: ManualClock(100 * S))
    fed: list[tuple[str, wr.Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sinks = {p.name: wr.sinks.memory() for p in self.chain.parts}
        self.joins = self.chain.by_input
        self.names = [i.name for i in self.chain.inputs]
        self.open()
        if self.joins:
            self.op.add_messages({name: SCHEMA.empty_table() for name in self.names})  # type: ignore[arg-type]

    def open(self) -> None:
        self.op = self.chain.open(self.location, clock=self.clock, sink=self.sinks)

    def feed(self, drawn: list[dict[str, Any]], *, one_by_one: bool = False) -> None:
        made = []
        for row in drawn:
            payload = {"t": row["t"] * S // 2, "k": row["k"], "g": row["g"], "v": row["v"]}
            position = wr.Position("x", 0, len(self.fed))
            side = self.names[row["side"] % len(self.names)] if self.joins else ""
            made.append((side, wr.Message(payload, position)))
            self.fed.append(made[-1])
        self.add(made, one_by_one=one_by_one)

    def add(self, made: list[tuple[str, wr.Message]], *, one_by_one: bool = False) -> None:
        for part in [[m] for m in made] if one_by_one else [made]:
            if self.joins:
                by_input = {n: [m for side, m in part if side == n] for n in self.names}
                self.op.add_messages(by_input)  # type: ignore[arg-type]
            elif one_by_one:
                self.op.add_message(part[0][1])
            else:
                self.op.add_messages([m for _, m in part])

    def restart(self, kind: str) -> None:
        """Close, or die with what is staged; then all is delivered once more."""
        if kind == "close":
            self.op.close()
        else:
            self.op.abandon()
        self.open()
        if self.joins and not self.op.last_commit:
            self.op.add_messages({name: SCHEMA.empty_table() for name in self.names})  # type: ignore[arg-type]
        self.add(self.fed)

    def do(self, kind: str, value: Any) -> None:
        if kind in ("batch", "ones"):
            self.feed(value, one_by_one=kind == "ones")
        elif kind == "clock":
            self.clock.advance(timedelta(seconds=value))
            self.op.timeout()
        elif kind == "watermark":
            self.op.advance_watermark(to_datetime(value))
        else:
            self.restart(kind)

    def check(self) -> ChainOracle:
        """All that was told and buried is what the log's steps give by the oracles."""
        self.op.next_offsets()
        oracle = ChainOracle(self.chain, dict.fromkeys(self.names, SCHEMA) if self.joins else None)
        messages = [
            wr.Message(m.payload, m.position._replace(source=f"{side}:x" if side else "x"))
            for side, m in self.fed
            if m.position is not None
        ]
        steps = [step for record in self.op.engine.job.commits() for step in record.steps]
        wanted = oracle.replay(steps, messages)
        for name, sink in self.sinks.items():
            _same(sink, wanted.told.get(name, []))
        letters = Counter((d.reason, d.position) for d in self.op.dead_letters())
        assert letters == Counter(
            (d.reason, self._as_given(d.position)) for some in wanted.dead.values() for d in some
        )
        pairs = [(f.part, i) for i, feeds in enumerate(self.chain.feeds) for f in feeds]
        for before, after in ((self.chain.parts[a], self.chain.parts[b]) for a, b in pairs):
            late = sum(row.timing is Timing.LATE for row in self.sinks[before.name].panes)
            handed = [
                d for d in wanted.dead.get(after.name, []) if d.position and d.position.source == before.name
            ]
            assert len(handed) <= late, "what is not late for one is too late for the next"
        for part in self.chain.parts:
            if not isinstance(part, JoinDefinition):
                got, want = self.op.get_windows(operator=part.name), oracle.windows(part.name)
                assert [(w.window, w.messages, w.first, w.last, w.panes) for w in got] == [
                    (w.window, w.messages, self._as_given(w.first), self._as_given(w.last), w.panes)
                    for w in want
                ]
                assert all(values_equal(a.values, b.values) for a, b in zip(got, want, strict=True))
        return oracle

    def _as_given(self, position: Position | None) -> Position | None:
        """Users see the source that they gave, without the name of the input."""
        prefixes = [i.source_prefix for i in self.chain.inputs if self.joins]
        for prefix in prefixes:
            if position is not None and position.source.startswith(prefix):
                return position._replace(source=position.source.removeprefix(prefix))
        return position

    def end(self) -> None:
        """The end of time tells everything in one step, and leaves nothing but progress and what columns there are."""
        self.op.drain()
        self.check()
        told = {name: len(sink.panes) for name, sink in self.sinks.items()}
        self.op.drain()
        assert told == {name: len(sink.panes) for name, sink in self.sinks.items()}
        for part in self.op.engine.logic.parts:
            for cf in part.cfs():
                kept = [k for k, _ in self.op.engine.shard.kv.scan(cf)]
                assert all(cf == part.aux_cf and k[:1] in b"\x00hlns" for k in kept), (cf, kept)


def to_datetime(seconds: int) -> datetime:
    return datetime.fromisoformat("1970-01-01T00:00:00+00:00") + timedelta(seconds=seconds)


def _same(sink: MemorySink, wanted: list[Any]) -> None:
    if not wanted or not isinstance(wanted[0], JoinedRow):
        assert all_panes_equal(sink.panes, wanted), next(
            ((a, b) for a, b in zip(sink.panes, wanted, strict=False) if not panes_equal(a, b)),
            (len(sink.panes), len(wanted)),
        )
        return
    assert [(r.timing, _plain(r.values)) for r in sink.panes] == [
        (r.timing, _plain(r.values)) for r in wanted
    ]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {n: instant_us(v) if isinstance(v, datetime) else v for n, v in values.items()}


ROWS = st.fixed_dictionaries(
    {
        "t": st.integers(0, 50),
        "k": st.sampled_from("ab"),
        "g": st.integers(0, 1),
        "v": st.integers(-5, 5),
        "side": st.integers(0, 5),
    }
)
ACTIONS = st.one_of(
    st.tuples(st.just("batch"), st.lists(ROWS, min_size=1, max_size=8)),
    st.tuples(st.just("batch"), st.lists(ROWS, min_size=1, max_size=8)),
    st.tuples(st.just("ones"), st.lists(ROWS, min_size=1, max_size=4)),
    st.tuples(st.just("clock"), st.integers(0, 5)),
    st.tuples(st.just("watermark"), st.integers(0, 25)),
    st.tuples(st.sampled_from(["close", "kill"]), st.none()),
)


@pytest.mark.proves("Windows: several operators in a chain (window propagation)")
@given(chain=chains(), actions=st.lists(ACTIONS, min_size=3, max_size=12))
@PROFILE
def test_a_chain_gives_what_the_oracles_give_one_after_the_other(
    chain: wr.Chain, actions: list[tuple[str, Any]]
) -> None:
    _prove(chain, actions)


@pytest.mark.proves("Joins: three and more inputs, by joining what an operator of a chain tells")
@given(chain=chains_of_joins(), actions=st.lists(ACTIONS, min_size=3, max_size=12))
@PROFILE
def test_joins_of_three_inputs_give_what_the_oracles_give_one_after_the_other(
    chain: wr.Chain, actions: list[tuple[str, Any]]
) -> None:
    _prove(chain, actions)


@pytest.mark.proves("Windows: any graph of operators, on shared inputs, joined with each other")
@given(chain=graphs(), actions=st.lists(ACTIONS, min_size=3, max_size=12))
@PROFILE
def test_a_graph_gives_what_the_oracles_give_one_after_the_other(
    chain: wr.Chain, actions: list[tuple[str, Any]]
) -> None:
    _prove(chain, actions)


def _prove(chain: wr.Chain, actions: list[tuple[str, Any]]) -> None:
    assert eval(repr(chain)) == chain
    with tempfile.TemporaryDirectory(prefix="windrow-chain-") as location:
        run = Run(chain, location)
        for kind, value in actions:
            run.do(kind, value)
        run.check()
        run.end()
        event(f"{[type(p).__name__ for p in chain.parts]}: {bool(run.sinks[chain.name].panes)}")
        run.op.close()


PER_SECOND = wr.Aggregate(
    by=("k", "g"), event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count(), "v": wr.sum("v")},
    watermark=wr.explicit(), retention="1 hour", name="first",
    emit=wr.Emit(early=wr.every(2), late=wr.every_batch, mode="discarding"),
)  # fmt: skip
PER_TEN = wr.Aggregate(
    by="k", event_time="window_time", window=wr.tumbling("10 seconds"),
    agg={"n": wr.sum("n"), "v": wr.sum("v")}, retention="1 hour", name="second",
)  # fmt: skip


@pytest.mark.proves("Windows: several operators in a chain (window propagation)")
@given(actions=st.lists(ACTIONS, min_size=2, max_size=10), append=st.booleans())
@PROFILE
def test_sums_of_counts_are_the_counts_of_one_aggregate(actions: list[tuple[str, Any]], append: bool) -> None:
    """Seconds summed to tens are tens of seconds, where nothing was dropped; told in parts, however late."""
    first = PER_SECOND
    if append:
        first = eval(repr(first).replace(repr(first.emit), "wr.Emit.append()"))
        actions = [a for a in actions if a[0] != "watermark"]
    with tempfile.TemporaryDirectory(prefix="windrow-chain-") as location:
        run = Run(first.then(PER_TEN), location)
        for kind, value in actions:
            run.do(kind, value)
        run.op.drain()
        infos = {(p.window.start_us, p.key["k"]): p for p in run.sinks["second"].panes}
        run.op.close()
        wanted: dict[tuple[int, str], list[int]] = {}
        for _, m in run.fed:
            wanted.setdefault((m.payload["t"] // (10 * S) * 10 * S, m.payload["k"]), []).append(
                m.payload["v"]
            )
        assert {w: (p["n"], p["v"]) for w, p in infos.items()} == {
            w: (len(v), sum(v)) for w, v in wanted.items()
        }
