"""Spark reads the folder of a Parquet sink while a job writes to it: no row twice, none lost."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark.sql import SparkSession

import windrow as wr
from tests.connectors.test_plain_readers import write


def test_spark_sees_each_row_once_while_a_job_commits(spark: SparkSession, tmp_path: Path) -> None:
    folder, done = tmp_path / "out", threading.Event()
    job = threading.Thread(target=write, args=(tmp_path, done))
    job.start()
    before, looks = 0, 0
    while not done.is_set() or looks < 2:
        if not list(folder.glob("*.parquet")):
            continue
        for path in (str(folder), f"{folder}/*.parquet"):
            commits = [row.commit for row in spark.read.parquet(path).select("commit").collect()]
            assert len(commits) == len(set(commits)) >= before
            before, looks = len(commits), looks + 1
    job.join()
    commits = [row.commit for row in spark.read.parquet(str(folder)).select("commit").collect()]
    assert sorted(commits) == sorted(wr.read_panes(str(folder)).column("commit").to_pylist())
