"""Locations of a job, a sink or a checkpoint: every entry accepts the same names and refuses the same."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint import job_admin
from windrow.checkpoint.verify import verify
from windrow.connectors.kafka.start_offsets import job_offsets
from windrow.core.errors import BadLocation
from windrow.core.location import local_path

COUNTS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
)
PAIRS = wr.Join(
    left=wr.Input("l", event_time="t"),
    right=wr.Input("r", event_time="t"),
    on="k",
    within=("0 seconds", "1 minute"),
)
DOORS: dict[str, Callable[[Any], Any]] = {
    "open": COUNTS.open,
    "a join": PAIRS.open,
    "a chain": PAIRS.then(
        wr.Aggregate(
            by="k", event_time="l_t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
        )
    ).open,
    "foreach_batch": COUNTS.foreach_batch,
    "local_dir": lambda place: COUNTS.foreach_batch("ckpt", local_dir=place),
    "read_state": wr.read_state,
    "look": job_admin.look,
    "verify": verify,
    "job_offsets": job_offsets,
    "parquet": wr.sinks.parquet,
    "read_panes": wr.read_panes,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "place", ["s3://bucket/a", "hdfs://host/a", "dbfs:/a", "abfss://c@a/l", "log:kafka:9092/a", "", " ", 42]
)
def test_what_is_no_folder_is_refused_at_every_door_and_none_is_made(
    door: str, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadLocation) as caught:
        DOORS[door](place)
    assert repr(place) in str(caught.value) and "give" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_home_folder_and_a_file_url_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with COUNTS.open("~/job") as op:
        op.add_message(wr.Message({"t": 1, "k": "a"}))
    assert (tmp_path / "job" / "log").is_dir()
    with wr.read_state(f"file://{tmp_path}/job") as state:
        assert state.commit == 1


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("file:////a/b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a:b/c", "/a:b/c"),
        ("/s3://a", "/s3:/a"),
    ],
)
def test_a_path_is_what_it_says(text: str, path: str) -> None:
    assert local_path(text) == path


@pytest.mark.parametrize("name", [r"C:\jobs", "2024-01-01T10:00", "./orders:v2", "a b"])
def test_a_colon_alone_makes_no_scheme(name: str) -> None:
    assert local_path(name) == os.path.abspath(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file://server/a", "another host"),
        ("file:a", "whole path"),
        ("orders:v2", "'./orders:v2'"),
        ("~nobody-at-all/a", "not known here"),
        (b"a", "no path"),
    ],
)
def test_a_refusal_says_what_to_write(text: Any, message: str) -> None:
    with pytest.raises(BadLocation, match=message):
        local_path(text)


def test_panes_are_read_from_what_a_sink_wrote_and_from_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(BadLocation, match=r"nowhere is not there: give the path of a wr.sinks.parquet"):
        wr.read_panes(str(tmp_path / "nowhere"))
    (tmp_path / "other.parquet").touch()
    with pytest.raises(BadLocation, match="no folder '_manifests'"):
        wr.read_panes(str(tmp_path))
