"""A disk that fails while a function reads its state is no fault of the message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.errors import DiskFailed
from windrow.stores.page_cache import RecentKV


class Counts:
    """Counts the messages of a key."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> dict[str, Any]:
        state["n"] = state.get("n", 0) + 1
        return {"n": state["n"]}


def test_a_message_counts_once_the_disk_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = wr.Process(by="k", event_time="t", function=Counts, emits={"n": pa.int64()}, ttl=wr.forever)
    get, broken = RecentKV.get, [True]

    def failing(self: RecentKV, cf: str, key: bytes) -> bytes | None:
        if cf.endswith(".state") and broken and broken.pop():
            raise DiskFailed("the disk is broken")
        return get(self, cf, key)

    monkeypatch.setattr(RecentKV, "get", failing)
    with process.open(str(tmp_path / "job")) as op:
        with pytest.raises(DiskFailed, match="broken"):
            op.add_messages([{"k": "a", "t": "2020-01-01 00:00Z"}])
        op.add_messages([{"k": "a", "t": "2020-01-01 00:00Z"}])
        assert [row["n"] for row in op.get_result()] == [1]
        assert op.dead_letters() == []


def test_a_file_that_the_function_itself_misses_is_a_dead_letter(tmp_path: Path) -> None:
    class Opens:
        def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> None:
            open(tmp_path / "nothing").close()

    process = wr.Process(by="k", event_time="t", function=Opens, emits={"n": pa.int64()}, ttl=wr.forever)
    with process.open(str(tmp_path / "job")) as op:
        op.add_messages([{"k": "a", "t": "2020-01-01 00:00Z"}])
        op.flush()
        assert [letter.reason for letter in op.dead_letters()] == ["function_failed"]
