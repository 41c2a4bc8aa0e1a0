"""Seed 002, section 3: windows that another stream drives."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.core.errors import (
    BadDuration,
    BadTrigger,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    RetentionMissing,
    TypeClash,
)
from windrow.operators.over.anchors.logic import AnchoredOvers
from windrow.runners.state.definition_parser import evaluate
from windrow.testing import TestDriver

S, MS = 1_000_000, 1_000


def over(**options: Any) -> wr.Over:
    what: dict[str, Any] = {
        "event_time": "t",
        "input": "readings",
        "anchors": wr.Input("markers", event_time="at", max_ahead=wr.forever),
        "frame": wr.between("start", "end", obsolete="obsolete"),
        "agg": {"seen": wr.collect_list("n", order="event_time")},
        "max_ahead": wr.forever,
    }
    return wr.Over(**(what | options))


def played(
    folder: Path, definition: Any, sent: list[tuple[str | None, dict[str, Any]]], *, drain: bool = True
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, and why others are not there, of messages that come one by one: as the oracle says."""
    with TestDriver(definition, folder / "job") as driver:
        for n, (name, message) in enumerate(sent):
            driver.add(wr.Message(message, wr.Position("s", 0, n)), name)
        if drain:
            driver.drain()
        driver.check(dead_letters=True)
        if drain:
            driver.assert_state_zero()
        rows = [dict(row.values) for row in driver.committed_panes()]
        return rows, [letter.reason for letter in driver.dead_letters()]


READINGS: list[tuple[str | None, dict[str, Any]]] = [
    ("readings", {"t": n * 10 * MS, "n": n}) for n in range(10)
]


def marked(windows: list[tuple[int, int, int]], first: int = 0) -> list[tuple[str | None, dict[str, Any]]]:
    """Anchors (obsolete, start, end), in units of ten milliseconds."""
    return [
        (
            "markers",
            {
                "at": (first + i) * MS,
                "i": i,
                "obsolete": o * 10 * MS,
                "start": s * 10 * MS,
                "end": e * 10 * MS,
            },
        )
        for i, (o, s, e) in enumerate(windows)
    ]


GROWING: dict[str, tuple[list[tuple[int, int, int]], str, list[list[int]]]] = {
    "to the right": ([(2, 2, 4), (2, 2, 5), (2, 2, 6)], "both", [[2, 3, 4], [2, 3, 4, 5], [2, 3, 4, 5, 6]]),
    "left open": ([(2, 2, 4), (2, 2, 5), (2, 2, 6)], "right", [[3, 4], [3, 4, 5], [3, 4, 5, 6]]),
    "right open": ([(2, 2, 4), (2, 2, 5), (2, 2, 6)], "left", [[2, 3], [2, 3, 4], [2, 3, 4, 5]]),
    "open": ([(2, 2, 4), (2, 2, 5), (2, 2, 6)], "neither", [[3], [3, 4], [3, 4, 5]]),
    "to the left": ([(1, 3, 5), (1, 2, 5), (1, 1, 5)], "both", [[3, 4, 5], [2, 3, 4, 5], [1, 2, 3, 4, 5]]),
    "of nothing": ([(1, 3, 3), (1, 20, 30)], "neither", [[], []]),
}


@pytest.mark.parametrize("name", GROWING)
def test_each_anchor_says_which_messages_its_window_holds(name: str, tmp_path: Path) -> None:
    windows, closed, wanted = GROWING[name]
    definition = over(frame=wr.between("start", "end", obsolete="obsolete", closed=closed), select="i")
    for where, sent in (
        ("before", marked(windows) + READINGS),
        ("behind", READINGS[:1] + marked(windows) + READINGS[1:]),
    ):
        rows, letters = played(tmp_path / where, definition, sent)
        assert [row["seen"] for row in rows] == wanted
        assert letters == []


@pytest.mark.parametrize(
    ("windows", "kept"),
    [
        ([(3, 3, 5), (2, 3, 5), (3, 4, 5)], [0, 2]),  # an obsolete time goes back
        ([(3, 3, 5), (3, 2, 5), (3, 4, 5)], [0, 2]),  # a window begins before one
        ([(3, 3, 5), (9, 2, 5), (4, 4, 5)], [0, 2]),  # what one promises that breaks a promise does not count
        ([(3, 1, 5), (3, 3, 5)], [0, 1]),  # its own promise is for those behind it
    ],
)
def test_a_window_that_breaks_a_promise_is_a_dead_letter_and_the_next_continues(
    windows: list[tuple[int, int, int]], kept: list[int], tmp_path: Path
) -> None:
    for watermark in ("0 seconds", "1 second"):  # judged one after the other, and together
        anchors = wr.Input("markers", event_time="at", max_ahead=wr.forever, watermark=watermark)
        definition = over(select="i", anchors=anchors)
        rows, letters = played(tmp_path / watermark, definition, marked(windows) + READINGS)
        assert [row["i"] for row in rows] == kept
        assert letters == ["obsolete_window"] * (len(windows) - len(kept))


@pytest.mark.parametrize(
    ("retention", "anchors", "reasons"),
    [
        # (at, obsolete, start): what a key has promised last holds, though what it promised first is out of retention.
        (
            "8 seconds",
            [(10, 3, 9), (10.5, 9, 9), (11.9, None, 11), (13, None, 12), (13.5, None, 7)],
            ["obsolete_window"],
        ),
        # What lies further back than the retention is no promise, and breaks none.
        ("5 seconds", [(10, 9.5, 10), (14.2, None, 14), (15.2, None, 14), (15, 9.2, 12)], []),
    ],
)
def test_a_promise_holds_as_long_as_the_retention(
    retention: str, anchors: list[tuple[float, float | None, float]], reasons: list[str], tmp_path: Path
) -> None:
    sent: list[tuple[str | None, dict[str, Any]]] = [("readings", {"t": 60 * S, "n": 0})]
    for at, obsolete, start in anchors:
        us = None if obsolete is None else int(obsolete * S)
        sent.append(
            ("markers", {"at": int(at * S), "obsolete": us, "start": int(start * S), "end": int(at * S)})
        )
    delay = "1 second" if not reasons else "0 seconds"
    markers = wr.Input("markers", event_time="at", watermark=delay, max_ahead=wr.forever)
    rows, dead = played(tmp_path, over(retention=retention, anchors=markers), sent)
    assert dead == reasons
    assert len(rows) == len(anchors) - len(reasons)


def test_promises_are_forgotten_in_a_later_life_too(tmp_path: Path) -> None:
    """They are found by the stretches of their times: where these are lost, they stay for as long as the job lives."""
    first, *later = [
        {"k": k, "at": at * S, "obsolete": None if at == 3 else at * S, "start": at * S, "end": at * S}
        for k, at in (("a", 1), ("b", 3), ("b", 60), ("b", 61))
    ]
    anchors = wr.Input("markers", event_time="at", max_ahead=wr.forever, watermark="0 seconds")
    with TestDriver(over(by="k", retention="8 seconds", anchors=anchors), tmp_path / "job") as driver:
        for marker in (first, later[0]):
            driver.feed([{"k": "b", "t": marker["at"] + S, "n": 0}], "readings")
            driver.feed([marker], "markers")
        driver.op.flush()
        driver.restart()
        assert promised(driver) == ["a"]
        for marker in later[1:]:
            driver.feed([{"k": "b", "t": marker["at"] + S, "n": 0}], "readings")
            driver.feed([marker], "markers")
        assert promised(driver) == ["b"]


def promised(driver: TestDriver) -> list[str]:
    """The keys of which the state has a promise."""
    logic = AnchoredOvers(driver.definition)  # type: ignore[arg-type]
    rows = logic.pending.promises._keyed.all(driver.op.engine.staged.overlay)
    return [] if rows is None else rows.column("k").to_pylist()


def test_messages_before_an_obsolete_time_go_unless_a_window_waits_for_its_end(tmp_path: Path) -> None:
    last = {"at": 95 * MS, "i": 2, "start": 90 * MS, "end": 90 * MS, "obsolete": None}
    anchors = [*marked([(0, 1, 8)]), *marked([(5, 5, 9)], 1), ("markers", last)]
    with TestDriver(over(select="i"), tmp_path) as driver:
        for name, message in READINGS[:7] + anchors:
            driver.add(message, name)
        driver.next_offsets()
        kept = [m.payload["n"] for m in driver.op.get_messages(input="readings")]
        assert kept == [1, 2, 3, 4, 5, 6]  # the first waits for 8
        for name, message in [*READINGS[7:], ("readings", {"t": 95 * MS, "n": 10})]:
            driver.add(message, name)
        driver.next_offsets()
        assert [m.payload["n"] for m in driver.op.get_messages(input="readings")] == [5, 6, 7, 8, 9, 10]
        assert [m.payload["i"] for m in driver.op.get_messages(input="markers")] == [2]
        driver.check(dead_letters=True)


class Spoken:
    """From a stream of true and false, the times while it is true."""

    def on_message(self, key: Any, message: Any, state: Any, timers: Any) -> Any:
        if message["on"]:
            state.setdefault("since", timers.time)
        elif "since" in state:
            yield {"since": state.pop("since"), "until": timers.time}


def test_a_window_holds_all_messages_of_the_time_while_another_stream_is_true(tmp_path: Path) -> None:
    stamp = pa.timestamp("us", "UTC")
    spoken = wr.Process(
        event_time="at", function=Spoken, emits={"since": stamp, "until": stamp}, ttl=wr.forever, name="spoken", input="flags",
        max_ahead=wr.forever,
    )  # fmt: skip
    frame = wr.between("since", "until", closed="left")
    markers = wr.Input("spoken", event_time="at")
    chain = spoken.then(over(anchors=markers, frame=frame, retention="1 minute", select=("since",)))
    flags = {0: False, 15: True, 25: True, 40: False, 60: True, 70: False, 99: False}
    sent: list[tuple[str | None, dict[str, Any]]] = [
        ("flags", {"at": at * MS, "on": on}) for at, on in flags.items()
    ]
    rows, _ = played(tmp_path, chain, [*READINGS, *sent])
    assert [row["seen"] for row in rows] == [[2, 3], [6]]


@pytest.mark.parametrize("input", [None, "readings"])
def test_a_clock_drives_a_fixed_window_whatever_comes(input: str | None, tmp_path: Path) -> None:
    definition = wr.Over(
        event_time="t",
        input=input,
        anchors=wr.sources.clock("0.5 seconds"),
        frame=wr.range_between("-0.5 seconds", "0.5 seconds"),
        agg={"n": wr.count()},
        max_ahead=wr.forever,
    )
    rows, _ = played(tmp_path, definition, [(input, {"t": t * S // 2}) for t in (0, 1, 2)])
    assert [row["n"] for row in rows] == [2, 3, 2]
    assert [row["t"].timestamp() for row in rows] == [0, 0.5, 1]


def test_a_clock_continues_through_silence_from_its_start_to_the_last_message(tmp_path: Path) -> None:
    clock = wr.sources.clock("2 seconds", start=3 * S)
    options: dict[str, Any] = {"frame": ("-2 seconds", 0), "agg": {"n": wr.count()}, "input": None}
    sent = [(None, {"t": t * S}) for t in (1, 4, 5, 11)]
    rows, _ = played(tmp_path / "all", over(anchors=clock, **options), sent)
    assert [(row["t"].timestamp(), row["n"]) for row in rows] == [(3, 1), (5, 2), (7, 1), (9, 0), (11, 1)]
    rows, _ = played(tmp_path / "some", over(anchors=clock, empty="skip", **options), sent)
    assert [row["t"].timestamp() for row in rows] == [3, 5, 7, 11]


def test_nothing_is_emitted_before_the_aggregated_input_has_come_to_the_end_of_the_window(
    tmp_path: Path,
) -> None:
    with TestDriver(over(), tmp_path) as driver:
        for name, message in [*READINGS[:3], *marked([(0, 1, 5)]), *marked([(0, 1, 5)], 60)]:
            driver.add(message, name)
        driver.next_offsets()
        assert driver.committed_panes() == []
        for name, message in READINGS[3:6]:
            driver.add(message, name)
        driver.next_offsets()
        assert driver.committed_panes() == []  # another may come at 5
        driver.add({"t": 51 * MS, "n": 51}, "readings")
        driver.next_offsets()
        assert [row.values["seen"] for row in driver.committed_panes()] == [[1, 2, 3, 4, 5]]
        driver.check(dead_letters=True)


def test_windows_that_cannot_be_are_dead_letters(tmp_path: Path) -> None:
    def at(second: int, start: Any, end: Any) -> tuple[str | None, dict[str, Any]]:
        return ("markers", {"at": second * S, "start": start, "end": end, "obsolete": None})

    sent = [
        at(9, 8 * S, 7 * S),
        at(9, None, 9 * S),
        at(9, 8 * S, None),
        at(9, 3 * S, 9 * S),
        at(9, 8 * S, 15 * S),
    ]
    definition = over(retention="5 seconds")
    rows, letters = played(
        tmp_path, definition, [*sent, at(9, 4 * S, 14 * S), ("readings", {"t": 0, "n": 0})]
    )
    assert letters == ["malformed"] * 3 + ["out_of_retention"] * 2
    assert len(rows) == 1


def test_windows_are_expressions_over_the_anchor_or_a_function_of_whole_tables(tmp_path: Path) -> None:
    def create(anchors: pa.Table) -> pa.Table:
        if any(long < 0 for long in anchors["long"].to_pylist()):
            raise ValueError("a negative length")
        at = anchors["at"].cast(pa.int64())
        return pa.table({"start": at, "end": pc.add(at, anchors["long"]), "obsolete": at})

    frames = {
        "expressions": wr.between(wr.col("begin"), wr.col("begin") + wr.col("long")),
        "function": wr.between(function=create, name="create"),
    }
    for name, frame in frames.items():
        ranges = [(2, 20), (5, -1), (3, 10)] if name == "function" else [(2, 20), (3, 10)]
        sent = [
            ("markers", {"at": at * 10 * MS, "begin": at * 10 * MS, "long": long * MS}) for at, long in ranges
        ]
        definition = over(
            frame=frame,
            retention="1 second",
            anchors=wr.Input("markers", event_time="at", watermark="1 second"),
        )
        rows, letters = played(tmp_path / name, definition, [*READINGS, *sent])
        assert [row["seen"] for row in rows] == [[2, 3, 4], [3, 4]]
        assert letters == (["function_failed"] if name == "function" else [])


def test_keys_of_both_inputs_are_one_where_they_are_equal_and_else_refused(tmp_path: Path) -> None:
    definition = over(by="k", frame=("-1 second", "1 second"), agg={"n": wr.count()}, select=())
    sent: list[tuple[str | None, dict[str, Any]]] = [
        ("readings", {"t": 0, "k": 1}), ("readings", {"t": 0, "k": None}),
        ("markers", {"at": 0, "k": 1.0}), ("markers", {"at": 0, "k": None}), ("markers", {"at": 0, "k": 1.5}),
    ]  # fmt: skip
    rows, _ = played(tmp_path, definition, sent)
    assert [(row["k"], row["n"]) for row in rows] == [(1.0, 1), (None, 1), (1.5, 0)]
    text = pa.table({"at": pa.array([0]), "k": ["one"]})
    with definition.open(str(tmp_path / "other")) as op, pytest.raises(TypeClash, match="cannot be compared"):
        op.add_messages({"readings": pa.table({"t": pa.array([0]), "k": pa.array([1])}), "markers": text})
        op.flush()


def test_windows_around_anchors_run_before_and_after_other_operators(tmp_path: Path) -> None:
    counts = wr.Aggregate(
        event_time="at",
        window=wr.tumbling("100 ms"),
        agg={"total": wr.sum("n")},
        emit=wr.Emit.append(),
        retention="1 minute",
    )
    before = over(agg={"n": wr.count()}, retention="1 second", select="i").then(counts)
    sent = marked([(0, 1, 5), (0, 2, 4)]) + READINGS
    with TestDriver(before, tmp_path / "before") as driver:
        for name, message in sent:
            driver.add(message, name)
        driver.drain()
        driver.check(dead_letters=True)
        assert [pane.values["total"] for pane in driver.committed_panes()] == [8]
    # Of what a window of another operator says, the messages around its end.
    per_tenth = wr.Aggregate(
        event_time="t", window=wr.tumbling("40 ms"), agg={"some": wr.count()}, emit=wr.Emit.append(), retention="1 minute",
        name="tenths", input="readings", max_ahead=wr.forever,
    )  # fmt: skip
    behind = per_tenth.then(
        over(frame=("-15 ms", "5 ms"), anchors=wr.Input("tenths", event_time="window_time"))
    )
    with TestDriver(behind, tmp_path / "behind") as driver:
        for name, message in READINGS:
            driver.add(message, name)
        driver.drain()
        driver.check(dead_letters=True)
        assert [(row.values["some"], row.values["seen"]) for row in driver.committed_panes()] == [
            (4, [3, 4]), (4, [7, 8]), (2, []),
        ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="never move"):
        over().then(counts)


LATE = wr.Emit(late=wr.every_batch, mode="retracting")
LAST_HOUR, NEXT_HOUR = wr.range_between("-1 hour", 0), wr.range_between(0, "1 hour", closed="right")


DEFINITIONS = [
    lambda: over(frame=LAST_HOUR, emit=LATE, allowed_lateness="1 hour"),
    lambda: over(frame=LAST_HOUR, agg={"a": wr.count(), "b": wr.count().over(NEXT_HOUR)}),
    lambda: over(),
    lambda: over(by="k", retention="1 day", empty="skip", select=("i",)),
    lambda: over(frame=wr.range_between("-1 second", "2 seconds", closed="left")),
    lambda: over(frame=("-1 second", 0), anchors=wr.sources.clock("1 minute", start=5), input=None),
]


@pytest.mark.parametrize("make", DEFINITIONS)
def test_a_definition_reads_back_from_its_text_and_from_a_pickle(make: Any) -> None:
    definition = make()
    for again in (evaluate(repr(definition)), pickle.loads(pickle.dumps(definition))):
        assert again == definition
        assert again.fingerprint == definition.fingerprint
    assert len({make().fingerprint for make in DEFINITIONS}) == len(DEFINITIONS)


def test_what_cannot_be_defined_is_refused() -> None:
    between = wr.between("start", "end")
    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ConfigurationError, "two inputs", {"input": None}),
        (ConfigurationError, "two inputs", {"input": "markers"}),
        (BadWindow, "use wr.between", {"frame": wr.rows_between(-1, 0)}),
        (BadWindow, "use wr.range_between", {"anchors": wr.sources.clock("1 s"), "frame": between}),
        (ConfigurationError, "a clock has no key", {"anchors": wr.sources.clock("1 s"), "by": "k"}),
        (RetentionMissing, "how far from its anchor", {"frame": between}),
        (RetentionMissing, "promises nothing", {"by": "k"}),
        (BadDuration, "is negative", {"frame": ("-1 s", 0), "retention": "-1 s"}),
        (ConfigurationError, "leave it out", {"ttl": "1 s"}),
        (ConfigurationError, "empty='no'", {"empty": "no"}),
        (BadWindow, "frames are of time", {"agg": {"n": wr.count().over(3)}}),
        (BadWindow, "frames are of time", {"agg": {"n": wr.count().over("3 s")}}),
        (
            BadWindow,
            "frames are of time",
            {"agg": {"n": wr.count().over("3 s"), "m": wr.count()}, "frame": None},
        ),
        (
            ConfigurationError,
            "one that comes late is not",
            {"emit": wr.Emit(early=wr.every_batch, late=wr.never)},
        ),
        (BadTrigger, "wr.every_batch or", {"emit": wr.Emit(early=wr.every(3)), "frame": ("-1 s", 0)}),
        (
            ConfigurationError,
            "made when nothing comes before",
            {
                "anchors": wr.sources.clock("1 s"),
                "frame": ("-1 s", 0),
                "allowed_lateness": "1 s",
                "emit": LATE,
            },
        ),
        (BadWindow, "is of anchors", {"anchors": None, "frame": between}),
        (
            ConfigurationError,
            "leave it out",
            {"anchors": None, "frame": ("-1 s", 0), "retention": None, "empty": "skip"},
        ),
        (ConfigurationError, "anchors=3", {"anchors": 3}),
        (BadWatermark, "of all inputs", {"watermark": wr.explicit()}),
        (ConfigurationError, "is emitted twice", {"select": ("seen",)}),
    ]
    for error, message, options in refused:
        with pytest.raises(error, match=message):
            over(**options)
    for arguments in [
        {},
        {"start": "a"},
        {"start": 3, "end": "b"},
        {"function": len},
        {"start": "a", "end": "b", "closed": "x"},
    ]:
        with pytest.raises(BadWindow):
            wr.between(**arguments)
