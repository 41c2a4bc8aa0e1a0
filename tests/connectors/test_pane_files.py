"""A sink may take some rows at a time: the same rows, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow as wr
from windrow.connectors import pane_files
from windrow.connectors.pane_files import PaneFiles
from windrow.connectors.sinks import MemorySink
from windrow.core.errors import CorruptState
from windrow.core.messages import Token


@pytest.fixture
def two_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PaneFiles:
    """Panes of two shards, of which one knows less of the columns."""
    monkeypatch.setattr(pane_files, "SLICE_ROWS", 3)
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"s": wr.sum("v")}, retention="1 day"
    )
    files = []
    for shard, values in enumerate(([1, 2, 3, 4, 5, 6, 7], [0.5, 2.5])):
        with definition.open(str(tmp_path / f"{shard}")) as op:
            op.add_messages([{"t": 1, "k": f"{shard}-{n}", "v": v} for n, v in enumerate(values)])
            op.drain()
            rows = op.result_table()
        files.append(str(tmp_path / f"{shard}.parquet"))
        pq.write_table(rows, files[-1])
    return PaneFiles(tuple(files), 9, definition.name, definition, "job")


def test_rows_some_at_a_time_are_those_of_the_table(two_shards: PaneFiles) -> None:
    tables = list(two_shards.tables())
    assert [len(rows) for rows in tables] == [3, 3, 1, 2]
    assert pa.concat_tables(tables).equals(two_shards.table())
    assert two_shards.table().schema.field("s").type == pa.float64()
    assert list(two_shards.panes()) == list(two_shards.definition.values(two_shards.table(), "job"))
    assert list(PaneFiles((), 0, two_shards.operator, two_shards.definition, "job").tables()) == []


def test_a_sink_in_memory_keeps_all_of_a_commit_or_nothing(two_shards: PaneFiles) -> None:
    sink, path = MemorySink(), Path(two_shards.files[1])
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\0" * 40 + data[44:])

    def publish() -> Any:
        sink.publish(Token("job", 1), two_shards)

    with pytest.raises((OSError, pa.ArrowException, CorruptState)):
        publish()
    assert sink.panes == []
    path.write_bytes(data)
    publish()
    publish()
    assert len(sink.panes) == 9
