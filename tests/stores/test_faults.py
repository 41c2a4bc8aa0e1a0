"""The faulty store loses exactly what a crash may lose."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.stores.kv import Batch
from windrow.testing.faults import CrashPoint, FaultyKV, SimulatedCrash, damage_file, tear_file

CFS = ("data", "meta")


def commit(kv: FaultyKV, number: int) -> None:
    batch = Batch()
    batch.put("data", bytes([number]), b"")
    batch.put("meta", b"applied", bytes([number]))
    kv.write(batch)


def applied(kv: FaultyKV) -> int:
    return (kv.get("meta", b"applied") or b"\x00")[0]


@pytest.mark.parametrize("point", CrashPoint)
@given(flushed=st.integers(0, 5), crash_at=st.integers(1, 5), survivors=st.integers(0, 5))
def test_a_crash_keeps_what_was_flushed_and_a_prefix_of_the_rest(
    point: CrashPoint, flushed: int, crash_at: int, survivors: int
) -> None:
    kv = FaultyKV(CFS, crash_at=flushed + crash_at, crash_point=point)
    for number in range(1, flushed + 1):
        commit(kv, number)
    kv.flush()
    with pytest.raises(SimulatedCrash, match=f"at write {flushed + crash_at}"):
        for number in range(flushed + 1, 100):
            commit(kv, number)
    assert kv.unflushed == crash_at - (point is CrashPoint.BEFORE_WRITE)
    survivors = min(survivors, kv.unflushed)
    again = kv.reopen(survivors)
    assert applied(again) == flushed + survivors
    assert [key[0] for key, _ in again.scan("data")] == list(range(1, flushed + survivors + 1))
    twice = again.reopen()
    assert applied(twice) == flushed + survivors  # what a restart found is durable


def test_a_dead_store_answers_nothing() -> None:
    kv = FaultyKV(CFS)
    with pytest.raises(SimulatedCrash):
        kv.crash()
    for ask in (
        lambda: kv.get("data", b""),
        lambda: kv.scan("data"),
        lambda: kv.multi_get("data", []),
        kv.flush,
    ):
        with pytest.raises(SimulatedCrash, match="reopen it"):
            ask()
    with pytest.raises(SimulatedCrash):
        kv.write(Batch())


def test_a_crash_is_not_caught_by_the_code_under_test() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_a_clean_close_keeps_everything() -> None:
    kv = FaultyKV(CFS)
    commit(kv, 1)
    kv.close()
    kv.close()
    assert applied(kv.reopen()) == 1


def test_later_changes_to_a_written_batch_do_not_reach_the_disk() -> None:
    kv = FaultyKV(CFS)
    batch = Batch()
    batch.put("data", b"a", b"")
    kv.write(batch)
    batch.put("data", b"b", b"")
    assert [key for key, _ in kv.reopen(1).scan("data")] == [b"a"]


def test_a_crash_can_be_planned_for_after_the_restart() -> None:
    kv = FaultyKV(CFS).reopen(crash_at=2, crash_point=CrashPoint.AFTER_WRITE)
    commit(kv, 1)
    with pytest.raises(SimulatedCrash):
        commit(kv, 2)
    assert kv.writes == kv.unflushed == 2


def test_more_cannot_survive_than_there_was() -> None:
    with pytest.raises(ValueError, match="1 of 0 unflushed batches cannot survive"):
        FaultyKV(CFS).reopen(1)


def test_files_are_torn_and_damaged_by_exactly_that_much(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"abcd")
    damage_file(file, 1)
    damage_file(file, -1)
    assert file.read_bytes() == b"acce"
    tear_file(file, 2)
    assert file.read_bytes() == b"ac"
    damage_file(file, 0)
    assert file.read_bytes() == b"\x60c"
    tear_file(file, 0)
    assert file.read_bytes() == b""
    file.write_bytes(b"ab")
    for keep in (2, -1):
        with pytest.raises(ValueError, match="tears nothing off"):
            tear_file(file, keep)
    with pytest.raises(ValueError, match="has no byte 2"):
        damage_file(file, 2)
