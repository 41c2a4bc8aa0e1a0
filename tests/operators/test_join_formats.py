"""What docs/reference/formats.md shows of a join's state is what the operator writes, and what it reads again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.time import END_OF_TIME_US
from windrow.operators.join.stored import FORMER, LAYOUT
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.filed_rows import unpack_rows
from windrow.operators.steps.progress import Progress
from windrow.stores.kv import Batch, MemoryKV
from windrow.stores.messages import Layout
from windrow.stores.windows import unpack_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md"
S = 1_000_000


def golden(name: str) -> bytes:
    [body] = re.findall(rf'```hex title="{name}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    return bytes.fromhex("".join(line.split("|")[0] for line in body.splitlines()))


def rows(name: str, second: int, id: int, offset: int) -> dict[str, pa.Table]:
    columns = {
        "t": [second * S],
        "id": [id],
        SOURCE: [f"{name}:"],
        PARTITION: [0],
        OFFSET: [offset],
        ORDINAL: [0],
    }
    return {name: pa.table(columns)}


class Filed:
    """Order 7 at one second, and the shipment of it a second later. former: in state of before messages lay in columns."""

    def __init__(self, shipped: bool = False, *, former: bool = False, **options: Any) -> None:
        window = options.pop("window", None)
        self.operator = wr.Join(
            left=wr.Input("orders", event_time="t", window=window),
            right=wr.Input("shipments", event_time="t"),
            on="id",
            within=("0 s", "10 s"),
            how="left",
            retention="1 hour",
            **options,
        ).logic()
        self.kv = MemoryKV(self.operator.cfs())
        if former:
            batch = Batch()
            batch.put("join.aux", LAYOUT, FORMER)
            self.kv.write(batch)
        self.operator.ingest(self.kv, rows("orders", 1, 7, 3), 0)
        if shipped:
            self.operator.ingest(self.kv, rows("shipments", 2, 7, 0), 0)

    def only(self, cf: str) -> tuple[bytes, bytes]:
        [pair] = self.kv.scan(f"join.{cf}")
        return pair


def test_a_message_of_a_join_over_time_is_filed_as_the_page_shows() -> None:
    filed = Filed(former=True)
    key, value = filed.only("left.messages")
    assert (key.hex(" "), value.hex(" ")) == (golden("join-key").hex(" "), golden("join-value").hex(" "))
    [schema] = [v for k, v in filed.kv.scan("join.aux") if k == b"h" + msgpack.unpackb(value[1:])[0]]
    assert pa.ipc.read_schema(pa.py_buffer(schema)).names == ["id", "t"]
    at = [("orders:", 0, 3, 0)]
    table = unpack_rows(
        filed.kv, "join.aux", [golden("join-value")], at, filed.operator.inputs.schemas(filed.kv)[0]
    )
    assert [(r["t"], r["id"], r[OFFSET]) for r in table.to_pylist()] == [(1 * S, 7, 3)]


def test_a_message_is_open_until_it_is_matched_as_the_page_shows() -> None:
    key, flag = Filed(former=True).only("left.open")
    assert (key.hex(" "), flag.hex(" ")) == (golden("join-open-key").hex(" "), golden("join-open").hex(" "))
    assert Filed(shipped=True, former=True).only("left.open")[1] == b"\x01" + golden("join-open")[1:]


def test_a_message_in_a_window_of_rows_has_a_number_as_the_page_shows() -> None:
    key, number, value, last = (
        golden(f"join-{n}") for n in ("numbered-key", "offset-key", "numbered-value", "counter")
    )
    counted = {golden("join-counter-key"): last}
    for scale in ("small", "large"):
        filed = Filed(window=wr.rows(2), scale=scale)
        if scale == "small":  # seed 003: "Tuple | Join | Yes | N/A | Small | <offset>"
            assert filed.only("left.messages") == (number, value)
            assert filed.only("left.message_index") == (key, number)
        else:
            assert filed.only("left.messages") == (key, value)
        assert filed.only("left.open") == (key, golden("join-numbered-open"))
        counters = {k: v for k, v in filed.kv.scan("join.aux") if k[:1] == b"c"}
        assert counters == ({b"c0": last, **counted} if scale == "small" else counted)


def test_messages_of_a_large_window_of_rows_of_an_input_lie_by_key_and_number() -> None:
    """Seed 003: "Tuple | Join | Yes | N/A | Large | <equal_flds>_<offset>"."""
    filed = Filed(window=wr.rows(2, per="input"), scale="large")
    key, number, value = (golden(f"join-{n}") for n in ("numbered-key", "offset-key", "numbered-value"))
    assert filed.only("left.messages") == (key, value)
    assert filed.only("left.message_index") == (number, key[: -len(number) - 1])
    assert filed.operator.stores[0].layout is Layout.FIELDS_OFFSET


def test_rows_that_wait_for_a_period_are_kept_as_the_page_says() -> None:
    filed = Filed(shipped=True, emit=wr.Emit(early=wr.every("1 minute"), late=wr.every_batch))
    key, value = filed.only("pending")
    assert key.hex(" ") == golden("join-pending-key").hex(" ")
    [row] = unpack_table(value).to_pylist()
    assert row == {"id": 7, "orders_t": 1 * S, "shipments_t": 2 * S, "__timing": "EARLY", "__order": 0}


def windows(**options: Any) -> wr.Join:
    inputs = {s: wr.Input(s, event_time="t", window=wr.tumbling("10 s")) for s in ("left", "right")}
    return wr.Join(**inputs, on="id", how="left", **options)


def test_keys_lead_in_a_join_with_windows_and_without_a_time_range_small_or_large() -> None:
    """Seed 003: "Time | Join | Yes | No | Small/Large | <equal_flds>_<timestamp>_<offset>"."""
    layouts = {scale: windows(scale=scale).logic().stores[0].layout for scale in ("small", "large")}
    assert layouts == dict.fromkeys(layouts, Layout.FIELDS_TIME_OFFSET)
    assert windows(within=("0 s", "5 s")).logic().stores[0].layout is Layout.TIME_FIELDS_OFFSET


@pytest.mark.parametrize("how", ["full", "semi", "anti"])
@pytest.mark.parametrize("scale", ["small", "large"])
def test_windows_of_rows_of_a_former_version_are_read_and_written_on(how: str, scale: str) -> None:
    """Former versions kept those per key by key, though they are small, and those per input by number, though large."""
    window = wr.rows(2) if scale == "small" else wr.rows(4, per="input")
    inputs = {s: wr.Input(s, event_time="t", window=window) for s in ("left", "right")}
    told = []
    for former in (True, False):
        operator = wr.Join(**inputs, on="id", how=how, retention="10 s", scale=scale).logic()
        kv = MemoryKV(operator.cfs())
        if former:
            batch = Batch()
            Progress(step=1).save(lambda key, value, batch=batch: batch.put("join.aux", key, value))
            kv.write(batch)
        panes = []
        for n in range(6):
            for s in ("left", "right"):
                panes += operator.ingest(kv, rows(s, n, n % 2, n), 0).panes
            panes += operator.advance(kv, n * S, 0).panes
        assert bool(list(kv.scan("join.left.message_index"))) is not former
        assert len(operator.kept(kv, 0, (0, None), (99 * S, None), None)) == 4
        panes += operator.advance(kv, END_OF_TIME_US, 0).panes
        assert not [cf for cf in operator.cfs() if cf != "join.aux" and list(kv.scan(cf))]
        told.append([row for pane in panes for row in pane.to_pylist()])
    assert told[0] == told[1] and (told[0] or how == "anti")


def test_state_whose_time_leads_is_read_and_written_on() -> None:
    """Former versions took windows for a time range."""
    operator = windows().logic()
    kv = MemoryKV(operator.cfs())
    batch = Batch()
    Progress(step=1).save(lambda key, value: batch.put(operator.aux_cf, key, value))
    kv.write(batch)  # of a former version: nothing says how its keys begin
    told = []
    for number in (1, 2):
        operator = windows().logic()
        told += operator.ingest(kv, rows("left", number, 7, number), 0).panes
        told += operator.ingest(kv, rows("right", number, 7, number), 0).panes
        assert operator.stores[0].layout is Layout.TIME_FIELDS_OFFSET
    assert sum(map(len, told)) == 4
    key, _ = next(iter(kv.scan("join.left.messages")))
    assert operator.stores[0].split(key).time_us == S
    assert len(operator.kept(kv, 0, (0, None), (9 * S, None), None)) == 2
    operator.advance(kv, END_OF_TIME_US, 0)
    assert not list(kv.scan("join.left.messages"))
