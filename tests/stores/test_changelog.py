"""A changelog rebuilds its store; a torn tail is left out, damage before the end is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.envelope import Kind, seal
from windrow.core.errors import CorruptState, NewerFormat
from windrow.stores.changelog import ChangeloggedKV, Replay, rebuild
from windrow.stores.kv import KV, Batch, MemoryKV
from windrow.testing.faults import CrashPoint, FaultyKV, SimulatedCrash, damage_file, tear_file

CFS = ("data", "meta")


def put(kv: KV, cf: str, **rows: str) -> None:
    batch = Batch()
    for key, value in rows.items():
        batch.put(cf, key.encode(), value.encode())
    kv.write(batch)


def contents(kv: KV) -> dict[str, list[tuple[bytes, bytes]]]:
    return {cf: list(kv.scan(cf)) for cf in kv.cfs}


def rebuilt(path: Path) -> tuple[dict[str, Any], Replay]:
    kv = MemoryKV(CFS)
    replay = rebuild(path, kv)
    return contents(kv), replay


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "changelog"


def three_writes(log: Path) -> MemoryKV:
    kv = MemoryKV(CFS)
    logged = ChangeloggedKV(kv, log)
    put(logged, "data", a="1", b="2")
    batch = Batch()
    batch.delete_range("data", b"a", b"b")
    batch.put("meta", b"m", b"")
    logged.write(batch)
    put(logged, "data", b="3", c="4")
    logged.close()
    return kv


def test_a_store_is_rebuilt_from_its_changelog(log: Path) -> None:
    kv = three_writes(log)
    assert rebuilt(log) == (contents(kv), Replay(3, os.path.getsize(log), 0))
    assert contents(kv)["data"] == [(b"b", b"3"), (b"c", b"4")]


def test_replaying_over_what_was_replayed_changes_nothing(log: Path) -> None:
    kv = three_writes(log)
    once = contents(kv)
    rebuild(log, kv)
    assert contents(kv) == once


def test_writes_that_change_nothing_are_not_logged(log: Path) -> None:
    logged = ChangeloggedKV(MemoryKV(CFS), log)
    size = os.path.getsize(log)
    logged.write(Batch())
    assert os.path.getsize(log) == size
    logged.close()


def test_what_the_store_refuses_is_not_logged(log: Path) -> None:
    logged = ChangeloggedKV(MemoryKV(CFS), log)
    size = os.path.getsize(log)
    with pytest.raises(KeyError, match="unknown"):
        put(logged, "unknown", a="1")
    assert os.path.getsize(log) == size
    logged.close()


def test_closing_closes_the_store(log: Path) -> None:
    kv = FaultyKV(CFS)
    ChangeloggedKV(kv, log).close()
    with pytest.raises(SimulatedCrash, match="closed"):
        kv.get("data", b"")


def test_a_reopened_changelog_goes_on(log: Path) -> None:
    kv = three_writes(log)
    logged = ChangeloggedKV(kv, log)
    put(logged, "data", d="5")
    logged.sync()
    logged.close()
    assert rebuilt(log)[0] == contents(kv)
    assert rebuilt(log)[1].batches == 4


def test_a_batch_is_logged_before_it_is_written(log: Path) -> None:
    for point in CrashPoint:
        log.unlink(missing_ok=True)
        faulty = FaultyKV(CFS, crash_at=2, crash_point=point)
        logged = ChangeloggedKV(faulty, log)
        put(logged, "data", a="1")
        with pytest.raises(SimulatedCrash):
            put(logged, "data", b="2")
        logged.close()
        assert rebuilt(log)[0]["data"] == [(b"a", b"1"), (b"b", b"2")]


def test_wherever_the_tail_is_torn_the_batches_before_it_are_there(log: Path) -> None:
    three_writes(log)
    whole = log.read_bytes()
    ends = []
    for keep in range(len(whole)):
        log.write_bytes(whole)
        tear_file(log, keep)
        try:
            _, replay = rebuilt(log)
        except CorruptState as error:
            assert "no readable header" in str(error)
            assert not ends
            continue
        assert replay.bytes_read + replay.bytes_torn == keep
        ends.append(replay.batches)
        # going on after the tear leaves a whole changelog again
        again = ChangeloggedKV(MemoryKV(CFS), log)
        put(again, "meta", z="9")
        again.close()
        state, replay = rebuilt(log)
        assert (replay.batches, replay.bytes_torn) == (ends[-1] + 1, 0)
        assert state["meta"][-1] == (b"z", b"9")
    assert sorted(set(ends)) == [0, 1, 2]
    assert ends == sorted(ends)


def test_damage_before_a_readable_record_is_refused_and_in_the_last_one_left_out(log: Path) -> None:
    kv = three_writes(log)
    whole = log.read_bytes()
    for at in range(len(whole)):
        log.write_bytes(whole)
        damage_file(log, at)
        try:
            state, replay = rebuilt(log)
        except CorruptState as error:
            assert any(text in str(error) for text in ("is damaged at byte", "no readable header"))
        else:
            assert replay.batches == 2
            assert replay.bytes_torn > 0
            assert state["data"] == [(b"b", b"2")]
    assert contents(kv)["data"] != [(b"b", b"2")]


def test_damage_inside_what_a_compaction_wrote_is_refused_to_the_last_byte(log: Path) -> None:
    logged = ChangeloggedKV(MemoryKV(CFS), log)
    put(logged, "data", a="1", b="2")
    logged.compact()
    logged.close()
    whole = log.read_bytes()
    for at in range(len(whole)):
        log.write_bytes(whole)
        damage_file(log, at)
        with pytest.raises(CorruptState):
            rebuilt(log)
        log.write_bytes(whole)
        tear_file(log, at)
        with pytest.raises(CorruptState):
            rebuilt(log)


def test_compaction_keeps_the_contents_and_forgets_what_was_deleted(log: Path) -> None:
    kv = MemoryKV(CFS)
    logged = ChangeloggedKV(kv, log)
    for number in range(200):
        put(logged, "data", **{f"key{number}": "secret"})
    batch = Batch()
    batch.delete_range("data", b"key1", b"key9")
    batch.delete("data", b"key0")
    logged.write(batch)
    before = os.path.getsize(log)
    logged.compact()
    assert os.path.getsize(log) < before / 5
    assert b"key150" not in log.read_bytes()
    assert rebuilt(log)[0] == contents(kv)
    put(logged, "data", later="1")
    logged.close()
    assert rebuilt(log)[0] == contents(kv)
    assert os.listdir(log.parent) == [log.name]


def test_compaction_splits_large_contents_into_records(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.stores.changelog._CHUNK_BYTES", 10)
    kv = three_writes(log)
    for number in range(20):
        put(kv, "data", **{f"{number:04}": "value"})
    logged = ChangeloggedKV(kv, log)
    logged.compact()
    logged.close()
    state, replay = rebuilt(log)
    assert state == contents(kv)
    assert replay.batches > 10


def test_a_changelog_of_some_column_families_has_only_those(log: Path) -> None:
    kv = MemoryKV(CFS)
    logged = ChangeloggedKV(kv, log, cfs=["meta"])
    size = os.path.getsize(log)
    put(logged, "data", a="1")
    assert os.path.getsize(log) == size
    put(logged, "meta", m="1")
    logged.compact()
    put(logged, "meta", n="2")
    logged.close()
    assert rebuilt(log)[0] == {"data": [], "meta": [(b"m", b"1"), (b"n", b"2")]}
    assert contents(kv)["data"] == [(b"a", b"1")]
    with pytest.raises(CorruptState, match=r"is of \['meta'\], asked for all cfs"):
        ChangeloggedKV(kv, log)


def test_a_record_of_a_newer_windrow_is_refused_and_not_taken_for_a_torn_tail(log: Path) -> None:
    three_writes(log)
    with open(log, "ab") as file:
        file.write(seal(Kind.CHANGELOG, b"?", version=2))
    with pytest.raises(NewerFormat, match="upgrade windrow"):
        rebuilt(log)


def test_a_record_that_could_not_be_written_leaves_no_part_of_it(log: Path) -> None:
    logged = ChangeloggedKV(MemoryKV(CFS), log)
    put(logged, "data", a="1")
    size = os.path.getsize(log)

    class FullDisk:
        """Takes ten bytes, then no more."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: memoryview) -> int:
            if len(data) > 10 and self.file.tell() == size:
                return int(self.file.write(data[:10]))
            raise OSError("no space left on device")

    logged._file = FullDisk(logged._file)  # type: ignore[assignment]
    with pytest.raises(OSError, match="no space"):
        put(logged, "data", b="2")
    assert os.path.getsize(log) == size
    assert logged.get("data", b"b") is None
    logged._file = logged._file.file  # type: ignore[attr-defined]
    put(logged, "data", c="3")
    logged.close()
    assert rebuilt(log)[0]["data"] == [(b"a", b"1"), (b"c", b"3")]


def test_every_write_is_synced_where_that_was_asked_for(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = ChangeloggedKV(MemoryKV(CFS), log, fsync=True)
    lazy = ChangeloggedKV(MemoryKV(CFS), log.with_name("lazy"))
    synced: list[int] = []
    monkeypatch.setattr("windrow.stores.changelog.os.fsync", synced.append)
    put(logged, "data", a="1")
    put(lazy, "data", a="1")
    assert synced == [logged._file.fileno()]
    lazy.sync()
    assert synced == [logged._file.fileno(), lazy._file.fileno()]
    logged.close()
    lazy.close()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 9)), max_size=10),
    st.integers(0, 10),
)
def test_any_history_compacted_anywhere_is_rebuilt(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int | None]], compact_at: int
) -> None:
    log = tmp_path_factory.mktemp("log") / "changelog"
    kv = MemoryKV(CFS)
    logged = ChangeloggedKV(kv, log)
    for number, (key, value) in enumerate(history):
        batch = Batch()
        if value is None:
            batch.delete("data", key.encode())
        else:
            batch.put("data", key.encode(), bytes([value]))
        logged.write(batch)
        if number == compact_at:
            logged.compact()
    logged.close()
    assert rebuilt(log)[0] == contents(kv)
