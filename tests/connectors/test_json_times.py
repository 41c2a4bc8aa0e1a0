"""Times of JSON records: instants and local times, in columns with a zone and without one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.time import instant_us
from windrow.core.zones import zone_of
from windrow.operators.oracle.times import zone_info
from windrow.operators.steps.columns import MALFORMED_ROW
from windrow.operators.steps.intake import event_times
from windrow.runners.embedded.consume import sources_of
from windrow.runners.rows import event_time_us
from windrow.testing import ManualClock


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"])
def test_text_with_a_zone_and_text_without_one_are_instants_in_columns_with_and_without_one(
    zone: str,
) -> None:
    """Around the transitions of a year each is what a message with that text is, or a dead letter where no local time is."""
    info = zone_info(zone)
    moments = [
        datetime(2026, 1, 1, 0, 30, 0, 5, tzinfo=UTC) + timedelta(minutes=30 * i) for i in range(17_520)
    ]
    changes = [
        m
        for m, later in pairwise(moments)
        if info.utcoffset(m.astimezone(info)) != info.utcoffset(later.astimezone(info))
    ]
    near = {m + timedelta(minutes=i) for m in [*changes, moments[0]] for i in range(-120, 150, 30)}
    local = sorted({m.astimezone(info).replace(tzinfo=None, fold=0) for m in near})
    stream = wr.sources.kafka(
        "localhost:1", "topic", value=wr.decoders.json({"t": pa.timestamp("us")})
    ).in_zone(zone)
    for moment in sorted(near):
        for text in (moment.isoformat(), moment.astimezone(info).isoformat()):
            table = stream.value.decode([b'{"t": "%s"}' % text.encode()] * 2, "topic")
            times = event_times(table.column("t"), "t", zone).to_pylist()
            assert times in ([instant_us(moment)] * 2, [None] * 2)
            assert (times[0] is None) == (moment.astimezone(info).fold == 1)
    texts = [b'{"t": "%s"}' % t.isoformat().encode() for t in local]
    zoned = wr.decoders.json({"t": pa.timestamp("us", zone)}).decode(texts, "topic").column("t")
    wanted = [event_time_us(t.isoformat(), zone_of(zone))[0] for t in local]
    assert zoned.cast(pa.int64()).to_pylist() == wanted == [instant_us(t.replace(tzinfo=info)) for t in local]


def test_zoned_times_of_msgpack_are_local_times_in_a_column_without_a_zone() -> None:
    decoder = wr.decoders.msgpack({"t": pa.timestamp("us")})
    for value, in_berlin in (
        (datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(2026, 7, 1, 14)),
        (datetime(2026, 10, 25, 1, 30, tzinfo=UTC), None),
    ):
        record = msgpack.packb({"t": value}, datetime=True)
        stream = wr.sources.kafka("localhost:1", "topic", value=decoder)
        in_zone, without = (
            s.value.decode([record], "topic") for s in (stream.in_zone("Europe/Berlin"), stream)
        )
        assert in_zone.column("t")[0].as_py() == in_berlin
        assert without.column("t")[0].as_py() == value.replace(tzinfo=None)
        assert in_berlin is not None or "column 't'" in in_zone.column(MALFORMED_ROW)[0].as_py()


def test_a_job_reads_a_stream_in_its_inputs_zone() -> None:
    counts = wr.Aggregate(
        by=(),
        event_time="t",
        window=wr.tumbling("1 day"),
        agg={"n": wr.count()},
        retention="1 day",
        time_zone="Europe/Berlin",
    )
    stream = wr.sources.kafka("localhost:1", "topic", value=wr.decoders.json({"t": pa.timestamp("us")}))
    [alone] = sources_of(counts, stream).values()
    on_spark = counts.writeStream(stream)._reads
    for one in (alone, on_spark):
        assert one is not None
        assert one.value.decode([b'{"t": "2026-01-01T02:00:00+02:00"}'], "topic").to_pylist() == [
            {"t": datetime(2026, 1, 1, 1)}
        ]


def test_a_lower_case_z_is_utc_on_every_route(tmp_path: Path) -> None:
    text = "2026-01-01T00:00:00z"
    stamps = wr.decoders.json({"t": pa.timestamp("us", "UTC"), "k": pa.string()})
    counts = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 day"), agg={"n": wr.count()}, retention="1 day"
    )
    rows = [{"t": text, "k": "a"}]
    for i, written in enumerate(
        (rows, pa.Table.from_pylist(rows), stamps.decode([json.dumps(rows[0]).encode()], "topic"))
    ):
        with counts.open(str(tmp_path / str(i)), clock=ManualClock(1_767_225_600_000_000)) as op:
            op.add_messages(written)
            assert op.dead_letters() == []
            [window] = op.get_windows()
            assert window.window.start_us == 1_767_225_600_000_000
