"""The log's contract, second part: truncation, and drivers that slept through it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.checkpoint.log_contract import Place, claim, commit, intent, numbers, run
from windrow.core.errors import CorruptState, Fenced, StateLost


class TruncationContract:
    """The rules. `place`, a fixture of each transport's own test, is an empty one."""

    # --- truncation ---

    def test_truncation_leaves_a_contiguous_rest_that_begins_with_the_commit(self, place: Place) -> None:
        log, follower = place.open(), place.open()
        claim(log)
        run(log, 1, 6)
        follower.tail()
        assert log.truncate(4) == 8  # claim, three intents and commits, intent of 4
        assert place.numbers() == [*range(8, 14)]
        for reader in (log, follower, place.open()):
            assert reader.tail() == log.state
            assert numbers(reader) == numbers(reader, 4) == [4, 5, 6]
            with pytest.raises(StateLost, match="commit 3 was truncated: the log begins at commit 4"):
                reader.commits(3)
            with pytest.raises(StateLost, match="record 7 was truncated: the log begins at record 8"):
                reader.read(7)
        run(log, 7, 8)
        assert log.truncate(4) == log.truncate(3) == 0
        assert log.truncate(7) == 7
        assert numbers(follower) == numbers(place.open()) == [7, 8]

    def test_the_last_claim_and_commit_are_never_truncated(self, place: Place) -> None:
        log = place.open()
        first = claim(log)
        assert log.truncate(100) == 0
        run(log, 1, 3)
        log.truncate(100)
        assert numbers(place.open()) == [3]
        state = place.open().tail()
        meta = {"summary": {"commit": 2, "read": [[None, []]], "dead_letters": []}}
        assert state.epoch == replace(first, seq=7, first_seq=6, meta=meta)
        assert log.truncate(100) == 0
        successor = place.open()
        assert claim(successor).epoch == 2
        run(successor, 4, 4)
        assert numbers(place.open()) == [3, 4]
        with pytest.raises(Fenced):
            log.append(commit(1, 4))

    def test_an_intent_outlives_truncation(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 3)
        begun = log.append(intent(1, 4))
        log.truncate(3)
        assert place.open().tail().last_intent == begun

    def test_commits_that_vanish_while_they_are_read_are_lost_not_skipped(self, place: Place) -> None:
        log, reader = place.open(), place.open()
        claim(log)
        run(log, 1, 6)
        commits = reader.commits()
        assert next(commits).commit == 1
        log.truncate(5)
        with pytest.raises(StateLost):
            next(commits)

    def test_a_driver_that_lost_the_job_truncates_nothing(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 3)
        claim(place.open())
        with pytest.raises(Fenced):
            log.truncate(3)
        assert place.numbers() == [*range(8)]

    def test_a_reader_truncates_nothing(self, place: Place) -> None:
        log, reader = place.open(), place.open()
        claim(log)
        run(log, 1, 3)
        reader.tail()
        assert reader.truncate(3) == 0
        assert len(place.numbers()) == 7

    @pytest.mark.parametrize("removed", range(7))
    def test_truncation_that_was_interrupted_is_finished_by_the_next_driver(
        self, place: Place, removed: int
    ) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 4)
        remove, left = log.files.remove, [removed]

        def stop(seq: int) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            remove(seq)

        log.files.remove = stop  # type: ignore[method-assign]
        at_once = getattr(place, "removes_at_once", False)  # what was begun is then done
        if removed < 6 and not (at_once and removed):
            with pytest.raises(KeyboardInterrupt):
                log.truncate(3)
        else:
            log.truncate(3)
        log.files.remove = remove  # type: ignore[method-assign]
        assert place.numbers()[0] == (6 if at_once and removed else removed)
        assert numbers(place.open()) == [3, 4]
        claim(place.open())
        assert place.numbers() == [*range(6, 11)]

    def test_removals_that_a_power_cut_left_out_of_order_do_no_harm(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 4)
        old = {seq: place.get(seq) for seq in (1, 2, 4)}
        log.truncate(3)
        for seq, data in old.items():
            assert data is not None
            place.put(seq, data)
        assert place.open().tail() == log.state
        assert numbers(place.open()) == [3, 4]
        with pytest.raises(StateLost, match="record 2 was truncated: the log begins at record 6"):
            log.read(2)
        claim(place.open())
        assert place.numbers() == [*range(6, 11)]

    def test_what_is_missing_above_the_begin_of_a_truncated_log_is_damage(self, place: Place) -> None:
        log = place.open()
        claim(log)
        run(log, 1, 4)
        log.truncate(3)
        place.remove(6)
        with pytest.raises(CorruptState, match="log record 6 is missing: the log begins at record 6"):
            place.open().tail()

    # --- drivers that slept through it ---

    def test_a_driver_that_slept_through_a_truncation_is_fenced_though_its_number_is_free(
        self, place: Place
    ) -> None:
        sleeper, successor, follower = place.open(), place.open(), place.open()
        claim(sleeper, "sleeper")
        run(sleeper, 1, 2)
        sleeper.append(intent(1, 3))
        follower.tail()
        claim(successor, "successor")
        run(successor, 3, 9)
        successor.truncate(9)
        assert 6 not in place.numbers()
        with pytest.raises(Fenced, match="'successor' has opened this job with epoch 2"):
            sleeper.append(commit(1, 3))
        for reader in (follower, place.open()):
            assert numbers(reader) == [9]
            assert reader.tail() == successor.state
        run(successor, 10, 10)
        claim(place.open())
        assert place.numbers()[0] == successor.state.first_seq

    def test_nor_does_the_record_of_one_sleeper_deceive_another(self, place: Place) -> None:
        drivers = [place.open() for _ in range(4)]
        for driver in drivers:
            claim(driver)  # record n is the claim of driver n
        run(drivers[3], 1, 5)
        drivers[3].truncate(5)
        for epoch, driver in enumerate(drivers[:3], start=1):  # each puts its record where the next one looks
            with pytest.raises(Fenced):
                driver.append(intent(epoch, 1))
        assert numbers(place.open()) == [5]

    def test_a_driver_that_slept_before_the_very_first_record_is_not_deceived(self, place: Place) -> None:
        sleeper, other = place.open(), place.open()
        done = []

        def sleep(state: Any) -> None:
            if not done:
                done.append(state)
                claim(other)
                run(other, 1, 5)
                other.truncate(5)
                assert 0 not in place.numbers()

        assert claim(sleeper, accept=sleep).epoch == 2
        assert (done[0].next_seq, sleeper.state.commit_number) == (0, 5)
        with pytest.raises(Fenced):
            run(other, 6, 6)
        run(sleeper, 6, 6)
        assert numbers(place.open()) == [5, 6]

    def test_a_follower_that_was_overtaken_by_truncation_begins_anew(self, place: Place) -> None:
        log, follower = place.open(), place.open()
        claim(log)
        run(log, 1, 2)
        assert follower.tail().commit_number == 2
        run(log, 3, 9)
        log.truncate(8)
        assert follower.tail() == log.state
        assert numbers(follower) == [8, 9]
