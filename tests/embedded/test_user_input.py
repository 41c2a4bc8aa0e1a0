"""First inputs of users: dicts, data frames, threads, a full disk; and the answers."""

import errno
import resource
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.stores.rocks import RocksKV
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
ROWS = [{"t": i * SECOND, "k": "ab"[i % 2], "v": i} for i in range(4)]
COUNTS = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "total": wr.sum("v")},
    retention="1 day",
)
BOTH = wr.Join(
    left=wr.Input("orders", event_time="t"),
    right=wr.Input("shipments", event_time="t"),
    on="k",
    within=("0 seconds", "1 second"),
    retention="1 day",
)
ALL = [("a", 2, 2), ("b", 2, 4)]


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "job")


def found(op: Any) -> list[tuple[Any, ...]]:
    return [(w.key["k"], w.messages, w.values["total"]) for w in op.get_windows()]


@pytest.mark.parametrize(
    "container",
    [pc.field("s", "x"), pc.struct_field(wr.col("s"), ["x"]), pc.list_value_length(wr.col("l"))],
    ids=str,
)
def test_messages_say_what_lists_and_structs_are_that_expressions_take_apart(
    location: str, container: Any
) -> None:
    table = pa.table({"t": pa.array([0, 1]), "k": ["a", "a"], "s": [{"x": 1}, {"x": 2}], "l": [[5], [6, 7]]})
    parts = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("1 s"),
        agg={"n": wr.sum(container)},
        where=container > 0,
        retention="1 s",
    )
    for number, way in enumerate(("table", "dicts", "one by one")):
        with parts.open(f"{location}-{number}", clock=ManualClock()) as op:
            for value in (
                [table] if way == "table" else [table.to_pylist()] if way == "dicts" else table.to_pylist()
            ):
                (op.add_message if isinstance(value, dict) else op.add_messages)(value)
            op.add_message({"t": 2, "k": "a", "s": None, "l": None})
            assert [w.values for w in op.get_windows()] == [{"n": 3}]
            op.add_message({"t": 3, "k": "a", "s": "text", "l": {"x": 1}})
            op.flush()
            assert [letter.reason for letter in op.dead_letters()] == ["malformed"]
    with (
        parts.open(f"{location}-null", clock=ManualClock()) as op,
        pytest.raises(e.UnknownColumn, match=r"open\(schema="),
    ):
        op.add_message({"t": 0, "k": "a", "s": None, "l": None})


@pytest.mark.parametrize(
    "many",
    [
        ROWS,
        iter(ROWS),
        [wr.Message(r) for r in ROWS],
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        pd.DataFrame(ROWS, index=[3, 1, 2, 0]),
        pd.DataFrame(ROWS).assign(t=lambda d: pd.to_datetime(d["t"], unit="us", utc=True)),
        pl.DataFrame(ROWS),
        pl.DataFrame(ROWS).with_columns(pl.col("k").cast(pl.Categorical)),
    ],
    ids=lambda many: type(many).__name__,
)
def test_many_messages_may_be_dicts_tables_or_data_frames(location: str, many: Any) -> None:
    with COUNTS.open(location, clock=ManualClock()) as op:
        op.add_messages(many)
        assert found(op) == ALL and op.columns == ["t", "k", "v"]
        assert op.next_offsets() == {("", 0): 4}


def test_one_message_may_be_a_dict_in_an_operator_a_join_and_a_chain(location: str) -> None:
    with COUNTS.open(location, clock=ManualClock()) as op:
        for row in ROWS:
            op.add_message(row)
        assert found(op) == ALL
    with BOTH.open(location + "2", clock=ManualClock()) as join:
        join.add_message(ROWS[0], "orders")
        join.add_messages({"orders": ROWS[1:], "shipments": pd.DataFrame(ROWS)})
        assert len(join.get_result()) == 4
    chain = wr.chain(
        wr.Aggregate(by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count()}, name="one",
                     retention="1 day", emit=wr.Emit.append()),
        wr.Aggregate(event_time="window_time", window=wr.tumbling("1 hour"), agg={"n": wr.sum("n")}, name="two",
                     retention="1 day"),
    )  # fmt: skip
    with chain.open(location + "3", clock=ManualClock()) as op:
        op.add_message(ROWS[0])
        op.add_messages(pl.DataFrame(ROWS[1:]))
        op.drain()
        assert [p["n"] for p in op.get_result()] == [4]


def test_times_may_be_written_in_any_way_by_turns(location: str) -> None:
    with COUNTS.open(location, clock=ManualClock()) as op:
        op.add_message(ROWS[0])
        op.add_messages(pa.Table.from_pylist(ROWS[1:2]))
        op.add_messages(pa.table({"t": ["1970-01-01T00:00:02Z", "never"], "k": ["a", "a"], "v": [2, 2]}))
        op.add_messages(
            pd.DataFrame({"t": [pd.Timestamp("1970-01-01 01:00:03+01:00")], "k": ["b"], "v": [3]})
        )
        assert found(op) == ALL
        assert [(x.reason, x.position) for x in op.dead_letters()] == [("malformed", wr.Position("", 0, 3))]


@pytest.mark.parametrize("to", ["10", 1.5, 2**63, None, True])
def test_a_watermark_that_is_no_time_is_refused_and_breaks_nothing(location: str, to: Any) -> None:
    with COUNTS.open(location, clock=ManualClock()) as op:
        op.add_messages(ROWS)
        with pytest.raises(e.BadInstant, match=r"watermark .* is no time"):
            op.advance_watermark(to)
        with pytest.raises(e.BadInstant, match=r"start .* is no time: write it as"):
            op.get_windows("noon", 2)
    with COUNTS.open(location, clock=ManualClock()) as op:
        assert found(op) == ALL


@pytest.mark.parametrize(
    ("many", "error"),
    [
        (ROWS[0], "is a dict, not many messages: add_message takes one"),
        (wr.Message(ROWS[0]), "is a Message, not many messages: add_message takes one"),
        ("t=1", "is a str, not many messages"),
        (7, "is a int, not many messages"),
        ([1], "is a int and no message"),
    ],
)
def test_what_is_not_many_messages_is_refused_with_the_remedy(location: str, many: Any, error: str) -> None:
    with COUNTS.open(location, clock=ManualClock()) as op:
        with pytest.raises(e.InputError, match=error):
            op.add_messages(many)
        assert op.next_offsets() == {}


def test_a_join_is_shown_which_of_its_columns_no_message_has(location: str) -> None:
    misspelt = wr.Join(
        left=wr.Input("orders", event_time="t"),
        right=wr.Input("shipments", event_time="time"),
        on={"k": "key"},
        within=("0 seconds", "1 second"),
        retention="1 day",
    )
    with misspelt.open(location, clock=ManualClock()) as op:
        op.add_message(ROWS[0], "orders")
        for column in ("time", "key"):
            row = {**ROWS[0], **{n: 1 for n in ("time", "key") if n != column}}
            with pytest.raises(e.UnknownColumn, match=f"'{column}' of 'shipments' is in no message so far"):
                op.add_message(row, "shipments")
        assert op.next_offsets() == {"orders": {("", 0): 1}, "shipments": {}}
        op.add_messages([{"time": 1, "key": "a"}, {"time": 1}], "shipments")
        assert op.dead_letters() == []


def test_threads_that_share_an_operator_take_turns(location: str) -> None:
    failed: list[BaseException] = []
    with COUNTS.open(location, clock=ManualClock()) as op:

        def work(partition: int) -> None:
            try:
                for i in range(300):
                    op.add_message(wr.Message({"t": i, "k": "a", "v": 1}, wr.Position("s", partition, i)))
                    if i % 50 == partition:
                        op.timeout()
                        op.get_windows()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(p,)) for p in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == [] and found(op) == [("a", 1200, 1200)]
        assert op.next_offsets() == {("s", p): 300 for p in range(4)}


# -- disks ----------------------------------------------------------------------------------------------------------


def test_a_disk_that_refuses_is_reported_with_the_place_and_what_was_staged_is_committed_later(
    location: str,
) -> None:
    with COUNTS.open(location, clock=ManualClock()) as op:
        op.add_messages(ROWS)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
        try:
            for call in (op.timeout, op.get_result, op.next_offsets):
                with pytest.raises(
                    e.DiskFailed, match=r"job.* cannot be written: File too large.*and call again"
                ) as error:
                    call()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert isinstance(error.value, OSError) and error.value.errno == errno.EFBIG
        op.add_message(ROWS[0])
        assert op.next_offsets() == {("", 0): 5} and op.counters["rows"] == 5


def test_a_place_that_cannot_be_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        e.DiskFailed,
        match=r"file/job.*' of .* cannot be written: (File exists|Not a directory).*name a folder",
    ):
        COUNTS.open(str(tmp_path / "file" / "job"))


def test_abandoning_on_a_full_disk_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the committed step: the store that could not be flushed is rebuilt."""

    def full(self: RocksKV) -> None:
        raise e.DiskFailed("the store cannot be written: No space left on device")

    for leave in ("abandon", "raise", "close"):
        op = COUNTS.open(str(tmp_path / leave))
        op.add_messages(ROWS)
        op.flush()
        with monkeypatch.context() as patch:
            patch.setattr(RocksKV, "flush", full)
            if leave == "close":
                with pytest.raises(e.DiskFailed, match="No space left"):
                    op.close()
            elif leave == "raise":
                with pytest.raises(ZeroDivisionError), op:
                    raise ZeroDivisionError
            else:
                op.abandon()
        with COUNTS.open(str(tmp_path / leave)) as op:
            assert found(op) == ALL
