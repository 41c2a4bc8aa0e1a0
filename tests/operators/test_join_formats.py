"""The pages of formats show the state of a join as the operator writes and reads it."""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa

import windrow as wr
from tests.format_pages import examples_of_formats
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.message_rows import unpack_rows
from windrow.stores.kv import MemoryKV
from windrow.stores.message_store import Layout
from windrow.stores.row_codec import unpack_table

S = 1_000_000
#: A join that counts what it keeps has a value for each message.
BY_SIZE = wr.Retain("1 hour", messages=1_000, per="job")


def golden(name: str) -> bytes:
    return examples_of_formats()[name]


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
    """Order 7 at one second, and the shipment of it a second later."""

    def __init__(self, shipped: bool = False, **options: Any) -> None:
        window = options.pop("window", None)
        self.operator = wr.Join(
            left=wr.Input("orders", event_time="t", window=window),
            right=wr.Input("shipments", event_time="t"),
            on="id",
            within=("0 s", "10 s"),
            how="left",
            **{"retention": "1 hour", **options},
        ).logic()
        self.kv = MemoryKV(self.operator.cfs())
        self.operator.ingest(self.kv, rows("orders", 1, 7, 3), 0)
        if shipped:
            self.operator.ingest(self.kv, rows("shipments", 2, 7, 0), 0)

    def only(self, cf: str) -> tuple[bytes, bytes]:
        [pair] = self.kv.scan(f"join.{cf}")
        return pair


def test_a_message_of_a_join_over_time_is_filed_as_the_page_shows() -> None:
    filed = Filed(retention=BY_SIZE)
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
    key, flag = Filed(retention=BY_SIZE).only("left.open")
    assert (key.hex(" "), flag.hex(" ")) == (golden("join-open-key").hex(" "), golden("join-open").hex(" "))
    assert Filed(shipped=True, retention=BY_SIZE).only("left.open")[1] == b"\x01" + golden("join-open")[1:]


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
