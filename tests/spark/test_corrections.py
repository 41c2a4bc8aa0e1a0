"""Corrections on Spark: counted again in a chain, and emitted again with new columns of the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.embedded.test_corrected_joins import present
from tests.embedded.test_corrections_in_chains import final
from windrow.testing import ManualClock
from windrow.testing.ledger import ledger_key

from .conftest import SCHEMA, at

pytestmark = pytest.mark.spark


def batches() -> list[list[dict[str, Any]]]:
    return [
        [{"t": at(second + 7 * n), "k": "ab"[second % 2], "v": second + n} for second in range(8)]
        for n in range(3)
    ]


def middles(*names: str, **more: Any) -> wr.Aggregate:
    agg = {"middle": wr.median("v"), "n": wr.count(), "total": wr.sum("v")}
    return wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={n: agg[n] for n in names}, retention="1 hour",
        emit=wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"), **more,
    )  # fmt: skip


def test_corrections_of_a_chain_and_of_what_comes_to_it_are_those_embedded(
    spark: Any, tmp_path: Path
) -> None:
    def chain(*names: str) -> wr.Chain:
        by_total = wr.Aggregate(
            by=(), event_time="window_time", window=wr.tumbling("20 seconds"), retention="1 hour", name="all",
            agg={"middles": wr.sum("middle"), "keys": wr.count(), "most": wr.max("middle")}, emit=wr.Emit(early=wr.every_batch),
        )  # fmt: skip
        return wr.chain(middles(*names, name="middles", where=wr.col("v") != 3), by_total)

    corrected, twin = ({n: wr.sinks.memory() for n in ("middles", "all")} for _ in range(2))
    names = ("middle",)
    for batch, rows in enumerate(batches()):
        recompute, names = batch == 2, ("middle", "n", "total") if batch == 2 else names
        function = chain(*names).foreach_batch(
            str(tmp_path / "spark"), sink=corrected, clock=ManualClock(0), recompute=recompute
        )
        function(spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA)), batch)
        function.close()
        with chain(*names).open(
            str(tmp_path / "twin"), sink=twin, clock=ManualClock(0), recompute=recompute
        ) as op:
            op.add_messages(pa.Table.from_pylist(rows, SCHEMA))
    standing, embedded = (
        {n: {ledger_key(p.key, p.window): p.values for p in final(s.panes)} for n, s in sinks.items()}
        for sinks in (corrected, twin)
    )
    assert standing == embedded and len(standing["middles"]) > 4 and len(standing["all"]) > 1
    first = next(
        p for p in reversed(corrected["middles"].panes) if p.window.start_us == 0 and p.key["k"] == "a"
    )
    assert first["n"] == 5 and first["total"] == 13


def test_a_join_of_what_is_corrected_emits_in_the_end_what_it_emits_embedded(
    spark: Any, tmp_path: Path
) -> None:
    counted = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("5 seconds"), agg={"total": wr.sum("v")}, retention="1 hour", input="rows",
        emit=wr.Emit(early=wr.every_batch, late=wr.every_batch), watermark=wr.explicit(), name="counted",
    )  # fmt: skip
    join = wr.Join(
        left=wr.Input("others", event_time="t", watermark=wr.explicit()),
        right=wr.Input("counted", event_time="window_time", watermark=wr.explicit()),
        on="k", within=("0 seconds", "5 seconds"), how="full", name="joined",
    )  # fmt: skip
    chain, sink, twin = counted.then(join), wr.sinks.memory(), wr.sinks.memory()
    function = chain.foreach_batch(str(tmp_path / "spark"), sink=sink, clock=ManualClock(0), shards=2)
    with chain.open(str(tmp_path / "twin"), sink=twin, clock=ManualClock(0)) as op:
        for batch, rows in enumerate(batches()):
            tables = {"rows": rows, "others": rows}
            frames = {n: pa.Table.from_pylist(r, SCHEMA) for n, r in tables.items()}
            query = chain.together(**{n: spark.createDataFrame(frame) for n, frame in frames.items()})
            function.input_schema = query.schema
            function(query, batch)
            op.add_messages(frames)
            op.flush()
        assert present(sink.panes) == present(twin.panes)
    assert {r.kind.value for r in sink.panes} == {"INSERT", "RETRACT"} and len(present(sink.panes)) > 5
    function.close()
