"""A store of another history of the job, which went on by itself from a backup, is never taken for this one."""

import shutil
from pathlib import Path
from typing import Any

import msgpack
import pytest

import windrow as wr
from tests.state.jobs import aggregate, answers, begun
from windrow.checkpoint.backup import backup
from windrow.checkpoint.marker import Marker


def held(location: Path) -> dict[str, Any]:
    with aggregate().open(str(location), sink=wr.sinks.memory()) as op:
        return answers(op, aggregate())


@pytest.mark.parametrize("ahead", [10, 20, 40])
def test_a_store_that_went_on_by_itself_is_set_aside(tmp_path: Path, ahead: int) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    begun(aggregate(), one, range(30))
    backup(str(one), str(two))
    begun(aggregate(), one, range(30, 30 + ahead))
    begun(aggregate(), two, range(130, 160))
    before = held(two)
    shutil.rmtree(two / "local")
    shutil.copytree(one / "local", two / "local")
    if ahead < 40:
        with wr.read_state(str(two)) as state:
            assert answers(state, aggregate()) == before
    else:  # it is ahead of us: nobody may tell by looking whether we are the ones who are over
        with pytest.raises(wr.WindrowError, match="holds commit 7, this driver knows of commits up to 6"):
            held(two)
        return
    assert held(two) == before
    assert [p.name for p in (two / "local").iterdir() if ".aside-" in p.name] != []


def test_a_marker_of_a_later_release_is_refused() -> None:
    with pytest.raises(wr.WindrowError, match="version 2, this windrow reads version 1"):
        Marker.unpack(msgpack.packb([2, "job", 0, 3, "x", "y"]))
