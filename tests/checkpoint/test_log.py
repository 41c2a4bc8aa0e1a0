"""The log's contract over memory and over files, and over memory under every interleaving that chance finds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.log_contract import LogContract, claim, commit, intent, numbers
from tests.checkpoint.log_truncation_contract import TruncationContract
from tests.deep import usually
from windrow.checkpoint.log import FileLog, MemoryLog, RecordLog
from windrow.checkpoint.records import Commit
from windrow.checkpoint.storage import MemoryRecords
from windrow.core.errors import Fenced


class MemoryPlace:
    def __init__(self) -> None:
        self.files = MemoryRecords()

    def open(self) -> MemoryLog:
        return MemoryLog(self.files)

    def put(self, seq: int, data: bytes) -> None:
        assert self.files.create(seq, data)

    def get(self, seq: int) -> bytes | None:
        return self.files.read(seq)

    def remove(self, seq: int) -> None:
        self.files.remove(seq)

    def numbers(self) -> list[int]:
        return self.files.numbers()


class FilePlace:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> FileLog:
        return FileLog(self.path)

    def _file(self, seq: int) -> Path:
        self.path.mkdir(exist_ok=True)
        return self.path / f"{seq:020d}.wrl"

    def put(self, seq: int, data: bytes) -> None:
        self._file(seq).write_bytes(data)

    def get(self, seq: int) -> bytes | None:
        file = self._file(seq)
        return file.read_bytes() if file.exists() else None

    def remove(self, seq: int) -> None:
        self._file(seq).unlink()

    def numbers(self) -> list[int]:
        return sorted(int(file.stem) for file in self.path.glob("*.wrl"))


class TestMemoryLog(LogContract, TruncationContract):
    @pytest.fixture
    def place(self) -> MemoryPlace:
        return MemoryPlace()


class TestFileLog(LogContract, TruncationContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> FilePlace:
        return FilePlace(tmp_path / "log")


class Preempted:
    """`MemoryRecords` seen by one driver: before and after each operation, other drivers may act."""

    def __init__(self, shared: MemoryRecords, yield_to_others: Any) -> None:
        self._shared, self._yield = shared, yield_to_others

    def remove_all(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self.remove(seq)

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._shared, name)

        def call(*args: Any) -> Any:
            self._yield()
            try:
                return operation(*args)
            finally:
                self._yield()

        return call


class World:
    """Several drivers on one log, each stopped anywhere inside its operations while others run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shared = MemoryRecords()
        self.depth = 0
        self.busy: set[int] = set()
        self.steps_left = 60
        self.opened = 0
        self.drivers: list[RecordLog | None] = [None] * 4
        self.acknowledged: list[Any] = []  # what the drivers were told is in the log
        self.newest_claim = 0

    def preempt(self) -> None:
        if self.depth < 4 and self.steps_left > 0 and self.random.random() < 0.12:
            self.depth += 1
            for _ in range(self.random.randint(1, 12)):
                self.step()
            self.depth -= 1

    def step(self) -> None:
        self.steps_left -= 1
        idle = [n for n in range(len(self.drivers)) if n not in self.busy]
        if not idle:
            return
        n = self.random.choice(idle)
        self.busy.add(n)
        try:
            self.act(n)
        except Fenced:
            self.drivers[n] = None  # this driver stops; another opens in its place
        finally:
            self.busy.discard(n)

    def act(self, n: int) -> None:
        log = self.drivers[n]
        if log is None:
            log = RecordLog(Preempted(self.shared, self.preempt))  # type: ignore[arg-type]
            self.opened += 1
            self.acknowledged.append(claim(log, f"driver {self.opened}"))
            self.drivers[n] = log
            return
        epoch = log.epoch
        assert epoch is not None
        match self.random.randrange(6):
            case 0:
                log.truncate(log.state.commit_number - self.random.randrange(2))
            case 1:
                self.acknowledged.append(log.append(intent(epoch.epoch, log.state.commit_number + 1)))
            case _:
                self.acknowledged.append(log.append(commit(epoch.epoch, log.state.commit_number + 1)))

    def check(self) -> None:
        """Every driver reads the same records, each once, in one order."""
        by_seq = sorted(self.acknowledged, key=lambda record: record.seq)
        assert len({record.seq for record in by_seq}) == len(by_seq)
        assert [record.epoch for record in by_seq] == sorted(record.epoch for record in by_seq)
        done = [record.commit for record in by_seq if isinstance(record, Commit)]
        assert done == sorted(set(done))
        reader = MemoryLog(self.shared)
        state = reader.tail()
        for record in by_seq:
            if record.seq >= state.first_seq:
                assert reader.read(record.seq) == record
        if done:
            assert state.commit_number >= done[-1]
            kept = numbers(reader)
            assert kept == [*range(kept[0], state.commit_number + 1)]


SEEDS = usually(50, deep=150)


@pytest.mark.parametrize("block", range(8))
def test_no_interleaving_makes_two_drivers_believe_that_they_made_one_commit(block: int) -> None:
    acknowledged = 0
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        world = World(seed)
        while world.steps_left > 0:
            world.step()
        try:
            world.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        acknowledged += len(world.acknowledged)
    assert acknowledged > SEEDS * 5
