"""Messages of a large join lie in columns by their keys: a commit costs what it touches, and nothing grows but what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import xxhash

import windrow as wr
from tests.counting import CountingKV
from tests.operators.join.test_time_layout import Form, messages
from windrow.core.byte_order import decode_i64
from windrow.operators.join.hash_layout import KeyedJoinOperator
from windrow.operators.join.time_layout import WIDE, WIDTH
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.stores.keyed_event_store import FAN, hashes_of
from windrow.stores.run_cache import Decoded

S = 1_000_000
HOUR = 3_600 * S


def large(how: str = "left", **options: Any) -> Form:
    left, right = (wr.Input(name, event_time="t", max_ahead=wr.forever) for name in ("l", "r"))
    options = {"within": ("-1 hour", "1 hour"), "allowed_lateness": "0 seconds", **options}
    form = Form(wr.Join(left=left, right=right, on="k", how=how, **options))
    assert isinstance(form.logic, KeyedJoinOperator)
    return form


def keyed(name: str, rows: Sequence[tuple[int, int]], first: int = 0) -> dict[str, pa.Table]:
    """Messages of (key, time)."""
    table = messages(name, [time for _, time in rows], first)[name]
    at = table.column_names.index("k")
    return {name: table.set_column(at, "k", pa.array([key for key, _ in rows], pa.int64()))}


def runs(form: Form, cf: str) -> int:
    return sum(key[:1] == b"i" for key, _ in form.values(cf))


@pytest.mark.parametrize("how", ["inner", "full", "semi"])
def test_many_small_steps_leave_few_values(how: str) -> None:
    form, most = large(how), 0
    for step in range(150):
        at_us = step * S // 10
        rows = [(2 * step, at_us), (step % 7, at_us)]
        form.ingest({**keyed("l", rows, 2 * step), **keyed("r", rows, 2 * step)})
        if step % 10 == 9:
            form.advance(at_us - S)
            most = max(most, *(runs(form, cf) for cf in ("left.messages", "right.messages")))
            if how != "inner":
                assert runs(form, "left.matched") < 3 * FAN and len(form.values("left.open")) < 60
    assert most < 3 * FAN


@pytest.mark.parametrize("how", ["left", "semi"])
def test_a_commit_into_a_large_window_reads_what_it_touches(how: str) -> None:
    form, read = large(how), []
    form.kv = kv = CountingKV(form.logic.cfs())
    for step in range(8):
        rows = [(key, step * S + key) for key in range(6_000)]
        form.ingest(keyed("l", rows, 6_000 * step))
        kv.clear()
        panes = form.ingest(keyed("r", [(5, step * S + 5)], step)).panes
        assert sum(map(len, panes)) == (step + 1 if how == "left" else step == 0)
        form.advance(step * S)  # nothing goes
        read.append(kv.read.total())
    stored = sum(len(value) for _, value in form.values("left.messages"))
    assert max(read) < stored / 8


def test_a_year_in_one_table_shares_stretches_until_it_is_evicted() -> None:
    day, form = 86_400 * S, large()
    form.ingest(keyed("l", [(i % 3, i * day) for i in range(3_000)]))
    assert len(form.values("left.messages")) < 150
    assert decode_i64(form.kv.get("join.aux", WIDE[0]) or b"") > day
    [pane] = form.ingest(keyed("r", [(0, 300 * day + S), (0, 300 * day - HOUR - S)])).panes
    assert pane.column("l_t").to_pylist() == [300 * day]
    [pane] = form.advance(2_000 * day).panes
    assert pane.column("l_t").to_pylist() == [i * day for i in range(2_000) if i != 300]
    assert form.advance(2_000 * day + S).panes == []
    assert len(form.kept(0)) == 1_000


def test_a_message_is_noted_as_matched_once_however_often_it_is() -> None:
    form = large()
    form.ingest(keyed("l", [(1, S), (2, S)]))
    for n in range(3):
        form.ingest(keyed("r", [(1, S + n)], n))
    assert [key[:1] for key, _ in form.values("left.matched")] == [b"b", b"i"]
    assert runs(form, "left.messages") == 1
    [pane] = form.advance(2 * HOUR + 3 * S).panes
    assert pane.column("k").to_pylist() == [2]


def test_how_long_stretches_are_stays_when_messages_are_kept_for_longer() -> None:
    form = large("inner", within=None, retention="1 hour")
    form.ingest(keyed("l", [(1, S)]))
    longer = replace(form.logic.definition.retention, time_us=100 * HOUR)
    other = Form(form.logic.definition._changed(retention=longer))
    other.kv = form.kv
    [pane] = other.ingest(keyed("r", [(1, 90 * HOUR)])).panes
    assert pane.column("l_t").to_pylist() == [S]
    assert decode_i64(form.kv.get("join.aux", WIDTH) or b"") == 2 * HOUR // 4


def test_messages_of_a_key_are_given_in_the_order_of_time_then_position() -> None:
    form = large()
    form.ingest(keyed("l", [(2, 5), (1, 9), (1, 3), (2, 5), (-1, 4)]))
    kept = form.logic.kept(form.kv, 0, (0, None), (9, None), None).table
    order = [(-1, 4, 4), (1, 3, 2), (1, 9, 1), (2, 5, 0), (2, 5, 3)]
    columns = [kept.column(c).to_pylist() for c in ("k", "t", OFFSET)]
    assert list(zip(*columns, strict=True)) == order
    kept = form.logic.kept(form.kv, 0, (3, None), (5, 0), None).table
    assert kept.column(OFFSET).to_pylist() == [4, 2, 0]


def test_values_are_what_the_page_of_formats_says() -> None:
    form = large()
    form.ingest({**keyed("l", [(7, HOUR)]), **keyed("r", [(7, HOUR)])})
    [(block, rows), (run, value)] = form.values("left.messages")
    stretch = b"\x80" + (HOUR // 2 * 2).to_bytes(7, "big")  # 2 hours / 4
    assert run == b"i" + stretch + (1).to_bytes(8, "big") and block == b"b" + run[1:] + bytes(4)
    assert (value[0], int.from_bytes(value[1:5], "big")) == (1, 1)
    assert (decode_i64_plain(value[9:17]), decode_i64_plain(value[17:25])) == (HOUR, HOUR)
    assert int.from_bytes(value[25:29], "big") == 1
    [of_key] = hashes_of([bytes.fromhex("118000000000000007")]).tolist()
    assert int.from_bytes(value[29:33], "big") == of_key
    assert value[33:49] == xxhash.xxh3_128_digest(value[54:] + rows)
    assert int.from_bytes(value[49:53], "big") >= 16 and value[53] == 0  # rows of a block; no index
    schema = pa.ipc.read_schema(pa.py_buffer(value[54:]))
    names = [SOURCE, PARTITION, OFFSET, ORDINAL, "__time"]
    assert schema.names == ["k", "t", *names, "__hash"]
    assert pa.ipc.read_record_batch(pa.py_buffer(rows), schema).column("__hash").to_pylist() == [of_key]
    [(key, _), _] = form.values("left.matched")
    assert key[9:17] == (2).to_bytes(8, "big")


def decode_i64_plain(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def test_what_a_step_writes_does_not_depend_on_what_the_process_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit is a function of its state: messages that met lie in the order of positions, however they were read."""
    stored = []
    for room in (0, 1 << 30):
        monkeypatch.setattr("windrow.stores.keyed_event_store.DECODED", Decoded(room))
        form = large()
        form.ingest(keyed("l", [(n % 1_500, S + n) for n in range(6_000)]))
        form.ingest(keyed("l", [(7, S)], 6_000))
        form.ingest(keyed("r", [(7, S)]))
        stored.append(form.values("left.matched"))
    assert len(stored[0]) > 0 and stored[0] == stored[1]
