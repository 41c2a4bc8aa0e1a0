"""State of a log: a pure fold of its records, and the rules of order that every log obeys.

    state, record  ->  state        or ValueError naming the rule that the record breaks

A log applies it to its own record before creating it (a broken rule is then a mistake of the driver) and to
every record that it reads (a broken rule is then a damaged log).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from windrow.checkpoint import truncation_summary as summary
from windrow.checkpoint.records import Commit, Epoch, Intent, Record
from windrow.checkpoint.truncation_summary import SUMMARY, Summary


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as of some record.

    first_seq: the first record that counts; older ones were truncated
    next_seq: the number after the last record that counts
    epoch_number: of the newest record; 0 before the first claim
    epoch: the last claim; None only before it, or while reading a truncated log up to it
    last_commit: the newest commit
    last_intent: the intent of the commit after it; None when that is not begun
    summary: of the commits that were truncated
    """

    first_seq: int = 0
    next_seq: int = 0
    epoch_number: int = 0
    epoch: Epoch | None = None
    last_commit: Commit | None = None
    last_intent: Intent | None = None
    summary: Summary = field(default_factory=Summary)

    @property
    def commit_number(self) -> int:
        """0 before the first commit."""
        return 0 if self.last_commit is None else self.last_commit.commit


def begin(first_seq: int) -> LogState:
    """Return the state before record `first_seq`, where everything older was truncated (or nothing was, at 0)."""
    return LogState(first_seq=first_seq, next_seq=first_seq)


def fold(state: LogState, record: Record) -> LogState:
    """Return the state after `record`. ValueError if no driver that follows the protocol can have written it."""
    skipped = tuple(range(state.next_seq, record.seq))
    if record.seq < state.next_seq or skipped != (record.voids if isinstance(record, Epoch) else ()):
        raise ValueError(f"record {record.seq} where record {state.next_seq} belongs")
    after = replace(state, next_seq=record.seq + 1)
    if isinstance(record, Epoch):
        return _fold_epoch(after, record)
    if 0 < state.first_seq == record.seq and isinstance(record, Commit):
        # Truncation leaves a commit first; what it follows, and the claim that it belongs to, are gone.
        return replace(after, epoch_number=record.epoch, last_commit=record)
    if record.epoch != state.epoch_number:
        raise ValueError(f"record {record.seq} carries epoch {record.epoch} in epoch {state.epoch_number}")
    if isinstance(record, Intent):
        return _fold_intent(after, record)
    return _fold_commit(after, record)


def _fold_epoch(state: LogState, record: Epoch) -> LogState:
    before, claim = state.epoch_number, state.epoch
    # A driver that truncates restates its claim, so that the last claim is never truncated away.
    restates = record.epoch == before > 0 and (claim is None or _bare(record) == _bare(claim))
    if record.epoch <= before and not restates:
        raise ValueError(f"record {record.seq} claims epoch {record.epoch}, the log has epoch {before}")
    state = replace(state, epoch_number=record.epoch, epoch=record)
    if record.first_seq > state.first_seq or (record.first_seq == state.first_seq and SUMMARY in record.meta):
        # An older claim, which a reader that begins further up meets, has an older summary.
        return replace(state, first_seq=record.first_seq, summary=summary.load(record.meta))
    return state


def _bare(claim: Epoch) -> Epoch:
    """Return a claim without what truncation changes in it."""
    meta = {name: value for name, value in claim.meta.items() if name != SUMMARY}
    return replace(claim, seq=0, first_seq=0, voids=(), meta=meta)


def _fold_intent(state: LogState, record: Intent) -> LogState:
    due = state.commit_number + 1
    if record.commit != due:
        raise ValueError(f"record {record.seq} intends commit {record.commit}, due is {due}")
    return replace(state, last_intent=record)


def _fold_commit(state: LogState, record: Commit) -> LogState:
    due = state.commit_number + 1
    if record.commit != due:
        raise ValueError(f"record {record.seq} is commit {record.commit}, due is {due}")
    if record.published >= record.commit:
        raise ValueError(f"record {record.seq}: commit {record.commit} finds {record.published} published")
    return replace(state, last_commit=record, last_intent=None)
