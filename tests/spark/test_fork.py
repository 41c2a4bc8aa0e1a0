"""A job of Spark's that was forked: the copy is a query of its own and counts nothing again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint import job_admin

from .conftest import at

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def rows(*seconds: float) -> list[dict[str, Any]]:
    return [{"t": at(s), "k": "ab"[int(s) % 2], "v": int(s)} for s in seconds]


def run(spark: Any, source: Any, checkpoint: Path, out: Path) -> None:
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), watermark="5 seconds", retention="1 hour",
        agg={"n": wr.count(), "mid": wr.median("v")}, emit=wr.Emit(early=wr.every_batch, late=wr.every_batch),
    )  # fmt: skip
    writer = definition.writeStream(source.stream(spark)).sink(wr.sinks.parquet(str(out)))
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def rows_of(out: Path, after: int = 0) -> list[tuple[Any, ...]]:
    """The newest panes; those of commits after one."""
    current = wr.latest(wr.read_panes(str(out))).to_pylist() if out.exists() else []
    return sorted((r["window"]["start"], r["k"], r["n"], r["mid"]) for r in current if r["commit"] > after)


def test_a_fork_counts_no_file_again(spark: Any, feed: Any, tmp_path: Path) -> None:
    source, forks = feed(), ("with", "without")
    source.add(rows(1, 2, 3))
    source.add(rows(12, 13))
    run(spark, source, tmp_path / "job", tmp_path / "out")
    for fork in forks:
        job_admin.fork(
            str(tmp_path / "job" / "windrow"), str(tmp_path / fork / "windrow"), now_us=0, driver="test"
        )
        if fork == "with":
            shutil.copytree(tmp_path / "job" / "spark", tmp_path / fork / "spark")
        run(spark, source, tmp_path / fork, tmp_path / f"{fork} out")
        assert rows_of(tmp_path / f"{fork} out") == []
    before = rows_of(tmp_path / "out")
    assert [r[2] for r in before] == [1, 2, 1, 1]
    forked_at = max(r["commit"] for r in wr.read_panes(str(tmp_path / "out")).to_pylist())
    source.add(rows(4, 21, 22))
    run(spark, source, tmp_path / "job", tmp_path / "out")
    for fork in forks:
        run(spark, source, tmp_path / fork, tmp_path / f"{fork} out")
        assert rows_of(tmp_path / f"{fork} out") == rows_of(tmp_path / "out", forked_at) != []
