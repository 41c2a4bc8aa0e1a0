"""Readers that know nothing of windrow glob the folder of a Parquet sink while a job writes to it: no row twice, none lost."""

from __future__ import annotations

import glob
import threading
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest

import windrow as wr
from tests.deep import usually
from windrow.testing import ManualClock

COMMITS = usually(40, deep=2000)
#: What every reader is asked for: the commit of each row. A pane of this job is one row of one commit.
Reader = Callable[[str], list[int]]


def by_duckdb(folder: str) -> list[int]:
    duckdb: Any = pytest.importorskip("duckdb")
    with duckdb.connect(config={"threads": 1}) as connection:
        rows = connection.execute(f"select commit from read_parquet('{folder}/*.parquet')").fetchall()
    return [commit for (commit,) in rows]


READERS: dict[str, Reader] = {
    "polars": lambda folder: pl.read_parquet(f"{folder}/*.parquet")["commit"].to_list(),
    "pandas": lambda folder: pd.read_parquet(folder)["commit"].tolist(),
    "pandas, file by file": lambda folder: [
        n for path in glob.glob(f"{folder}/*.parquet") for n in pd.read_parquet(path)["commit"]
    ],
    "pyarrow": lambda folder: ds.dataset(folder).to_table().column("commit").to_pylist(),
    "duckdb": by_duckdb,
    "windrow": lambda folder: wr.read_panes(folder).column("commit").to_pylist(),
}


def write(folder: Path, done: threading.Event) -> None:
    counts = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 second"),
        agg={"n": wr.count()},
        retention="1 minute",
        emit=wr.Emit(early=wr.every_batch),
    )
    try:
        with counts.open(
            str(folder / "job"), clock=ManualClock(), sink=wr.sinks.parquet(str(folder / "out"))
        ) as op:
            for number in range(COMMITS):
                op.add_message({"k": "a", "t": number * 1000})
                op.flush()
    finally:
        done.set()


def test_a_reader_that_globs_while_a_job_commits_sees_each_row_once(tmp_path: Path) -> None:
    folder, done = str(tmp_path / "out"), threading.Event()
    job = threading.Thread(target=write, args=(tmp_path, done))
    job.start()
    looks, before = Counter[str](), 0
    for name in cycle(READERS):
        if done.is_set() and len(looks) == len(READERS):
            break
        if not glob.glob(f"{folder}/*.parquet"):
            continue
        commits = READERS[name](folder)
        assert sorted(commits) == sorted(set(commits)), f"{name} sees a row twice"
        assert len(commits) >= before or name == "windrow", f"{name} sees a row no more"
        looks[name], before = looks[name] + 1, max(before, len(commits))
    job.join()
    panes = wr.read_panes(folder).column("commit").to_pylist()
    assert len(panes) >= COMMITS
    assert all(sorted(read(folder)) == sorted(panes) for read in READERS.values())
