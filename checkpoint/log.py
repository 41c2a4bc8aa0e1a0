"""Log of a job: one totally ordered sequence of epochs, intents and commits.

One sequence fences drivers: a driver that has lost its epoch cannot create any record, because the number
that it would take next is taken by the epoch that replaced it. docs/explanation/commit-protocol.md is the specification;
L1, O1 and T1 here are its steps. docs/explanation/adr/0002 says why one log and not a sequence per kind.

    reader: log = FileLog(path); log.tail(); log.commits(7)
    driver: log = FileLog(path); log.open_epoch(...); log.append(Intent(...)); log.append(Commit(...))
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from windrow.checkpoint.logstate import LogState, begin, fold
from windrow.checkpoint.records import (
    VERSION,
    Commit,
    Epoch,
    Intent,
    R,
    Record,
    decode_payload,
    encode,
    numbered,
)
from windrow.checkpoint.storage import FolderRecords, MemoryRecords, RecordFiles
from windrow.checkpoint.truncation_summary import SUMMARY
from windrow.core.envelope import Kind, unseal
from windrow.core.errors import CorruptState, Fenced, StateLost

__all__ = ["FileLog", "Log", "LogState", "LostRace", "MemoryLog", "RecordLog"]


class LostRace(Fenced):
    """Error if our next number is taken without a newer driver: one epoch is used twice, or a file is torn."""


class Log(Protocol):
    """Interface of a log, on any transport, for drivers, tools and readers."""

    def tail(self) -> LogState:
        """Read up to the newest record and return the state after it. Readers poll it."""

    @property
    def state(self) -> LogState:
        """As of the last `tail` or own record; likewise the next three."""

    @property
    def epoch(self) -> Epoch | None:
        """The last claim."""

    @property
    def first_commit(self) -> int:
        """The number of the oldest commit that is kept."""

    @property
    def last_commit(self) -> Commit | None: ...

    @property
    def last_intent(self) -> Intent | None:
        """The intent of the commit after the last one; None when that is not begun."""

    def read(self, seq: int) -> Record | None:
        """Record `seq`; None if there is none yet, or a torn one. StateLost if it was truncated."""

    def commits(self, from_commit: int | None = None) -> Iterator[Commit]:
        """Commits from this one (default: the oldest kept) to the newest. StateLost if it was truncated."""

    def open_epoch(
        self,
        *,
        opened_us: int,
        driver: str,
        fingerprints: Mapping[str, str],
        shards: int,
        job: str,
        meta: Mapping[str, Any] | None = None,
        accept: Callable[[LogState], None] | None = None,
    ) -> Epoch:
        """Claim the next epoch, and with it the right to append. Every older driver is fenced from then on.

        `accept` sees the log as this claim would find it, and may raise to claim nothing.
        """

    def append(self, record: R) -> R:
        """Create the next record; returns it with its number. Fenced if this driver has lost the job."""

    def truncate(self, before_commit: int) -> int:
        """Drop records older than this commit; returns how many. The last claim and commit always stay.

        `state.summary` has the facts about the dropped commits that are still needed.
        """

    def close(self) -> None:
        """Append no more. The epoch stays claimed until another driver claims the next."""


class RecordLog:
    """The log over any `RecordFiles`. Threads of one driver may share it; it can open one epoch, once."""

    def __init__(self, files: RecordFiles) -> None:
        self.files = files
        self._lock = threading.RLock()
        self._state = LogState()
        self._last_data = b""  # the bytes of record next_seq - 1
        self._end = 0  # the lowest number without a file; torn files lie in [next_seq, _end)
        self._commit_seqs: list[int] = []  # of the commits that are in the log, ascending
        self._own: Epoch | None = None
        self._stopped: Fenced | None = None  # why this driver may append no more

    # --- reading ---

    def tail(self) -> LogState:
        with self._lock:
            if self._state.next_seq == 0:
                self._load()
            else:
                self._follow()
            return self._state

    @property
    def state(self) -> LogState:
        return self._state

    @property
    def epoch(self) -> Epoch | None:
        return self._state.epoch

    @property
    def last_commit(self) -> Commit | None:
        return self._state.last_commit

    @property
    def last_intent(self) -> Intent | None:
        return self._state.last_intent

    def read(self, seq: int) -> Record | None:
        with self._lock:
            if seq >= self._state.next_seq and seq >= self.tail().next_seq:
                return None
            data = self.files.read(seq)
            if data is None or seq < self._state.first_seq:
                first = self.tail().first_seq
                raise StateLost(
                    f"record {seq} was truncated: the log begins at record {first}, read from there"
                )
            return _decode(seq, data)

    def commits(self, from_commit: int | None = None) -> Iterator[Commit]:
        with self._lock:
            self.tail()
            first = self.first_commit
            wanted = first if from_commit is None else max(from_commit, 1)
            if wanted < first:
                raise StateLost(f"commit {wanted} was truncated: the log begins at commit {first}")
            seqs = self._commit_seqs[wanted - first :]
        return self._read_commits(seqs)

    def _read_commits(self, seqs: list[int]) -> Iterator[Commit]:
        for seq in seqs:
            record = self.read(seq)
            assert isinstance(record, Commit)
            yield record

    @property
    def first_commit(self) -> int:
        """The oldest commit in the log; the one to come if there is none."""
        return self._state.commit_number + 1 - len(self._commit_seqs)

    # --- writing ---

    def open_epoch(
        self,
        *,
        opened_us: int,
        driver: str,
        fingerprints: Mapping[str, str],
        shards: int,
        job: str,
        meta: Mapping[str, Any] | None = None,
        accept: Callable[[LogState], None] | None = None,
    ) -> Epoch:
        with self._lock:
            if self._own is not None or self._stopped is not None:
                raise ValueError("a log object opens one epoch, once: make another log object")
            self.files.prepare()
            while True:  # Another turn means that another driver has claimed an epoch in between.
                state = self.tail()  # O1
                if accept is not None:
                    accept(state)
                self.files.claim()
                torn = tuple(range(state.next_seq, self._end))  # O2
                claim = Epoch(
                    epoch=state.epoch_number + 1,
                    opened_us=opened_us,
                    driver=driver,
                    fingerprints=dict(fingerprints),
                    shards=shards,
                    job=job,
                    meta=dict(meta or {}),
                    first_seq=state.first_seq,
                    voids=torn,
                    seq=self._end,
                )
                if self._create(claim, encode(claim)):  # O3
                    break
            self._own = claim
            self._drop_below(claim.first_seq)  # O4
            self.files.sweep(claim.seq)
            return claim

    def append(self, record: R) -> R:
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            if self._own is None:
                raise ValueError("this log is open for reading: call open_epoch first")
            if record.epoch != self._own.epoch:
                raise ValueError(f"record of epoch {record.epoch}, this driver's is {self._own.epoch}")
            record = numbered(record, self._state.next_seq)
            if self._state.epoch_number > self._own.epoch:  # we have read on
                self._stopped = self._why_lost(record.seq)
                raise self._stopped
            fold(self._state, record)  # ValueError: the driver breaks the protocol
            data = encode(record)
            try:
                created = self._create(record, data)
            except BaseException as error:  # also what a program's own handler of a signal raises
                self._stopped = Fenced(
                    f"creating record {record.seq} failed ({error!r}), it may exist or not: open the job again"
                )
                raise
            if not created:
                self._stopped = self._why_lost(record.seq)
                raise self._stopped
            return record

    def truncate(self, before_commit: int) -> int:
        with self._lock:
            kept = min(before_commit, self._state.commit_number)
            if kept <= self.first_commit or self._own is None:
                return 0
            before, gone = self._state.first_seq, kept - self.first_commit
            first_seq = self._commit_seqs[gone]
            try:
                summary = self._state.summary.after(self._read_commits(self._commit_seqs[:gone]))
            except StateLost as error:  # truncated by another driver
                self._stopped = self._why_lost(first_seq)
                raise self._stopped from error
            meta = {**self._own.meta, SUMMARY: summary.dump()}
            self.append(replace(self._own, first_seq=first_seq, voids=(), meta=meta))  # T1
            self.files.mark_truncated()  # T2
            self.files.remove_all(range(before, first_seq))  # T3
            return first_seq - before

    def close(self) -> None:
        with self._lock:
            if self._stopped is None:
                self._stopped = Fenced("this log was closed: open the job again")

    # --- inside ---

    def _apply(self, record: Record, data: bytes) -> None:
        before, self._state = self._state, fold(self._state, record)
        self._last_data, self._end = data, self._state.next_seq
        if isinstance(record, Commit):
            self._commit_seqs.append(record.seq)
        if self._state.first_seq > before.first_seq:
            self._commit_seqs = [seq for seq in self._commit_seqs if seq >= self._state.first_seq]

    def _create(self, record: Record, data: bytes) -> bool:
        """True if the record is now in the log; False if somebody else has its number."""
        # L5: A driver that slept through another's epoch *and* its truncation finds its number free, but not
        # the record before it. What it created lies below the begin of the log and is no part of it.
        if not self.files.create(record.seq, data) or self._is_passed():
            return False
        self._apply(record, data)
        return True

    def _is_passed(self) -> bool:
        """True if the log was truncated beyond the last record that we know.

        Records are removed in ascending order, so a number can be free again only when the one before it is.
        Another driver in the same state may have written a record of its own there: comparing the bytes shows it.
        """
        if self._state.next_seq == 0:
            return self.files.is_truncated()
        return self.files.read(self._state.next_seq - 1) != self._last_data

    def _load(self) -> None:
        """Read the log from where its last claim says that it begins."""
        before = None
        while True:
            seqs = self.files.numbers()
            seen: dict[int, tuple[Record, bytes]] = {}
            claim = self._last_claim(seqs, seen)
            first_seq = 0 if claim is None else claim.first_seq
            last = seqs[-1] if seqs else -1
            kept = enumerate((seq for seq in seqs if seq >= first_seq), first_seq)
            missing = next((due for due, seq in kept if due != seq), None)
            self._state, self._commit_seqs, self._end = begin(first_seq), [], first_seq
            if not seqs and not self.files.is_truncated():
                return
            if seqs and missing is None and self._read_on(seen, last) > last:
                return
            # A record is gone; or the log was truncated while we read it, which puts a new claim at its end.
            if before == (first_seq, last):
                gone = self._state.next_seq if missing is None else missing
                raise CorruptState(
                    f"log record {gone} is missing: the log begins at record {first_seq} and ends at record "
                    f"{last}. Restore the log folder from a backup"
                )
            before = first_seq, last

    def _last_claim(self, seqs: list[int], seen: dict[int, tuple[Record, bytes]]) -> Epoch | None:
        """Return the newest readable claim. Records that were read on the way are added to `seen`."""
        for seq in reversed(seqs):
            data = self.files.recall(seq)
            record = None if data is None else _decode(seq, data)
            if data is not None and record is not None:
                seen[seq] = record, data
            if isinstance(record, Epoch):
                return record
        return None

    def _follow(self) -> None:
        """Read the newer records, or all again if the log was truncated meanwhile."""
        known_seq, known_data = self._state.next_seq - 1, self._last_data
        try:
            self._read_on({})
            damage = None
        except CorruptState as error:
            damage = error
        if self.files.read(known_seq) != known_data:  # then what we have read since may be no part of the log
            self._load()
        elif damage is not None:
            raise damage

    def _read_on(self, seen: dict[int, tuple[Record, bytes]], known: int = -1) -> int:
        """Fold records up to the end and return it: the lowest number without a file. Those up to `known` exist."""
        seq = self._state.next_seq
        while True:
            if seq in seen:
                record, data = seen.pop(seq)
            else:
                raw = self.files.recall(seq) if seq <= known else self.files.read(seq)
                if raw is None:
                    self._end = seq
                    return seq
                data, decoded = raw, _decode(seq, raw)
                if decoded is None:
                    seq += 1
                    continue  # torn: never committed, if nothing follows or an epoch that declares it void
                record = decoded
            seq += 1
            try:
                self._apply(record, data)
            except ValueError as error:
                torn = [*range(self._state.next_seq, record.seq)]
                what = f"log records {torn} are torn, in the middle of the log" if torn else f"log: {error}"
                raise CorruptState(f"{what}. Restore the log folder from a backup") from error

    def _why_lost(self, seq: int) -> Fenced:
        assert self._own is not None
        own, claim = self._own.epoch, self.tail().epoch
        if claim is not None and claim.epoch > own:
            return Fenced(
                f"driver {claim.driver!r} has opened this job with epoch {claim.epoch}, which ends epoch "
                f"{own} of this driver: stop one of the two"
            )
        return LostRace(
            f"record {seq} exists, but no newer epoch than {own}: is one driver's log used by two processes? "
            "Open the job again, once"
        )

    def _drop_below(self, first_seq: int) -> None:
        self.files.remove_all([seq for seq in self.files.numbers() if seq < first_seq])


def _decode(seq: int, data: bytes) -> Record | None:
    """Return the record; None if the file is torn. CorruptState if it is whole but wrong, NewerFormat if newer."""
    try:
        payload = unseal(Kind.LOG_RECORD, data, VERSION)
    except CorruptState:
        return None
    record = decode_payload(payload)
    if record.seq != seq:
        raise CorruptState(
            f"the file of log record {seq} holds record {record.seq}, it was renamed: restore the log folder"
        )
    return record


class MemoryLog(RecordLog):
    """A log in this process. Logs with the same `MemoryRecords` are several openings of one log."""

    def __init__(self, files: MemoryRecords | None = None) -> None:
        super().__init__(MemoryRecords() if files is None else files)


class FileLog(RecordLog):
    """A log in a folder. Pickled, it arrives as a reader of the same folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        super().__init__(FolderRecords(path))

    def __reduce__(self) -> tuple[type[FileLog], tuple[str]]:
        return FileLog, (self.path,)

    def __repr__(self) -> str:
        return f"FileLog({self.path!r})"
