"""Why a window holds what it holds: which messages are in it, and which commits put them there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.view import metadata_of
from windrow.core.messages import Position, TupleWindow, WindowInfo
from windrow.operators.aggregate.history import CLOSED
from windrow.operators.aggregate.tuples import TupleAggregator
from windrow.operators.steps.columns import MESSAGES, OFFSET, ORDINAL, PARTITION, SOURCE, START, UPSERT
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.runners.embedded.queries import message_rows, of_key
from windrow.stores.kv import KV, MemoryKV, Pair


@dataclass(frozen=True, slots=True)
class Touch:
    """What one commit did to a window. messages: how many it brought; None where earlier commits are no longer kept, so that it
    cannot be told from what was there. ranges: what the commit took of each partition, (source, partition, first, next offset).
    """

    commit: int
    messages: int | None
    ranges: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One window of one key. positions: of all messages in it, in event-time order; None where messages are not kept.

    commits: those that the changelog still knows to have brought messages to it; `complete` if it goes back to the first.
    """

    window: WindowInfo
    positions: tuple[Position, ...] | None
    commits: tuple[Touch, ...]
    complete: bool


def window_start(info: WindowInfo) -> int:
    """Where a window begins: microseconds, or the number of its first message."""
    return info.window.first if isinstance(info.window, TupleWindow) else info.window.start_us


def explained(
    info: WindowInfo,
    shards: Sequence[tuple[Any, KV]],
    specs: Sequence[ShardSpec],
    commits: Sequence[Commit],
    definition: Any,
    prefix: str = "",
) -> Explanation:
    """Why the window that `info` tells of holds what it holds. Positions are without the `prefix` of their sources."""
    positions: tuple[Position, ...] | None = None
    touches: list[Touch] = []
    complete = True
    for (operator, kv), spec in zip(shards, specs, strict=True):
        if operator.history is not None:
            positions = (positions or ()) + tuple(
                p._replace(source=p.source.removeprefix(prefix)) for p in _positions(info, operator, kv)
            )
        found, whole = _touches(info, operator, kv, spec, commits)
        touches += found
        complete = complete and whole
    return Explanation(info, positions, tuple(sorted(touches, key=lambda t: t.commit)), complete)


def _positions(info: WindowInfo, operator: Any, kv: KV) -> Iterator[Position]:
    """Positions of the messages that a shard keeps of a window, as the window took them."""
    rows = (
        _in_tuple(info, operator, kv)
        if isinstance(operator, TupleAggregator)
        else _in_time(info, operator, kv)
    )
    if rows is None:
        return
    columns = (rows.table.column(c).to_pylist() for c in (SOURCE, PARTITION, OFFSET, ORDINAL))
    for position in zip(*columns, strict=True):
        yield Position(*position)


def _in_time(info: WindowInfo, operator: Any, kv: KV) -> Slice | None:
    assert not isinstance(info.window, TupleWindow)
    start, end = info.window.start_us, info.window.end_us
    rows = message_rows(operator, kv, start, end - 1, info.key or None)
    if rows is None:
        return None
    row_of, starts, ends = operator.assigner.assign(rows.times)
    # A message that came when this window was closed may be kept for another.
    took = (starts == start) & (ends > combine(rows.table.column(CLOSED)).to_numpy()[row_of])
    return rows.take(np.unique(row_of[took]))


def _in_tuple(info: WindowInfo, operator: TupleAggregator, kv: KV) -> Slice | None:
    assert isinstance(info.window, TupleWindow) and operator.history is not None
    by = operator.definition.by
    schema = operator.calculation.schema
    key = operator.encode([pa.array([info.key[b]], schema.field(b).type) for b in by])[0] if by else None
    low, high = (0, ("", 0, info.window.first)), (0, ("", 0, info.window.last))
    keys, values = operator.history.store.scan_between(kv, low, high, key)
    return operator.history.decode(kv, keys, values, operator.calculation)


def _touches(
    info: WindowInfo, operator: Any, kv: KV, spec: ShardSpec, commits: Sequence[Commit]
) -> tuple[list[Touch], bool]:
    """The commits of which the changelog of a shard says that they brought messages to the window."""
    start = window_start(info)
    found: list[Touch] = []
    before: int | None = 0 if commits and commits[0].commit == 1 else None
    complete = before is not None
    for record in commits:
        batch = metadata_of(spec, record)
        if batch is None:  # swept
            before, complete = None, False
            continue
        own = MemoryKV([operator.windows_cf])
        own.write(batch.only([operator.windows_cf]))
        stored = operator.store.read(_OfCommit(own, kv), [start])
        if stored is None:
            continue
        mine = stored.filter(
            pa.array((combine(stored.column(START)).to_numpy() == start) & of_key(stored, info.key))
        )
        brought: int | None = 0
        for upsert, n in zip(mine.column(UPSERT).to_pylist(), mine.column(MESSAGES).to_pylist(), strict=True):
            if upsert:
                brought = None if before is None or brought is None else brought + n - before
                before = n
            else:
                brought = None if brought is None else brought + n
                before = None if before is None else before + n
        if len(mine) and brought != 0:
            found.append(Touch(record.commit, brought, _ranges(record)))
    return found, complete


def _ranges(record: Commit) -> tuple[tuple[str, int, int, int], ...]:
    """What a commit took, by partition."""
    first: dict[tuple[str, int], int] = {}
    following: dict[tuple[str, int], int] = {}
    for step in record.steps:
        for partition, offset in step.next_offsets.items():
            first.setdefault(partition, step.first_offsets.get(partition, offset))
            following[partition] = offset
    return tuple((s, p, first[s, p], following[s, p]) for s, p in sorted(first))


class _OfCommit:
    """The windows that one commit wrote, over the rest of a store (schemas)."""

    def __init__(self, own: MemoryKV, rest: KV) -> None:
        self._own, self._rest = own, rest

    def _of(self, cf: str) -> KV:
        return self._own if cf in self._own.cfs else self._rest

    def get(self, cf: str, key: bytes) -> bytes | None:
        return self._of(cf).get(cf, key)

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._of(cf).multi_get(cf, keys)

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        return self._of(cf).scan(cf, start, end, reverse)
