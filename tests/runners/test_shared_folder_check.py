"""Driver and executors must see one folder, and one time zone database: found before the first commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import windrow as wr
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.shard import ShardSpec
from windrow.core.errors import BadLocation, ConfigurationError
from windrow.runners.tasks import TaskPlan, run


def test_a_task_that_does_not_see_the_drivers_file_does_nothing(tmp_path: Path) -> None:
    folders = JobFolders(str(tmp_path))
    plan = TaskPlan(
        ShardSpec(folders, "job", -1, ("w",)), (), 1, 0, {}, b"", None, (), nonce="nonce-of-the-driver"
    )
    with pytest.raises(
        BadLocation, match=r"is not the folder that the driver sees: it lacks nonce-of.*wr\.kafka_log"
    ):
        list(run(plan, iter([]), 0))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "nonce-of-the-driver").touch()
    assert list(run(plan, iter([]), 0)) == []


def test_a_task_with_another_time_zone_database_than_the_drivers_does_nothing(tmp_path: Path) -> None:
    zoned = wr.Deduplicate(by="k", event_time="t", time_zone="Europe/Berlin", within="1 day")
    spec = ShardSpec(JobFolders(str(tmp_path)), "job", -1, ("w",))
    plan = TaskPlan(spec, (zoned,), 1, 0, {}, b"", None, (), time_zones="2020a")
    with pytest.raises(
        ConfigurationError, match=r"has the time zone database .*, the driver 2020a.*one version of tzdata"
    ):
        list(run(plan, iter([]), 0))
    assert list(tmp_path.iterdir()) == []
    assert list(run(replace(plan, definitions=()), iter([]), 0)) == []
