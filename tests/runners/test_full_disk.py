"""On Spark, too, a full disk is told as one, with the place; where it keeps a snapshot from being taken, no commit fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import windrow as wr
from windrow.checkpoint.shard import Shard
from windrow.core.errors import DiskFailed
from windrow.runners.tasks import TaskPlan

from .idle_query import Query


def full(*arguments: object, **named: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def query(folder: Path) -> Query:
    of = Query(
        folder,
        wr.Aggregate(
            by="k",
            event_time="t",
            window=wr.tumbling("30 seconds"),
            agg={"n": wr.count()},
            retention="1 day",
            name="n",
        ),
    )
    of.open()
    of.input += [1, 2]
    return of


def of_intent(of: Query, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(of.protocol.job, "record_intent", full)


def of_commit(of: Query, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(of.protocol.job, "commit", full)


def of_segment(of: Query, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("windrow.checkpoint.files.append_segment", full)


@pytest.mark.parametrize("phase", [of_intent, of_segment, of_commit])
def test_a_batch_that_meets_a_full_disk_says_so_and_is_made_once_there_is_room(
    tmp_path: Path, phase: Callable[[Query, pytest.MonkeyPatch], None]
) -> None:
    of = query(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        phase(of, patch)
        with pytest.raises(
            DiskFailed, match=f"{tmp_path}/windrow cannot be written: No space left on device"
        ):
            of.batch()
    assert (made := of.batch()) is not None and made.commit == 1
    of.drain()
    assert [p["n"] for panes in of.emitted.values() for p in panes] == [2]


def test_a_snapshot_that_cannot_be_taken_fails_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = query(tmp_path)
    monkeypatch.setattr(TaskPlan, "takes_snapshot", lambda self, number: True)
    monkeypatch.setattr(Shard, "snapshot", full)
    made = of.batch()
    assert made is not None and made.commit == 1 and made.shards[0].snapshot is None
