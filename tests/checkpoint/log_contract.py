"""Contract of every log, on any transport: subclass `LogContract` and `TruncationContract` and give them a `place`.

class TestKafkaLog(LogContract, TruncationContract):
    @pytest.fixture
    def place(self): return KafkaPlace(...)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import pytest

from windrow.checkpoint.log import LostRace, RecordLog
from windrow.checkpoint.records import VERSION, Commit, Epoch, Intent, Step, encode
from windrow.core.envelope import Kind, seal
from windrow.core.errors import CorruptState, Fenced, NewerFormat


class Place(Protocol):
    """Place of one log, which can be opened again and again, and be damaged."""

    def open(self) -> RecordLog: ...
    def put(self, seq: int, data: bytes) -> None: ...
    def get(self, seq: int) -> bytes | None: ...
    def remove(self, seq: int) -> None: ...
    def numbers(self) -> list[int]: ...


def claim(log: RecordLog, driver: str = "d", **changes: Any) -> Epoch:
    """The next epoch, with values that do not matter."""
    values = {
        "opened_us": 1,
        "driver": driver,
        "fingerprints": {"a": "ff"},
        "shards": 2,
        "job": "j",
        **changes,
    }
    return log.open_epoch(**values)


def intent(epoch: int, commit: int, now_us: int = 5) -> Intent:
    return Intent(epoch=epoch, commit=commit, now_us=now_us, watermark_us=None)


def commit(epoch: int, number: int, **changes: Any) -> Commit:
    """A commit whose offsets tell its number."""
    values: dict[str, Any] = {
        "steps": (Step(kind="advance", now_us=number, watermark_us=None),),
        "next_offsets": {("s", 0): number},
        "shards": (),
        "published": number - 1,
        "watermark_us": None,
        **changes,
    }
    return Commit(epoch=epoch, commit=number, **values)


def run(log: RecordLog, first: int, last: int) -> None:
    """Commits `first..last`, each after its intent."""
    assert log.epoch is not None
    for number in range(first, last + 1):
        log.append(intent(log.epoch.epoch, number))
        log.append(commit(log.epoch.epoch, number))


def tear(place: Place, seq: int) -> None:
    """Cut the record off, as a power cut does on a disk that lies about fsync."""
    data = place.get(seq)
    assert data is not None
    place.remove(seq)
    place.put(seq, data[: len(data) // 2])


def numbers(log: RecordLog, from_commit: int | None = None) -> list[int]:
    return [c.commit for c in log.commits(from_commit)]


class LogContract:
    """The rules. `place`, a fixture of each transport's own test, is an empty one."""

    # --- writing and reading ---

    def test_an_empty_log_has_nothing(self, place: Place) -> None:
        log = place.open()
        state = log.tail()
        assert (state.next_seq, state.epoch, state.last_commit, state.last_intent) == (0, None, None, None)
        assert log.read(0) is None
        assert numbers(log) == numbers(log, 1) == []
        assert place.numbers() == []

    def test_the_first_claim_is_epoch_1_in_record_0(self, place: Place) -> None:
        log = place.open()
        epoch = claim(log, meta={"k": [1, "two", None]})
        assert (epoch.epoch, epoch.seq, epoch.voids, epoch.first_seq) == (1, 0, (), 0)
        assert log.epoch == epoch == place.open().read(0)

    def test_records_are_numbered_in_order_and_read_back_equal(self, place: Place) -> None:
        log = place.open()
        records = [claim(log), log.append(intent(1, 1)), log.append(commit(1, 1)), log.append(commit(1, 2))]
        assert [r.seq for r in records] == [0, 1, 2, 3]
        for other in (log, place.open()):
            assert [other.read(n) for n in range(4)] == records
            assert other.read(4) is None

    def test_a_reader_in_the_middle_of_the_work_follows(self, place: Place) -> None:
        writer, reader = place.open(), place.open()
        assert reader.tail().epoch is None
        claim(writer)
        assert reader.tail().epoch_number == 1
        assert reader.tail() == writer.state
        for number in (1, 2, 3):
            begun = writer.append(intent(1, number))
            assert reader.tail().last_intent == begun
            done = writer.append(commit(1, number))
            assert (reader.tail().last_commit, reader.last_intent) == (done, None)
            assert reader.state == writer.state == place.open().tail()

    def test_commits_start_where_asked(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 5)
        for reader in (log, place.open()):
            assert numbers(reader) == numbers(reader, 0) == numbers(reader, 1) == [1, 2, 3, 4, 5]
            assert numbers(reader, 4) == [4, 5]
            assert numbers(reader, 6) == []
        assert list(log.commits(5)) == [log.last_commit]

    def test_commits_are_looked_up_when_asked_not_when_drained(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 2)
        asked = log.commits()
        run(log, 3, 3)
        assert [c.commit for c in asked] == [1, 2]

    def test_an_intent_outlives_its_driver_until_it_is_committed(self, place: Place) -> None:
        first = place.open()
        claim(first)
        pending = first.append(intent(1, 1, now_us=77))
        second = place.open()
        claim(second)
        assert second.last_intent == pending
        again = second.append(replace(intent(2, 1), now_us=77))
        assert second.last_intent == again
        second.append(commit(2, 1))
        assert second.last_intent is None
        assert place.open().tail().last_intent is None

    # --- what a driver cannot append ---

    @pytest.mark.parametrize(
        ("wrong", "rule"),
        [
            (commit(1, 3), "due is 2"),
            (commit(1, 1), "due is 2"),
            (intent(1, 1), "due is 2"),
            (intent(1, 3), "due is 2"),
            (commit(1, 2, published=2), "finds 2 published"),
            (commit(2, 2), "this driver's is 1"),
            (commit(1, 2, query_id="q"), "both or neither"),
            (Epoch(epoch=1, opened_us=1, driver="x", fingerprints={}, shards=1, job="j"), "claims epoch 1"),
        ],
    )
    def test_a_record_that_breaks_the_order_is_not_written(self, place: Place, wrong: Any, rule: str) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 1)
        before = log.state
        with pytest.raises(ValueError, match=rule):
            log.append(wrong)
        assert log.state == before == place.open().tail()
        run(log, 2, 2)

    def test_a_reader_cannot_append(self, place: Place) -> None:
        with pytest.raises(ValueError, match="open for reading"):
            place.open().append(commit(1, 1))

    def test_a_log_object_opens_one_epoch_once(self, place: Place) -> None:
        log = place.open()
        claim(log)
        with pytest.raises(ValueError, match="another log object"):
            claim(log)

    def test_a_closed_log_appends_no_more(self, place: Place) -> None:
        log = place.open()
        claim(log)
        log.close()
        with pytest.raises(Fenced, match="was closed"):
            log.append(commit(1, 1))
        assert log.tail().commit_number == 0

    # --- fencing ---

    def test_of_two_drivers_exactly_one_continues(self, place: Place) -> None:
        first, second = place.open(), place.open()
        claim(first, "first")
        run(first, 1, 2)
        first.append(intent(1, 3))
        claim(second, "second")
        with pytest.raises(
            Fenced, match=r"'second' has opened this job with epoch 2, which ends epoch 1"
        ) as lost:
            first.append(commit(1, 3))
        assert not isinstance(lost.value, LostRace)
        second.append(intent(2, 3))
        second.append(commit(2, 3))
        with pytest.raises(Fenced):  # and stays so
            first.append(commit(1, 4))
        assert [c.epoch for c in place.open().commits()] == [1, 1, 2]

    def test_every_older_driver_is_fenced_not_only_the_last(self, place: Place) -> None:
        drivers = [place.open() for _ in range(4)]
        for driver in drivers:
            claim(driver)
        for epoch, driver in enumerate(drivers[:-1], start=1):
            with pytest.raises(Fenced):
                driver.append(commit(epoch, 1))
        drivers[-1].append(commit(4, 1))

    def test_one_epoch_used_twice_is_a_lost_race(self, place: Place) -> None:
        log = place.open()
        claim(log)
        place.put(1, encode(replace(intent(1, 1, now_us=99), seq=1)))
        with pytest.raises(LostRace, match="record 1 exists, but no newer epoch than 1"):
            log.append(intent(1, 1))
        with pytest.raises(LostRace):
            log.append(intent(1, 1))

    def test_racing_drivers_get_different_epochs_and_one_continues(self, place: Place) -> None:
        logs = [place.open() for _ in range(8)]
        barrier, won, lost = threading.Barrier(8), [], []

        def drive(log: RecordLog) -> None:
            try:
                barrier.wait()
                epoch = claim(log, f"d{id(log)}").epoch
                barrier.wait()
            except BaseException:
                barrier.abort()  # the others must not wait for one that failed
                raise
            try:
                won.append(log.append(commit(epoch, 1)))
            except Fenced:
                lost.append(epoch)

        with ThreadPoolExecutor(8) as pool:
            drives = [pool.submit(drive, log) for log in logs]
        errors = [error for drive in drives if (error := drive.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error  # the one that broke the barrier
        assert [w.epoch for w in won] == [8]
        assert sorted(lost) == [1, 2, 3, 4, 5, 6, 7]
        assert list(place.open().commits()) == won

    def test_a_driver_that_has_read_on_and_is_over_learns_it(self, place: Place) -> None:
        old, new = place.open(), place.open()
        claim(old)
        run(old, 1, 1)
        claim(new, "d2")
        old.tail()
        for _ in range(2):
            with pytest.raises(Fenced, match="'d2' has opened this job with epoch 2, which ends epoch 1"):
                old.append(commit(1, 2))
        run(new, 2, 2)

    def test_a_driver_may_look_before_it_claims_and_not_claim(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 2)

        def refuse(state: Any) -> None:
            assert (state.commit_number, state.epoch.shards) == (2, 2)
            raise RuntimeError("other shards")

        with pytest.raises(RuntimeError, match="other shards"):
            claim(place.open(), accept=refuse)
        run(log, 3, 3)

    @pytest.mark.parametrize(
        "error",
        [OSError("the disk is gone"), KeyboardInterrupt("Ctrl-C"), RuntimeError("SIGALRM"), SystemExit(1)],
    )
    def test_after_a_failed_creation_nothing_more_is_appended(
        self, place: Place, error: BaseException
    ) -> None:
        log = place.open()
        claim(log)
        create: Callable[[int, bytes], bool] = log.files.create

        def fail(seq: int, data: bytes) -> bool:
            create(seq, data)
            raise error

        log.files.create = fail  # type: ignore[method-assign]
        with pytest.raises(type(error), match=str(error)):
            log.append(commit(1, 1))
        log.files.create = create  # type: ignore[method-assign]
        with pytest.raises(Fenced, match=r"may exist or not: open the job again"):
            log.append(commit(1, 1))
        assert place.open().tail().commit_number == 1

    # --- damage ---

    @pytest.mark.parametrize("torn", [1, 2, 3])
    def test_torn_records_at_the_end_were_never_committed(self, place: Place, torn: int) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 2)  # records 1 to 4
        follower = place.open()
        follower.tail()
        log.append(intent(1, 3))
        log.append(commit(1, 3))
        log.append(commit(1, 4))
        for seq in range(8 - torn, 8):
            tear(place, seq)
        state = place.open().tail()
        assert state.next_seq == 8 - torn
        assert follower.tail() == state
        successor = place.open()
        epoch = claim(successor)
        assert (epoch.seq, epoch.voids) == (8, tuple(range(8 - torn, 8)))
        run(successor, state.commit_number + 1, state.commit_number + 1)
        assert follower.tail() == place.open().tail() == successor.state
        assert numbers(follower) == [*range(1, state.commit_number + 2)]
        assert follower.read(7) is None

    def test_a_log_of_one_torn_record_is_empty(self, place: Place) -> None:
        claim(place.open())
        tear(place, 0)
        assert place.open().tail().epoch is None
        log = place.open()
        assert (claim(log).seq, log.state.epoch_number) == (1, 1)
        run(log, 1, 1)
        assert place.open().tail() == log.state

    def test_a_driver_whose_own_record_is_torn_stops(self, place: Place) -> None:
        log = place.open()
        claim(log)
        place.put(1, b"torn")
        with pytest.raises(LostRace):
            log.append(commit(1, 1))
        run_on = place.open()
        assert claim(run_on).voids == (1,)

    @pytest.mark.parametrize("seq", [0, 1, 2, 3])
    def test_a_torn_record_in_the_middle_is_refused(self, place: Place, seq: int) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 2)
        tear(place, seq)
        for _ in range(2):
            with pytest.raises(CorruptState, match=rf"log records \[{seq}\] are torn, in the middle"):
                place.open().tail()
        with pytest.raises(CorruptState):
            claim(place.open())
        assert len(place.numbers()) == 5

    def test_a_follower_refuses_a_torn_record_in_the_middle_too(self, place: Place) -> None:
        log, follower = place.open(), place.open()
        claim(log)
        run(log, 1, 1)
        follower.tail()
        run(log, 2, 3)
        tear(place, 4)
        for _ in range(2):
            with pytest.raises(CorruptState, match=r"log records \[4\] are torn"):
                follower.tail()

    def test_an_epoch_excuses_only_the_torn_records_that_it_names(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 1)
        claim(place.open())
        tear(place, 2)
        with pytest.raises(CorruptState, match=r"log records \[2\] are torn"):
            place.open().tail()

    @pytest.mark.parametrize("seq", [0, 1, 2, 3])
    def test_a_missing_record_in_the_middle_is_refused(self, place: Place, seq: int) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 2)
        place.remove(seq)
        with pytest.raises(CorruptState, match=f"log record {seq} is missing"):
            place.open().tail()

    def test_records_without_any_claim_are_refused(self, place: Place) -> None:
        place.put(4, encode(replace(commit(1, 1), seq=4)))
        with pytest.raises(CorruptState, match="log record 0 is missing"):
            place.open().tail()

    def test_a_truncated_log_that_is_empty_is_refused(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 3)
        log.truncate(3)
        for seq in place.numbers():
            place.remove(seq)
        with pytest.raises(CorruptState, match="missing"):
            place.open().tail()

    @pytest.mark.parametrize("seq", [2, 4])
    def test_a_record_of_a_newer_format_is_refused_wherever_it_is(self, place: Place, seq: int) -> None:
        log, follower = place.open(), place.open()
        claim(log)
        run(log, 1, 1)
        follower.tail()
        run(log, 2, 2)
        place.remove(seq)
        place.put(seq, seal(Kind.LOG_RECORD, b"what we cannot know", VERSION + 1))
        with pytest.raises(NewerFormat, match=f"version {VERSION + 1}"):
            place.open().tail()
        with pytest.raises(NewerFormat):
            claim(place.open())
        if seq == 4:
            with pytest.raises(NewerFormat):
                follower.tail()

    def test_a_whole_record_that_makes_no_sense_is_refused_even_at_the_end(self, place: Place) -> None:
        claim(place.open())
        place.put(1, seal(Kind.LOG_RECORD, b"\x81\xa6record\xa3odd"))
        with pytest.raises(CorruptState, match="unknown record type 'odd'"):
            place.open().tail()

    def test_a_renamed_record_is_refused(self, place: Place) -> None:
        claim(place.open())
        place.put(1, encode(replace(commit(1, 1), seq=2)))
        with pytest.raises(CorruptState, match="record 1 holds record 2"):
            place.open().tail()

    @pytest.mark.parametrize("wrong", [commit(2, 1), commit(1, 2), intent(1, 2)])
    def test_a_record_that_breaks_the_order_is_damage_when_read(self, place: Place, wrong: Any) -> None:
        claim(place.open())
        place.put(1, encode(replace(wrong, seq=1)))
        with pytest.raises(CorruptState, match="record 1"):
            place.open().tail()
