"""Whatever a call raises, no message is lost or counted twice; what cannot be counted is one dead letter, and nothing else."""

import gc
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
import structlog

import windrow as wr
from windrow.core import errors as e
from windrow.testing.clock import ManualClock

SECOND = 1_000_000


def define(**changed: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "total": wr.sum("v")},
        "retention": "1 day",
    }
    return wr.Aggregate(**(options | changed))


def message(offset: int, payload: dict[Any, Any] | None = None, **more: Any) -> wr.Message:
    return wr.Message({"t": SECOND, "k": "a", "v": 1} | (payload or {}) | more, wr.Position("s", 0, offset))


def without(offset: int, column: str) -> wr.Message:
    whole = message(offset)
    return wr.Message({n: v for n, v in whole.payload.items() if n != column}, whole.position)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "job")


def counted(op: Any) -> int:
    return sum(w.messages for w in op.get_windows())


def one_by_one(op: Any, messages: list[wr.Message]) -> None:
    for one in messages:
        op.add_message(one)


def as_list(op: Any, messages: list[wr.Message]) -> None:
    op.add_messages(messages)


WAYS = {"one by one": one_by_one, "together": as_list}
#: A message that cannot be counted, and of which definition.
BAD: dict[str, tuple[dict[Any, Any], dict[str, Any]]] = {
    "a key that is no Unicode": ({"k": "\ud800"}, {}),
    "text in a sum": ({"v": "a"}, {}),
    "a number beyond 64 bits": ({"v": 2**70}, {}),
    "a list in a sum": ({"v": [1]}, {}),
    "a column without a name": ({7: 1}, {}),
    "a name that is no Unicode": ({"\udfff": 1}, {}),
    "a time that is none": ({"t": "yesterday"}, {}),
    "a division by zero": ({"v": 0}, {"agg": {"n": wr.count(), "total": wr.sum(wr.lit(12) / wr.col("v"))}}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", BAD)
def test_a_message_that_cannot_be_counted_is_one_dead_letter_wherever_it_comes(
    location: str, what: str, way: str
) -> None:
    payload, changed = BAD[what]
    with define(**changed).open(location, clock=ManualClock()) as op:
        for batch in range(3):
            messages = [message(5 * batch + i) for i in range(5)]
            messages[2 * batch] = message(7 * batch, payload)
            WAYS[way](op, messages)
            op.timeout()
        assert counted(op) == 12
        letters = op.dead_letters()
        assert [(x.reason, x.position) for x in letters] == [
            ("malformed", wr.Position("s", 0, 7 * batch)) for batch in range(3)
        ]
        assert op.counters["rows"] == 15 and op.next_offsets() == {("s", 0): 15}


@pytest.mark.parametrize("together", [True, False])
def test_in_a_join_a_message_that_cannot_be_counted_is_one_dead_letter_too(
    location: str, together: bool
) -> None:
    join = wr.Join(
        left=wr.Input("l", event_time="t"),
        right=wr.Input("r", event_time="t"),
        on="k",
        within=("0 seconds", "5 seconds"),
        where=wr.lit(6) / wr.col("v") > 1,
        retention="1 day",
    )
    with join.open(location, clock=ManualClock()) as op:
        op.add_message(without(0, "v"), "l")
        right = [message(0), message(1, v=0), message(2, k="\ud800"), message(3, v="x"), message(4, v=3)]
        if together:
            op.add_messages({"r": right})
        else:
            for one in right:
                op.add_message(one, "r")
        assert len(op.get_result()) == 2
        assert [(x.reason, x.position, x.input) for x in op.dead_letters()] == [
            ("malformed", wr.Position("s", 0, offset), "r") for offset in (1, 2, 3)
        ]
        assert op.next_offsets() == {"l": {("s", 0): 1}, "r": {("s", 0): 5}}


@pytest.mark.parametrize("way", WAYS)
def test_a_column_that_one_message_lacks_is_null_and_one_of_ours_is_passed_over(
    location: str, way: str
) -> None:
    with define().open(location, clock=ManualClock()) as op:
        WAYS[way](op, [message(0), without(1, "v"), message(2, __watermark=9, __offset="x"), without(3, "k")])
        assert [(w.key["k"], w.messages, w.values["total"]) for w in op.get_windows()] == [
            (None, 1, 1),
            ("a", 3, 2),
        ]
        assert op.dead_letters() == []


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("k=a", "'k=a' is a str and no message: give wr.Message"),
        ([{"t": 1}], "is a list and no message: add_messages takes many"),
        (wr.Message(None), "is no mapping"),  # type: ignore[arg-type]
        (wr.Message({}, ("s", 0)), r"\('s', 0\) is none: give wr.Position"),  # type: ignore[arg-type]
        (wr.Message({}, wr.Position("s", 0, 2**63)), "9223372036854775808"),
        (wr.Message({}, wr.Position("s", 0, 1.5)), "1.5"),  # type: ignore[arg-type]
        (wr.Message({}, wr.Position("\ud800", 0, 1)), "is none"),
    ],
)
def test_what_is_no_message_is_refused_at_the_call(location: str, value: Any, error: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(message(0))
        with pytest.raises(e.InputError, match=error):
            op.add_message(value)
        if not isinstance(value, list):
            with pytest.raises(e.InputError):
                op.add_messages([message(1), value])
        assert counted(op) == 1 and op.next_offsets() == {("s", 0): 1}


@pytest.mark.parametrize(
    "wrong",
    [
        define(by="key"),
        define(event_time="time"),
        define(agg={"n": wr.sum("vv")}),
        define(agg={"n": wr.sum(wr.col("vv") * 2)}),
        define(agg={"n": wr.count().where(wr.col("vv") > 2)}),
        define(ids=wr.ids("order")),
        define(by="key", window=wr.tuples(2), retention=wr.forever),
    ],
    ids=repr,
)
def test_a_column_that_no_message_has_is_said_at_the_first_call(location: str, wrong: wr.Aggregate) -> None:
    with wrong.open(location, clock=ManualClock()) as op:
        table = pa.table({"k": ["a"], "t": [0], "v": [0]})
        for messages in (message(0), [message(0), message(1)], table):
            feed = op.add_message if isinstance(messages, wr.Message) else op.add_messages
            with pytest.raises(e.UnknownColumn) as refused:
                feed(messages)  # type: ignore[arg-type]
            error = r"column '(key|time|vv|order)' of .+ is in no message so far, which have \['k', 't', 'v'\]: (use one|did)"
            assert re.match(error, refused.value.message) and refused.value.message.count("which ha") == 1
        assert op.next_offsets() == {} and op.counters == {}


def test_what_raises_for_code_of_the_user_leaves_the_messages_to_be_counted(location: str) -> None:
    angry = True

    def watermark(marks: Any, now_us: int) -> int:
        if angry and max(marks.values(), default=0) > 2 * SECOND:
            raise RuntimeError("no idea")
        return int(max(marks.values(), default=0))

    definition = define(watermark=wr.custom(watermark, name="angry"))
    op = definition.open(location, clock=ManualClock())
    for i in range(6):
        op.add_message(message(i, t=i * SECOND))
    for call in (op.timeout, op.get_windows, lambda: op.add_messages([message(6)]), op.next_offsets):
        with pytest.raises(RuntimeError, match="no idea"):
            call()
    angry = False
    op.add_message(message(6))
    assert counted(op) == 7
    angry = True
    with pytest.raises(RuntimeError):
        op.add_messages([message(7), message(8, t=9 * SECOND)])
    angry = False
    op.close()
    with definition.open(location, clock=ManualClock()) as op:
        assert op.next_offsets() == {("s", 0): 7} and counted(op) == 7


# -- interrupts -----------------------------------------------------------------------------------------------------


class Interrupt:
    """Ctrl-C at the n-th line that windrow runs.

    What is done where garbage is collected is not interrupted: nobody could be told, and it would be what earlier tests left.
    """

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        gc.disable()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        gc.enable()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if "windrow" not in frame.f_code.co_filename or "testing" in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._trace


JOBS: dict[str, Any] = {
    "runs": define(),
    "medians": define(agg={"m": wr.median("v")}),
    "chain": wr.chain(
        define(name="first", emit=wr.Emit.append()),
        define(name="second", by=(), event_time="window_time", agg={"n": wr.sum("n")}, emit=wr.Emit()),
    ),
}


def fed(op: Any, first: int, total: int) -> Iterator[Callable[[], object]]:
    """Calls that feed the rest, mixed with others."""
    at = first
    while at < total:
        batch = [message(i, t=4 * i * SECOND, k="ab"[i % 2]) for i in range(at, min(at + 9, total))]
        if at % 3 == 0:
            yield lambda batch=batch: op.add_messages(batch)
        else:
            for one in batch:
                yield lambda one=one: op.add_message(one)
        at += len(batch)
        yield op.timeout if at % 8 else op.get_windows


# A tracer can raise where no Ctrl-C can: between the last line under a `with` and the close of its file.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("job", JOBS)
def test_interrupts_at_any_line_lose_nothing_and_double_nothing(location: str, job: str) -> None:
    chance, total, hits = random.Random(job), 0, 0
    definition = JOBS[job]
    op = definition.open(location, clock=ManualClock())
    for _ in range(25):
        total += 9
        lines = Interrupt(int(10 ** chance.uniform(0, 4)))
        try:
            with lines:
                for call in fed(op, op.next_offsets().get(("s", 0), 0), total):
                    call()
                if chance.random() < 0.3:
                    op.close()
        except (KeyboardInterrupt, e.OperatorClosed):
            hits += lines.left == 0
            if chance.random() < 0.5:
                continue
        op.close()
        gc.collect(1)  # what the struck call left, not all that the process has
        op = definition.open(location, clock=ManualClock())
    op.close()
    op = definition.open(location, clock=ManualClock())  # the last interrupt may have torn it
    for call in fed(op, op.next_offsets().get(("s", 0), 0), total):
        call()
    assert hits > 5
    windows = op.get_windows(operator="first") if job == "chain" else op.get_windows()
    assert sum(w.messages for w in windows) == total
    assert op.next_offsets() == {("s", 0): total} and op.counters["rows"] == total
    op.close()


def test_what_is_stopped_between_record_and_store_commits_nothing_more(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError("no room")

    op = define().open(location, clock=ManualClock())
    op.add_message(message(0))
    monkeypatch.setattr(op.engine.shard, "apply", full)
    with pytest.raises(MemoryError):
        op.timeout()
    with pytest.raises(e.OperatorClosed, match=r"abandoned when MemoryError\('no room'\).*next_offsets"):
        op.add_message(message(1))
    op.close()
    with define().open(location, clock=ManualClock()) as op:
        assert op.next_offsets() == {("s", 0): 1} and counted(op) == 1


def test_a_log_that_cannot_be_written_does_not_undo_or_repeat_a_commit(location: str) -> None:
    class Full:
        def msg(self, *_: Any, **__: Any) -> None:
            raise OSError("no space left on device")

        debug = info = warning = error = msg

    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(logger_factory=lambda *_: Full(), cache_logger_on_first_use=False)
    try:
        with define().open(location, clock=ManualClock()) as op:
            op.add_messages([message(0), message(1, v="a"), message(2, t=11 * SECOND)])
            assert [p["n"] for p in op.get_result()] == [1]
            assert len(op.dead_letters()) == 1
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)


def test_a_table_of_a_step_that_fails_is_not_taken(location: str) -> None:
    table = pa.table({"t": [SECOND, SECOND], "k": ["a", "b"], "v": ["x", "y"]})
    with define().open(location, clock=ManualClock()) as op:
        with pytest.raises(e.TypeClash):
            op.add_messages(table)
        op.add_messages(table.set_column(2, "v", pa.array([1, 2])))
        assert counted(op) == 2 and op.next_offsets() == {("", 0): 2}
