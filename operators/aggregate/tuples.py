"""Aggregator over tuple windows: ranges of sequence numbers of one key. Seed 003 "Basic Tuple-based Window".

Messages are numbered when they are processed, in position order, from 1. Windows are `[1 + k * step, size + k * step]`, both
ends included. A full window fires ON_TIME, once, and for good; a partial one is visible to early panes and queries. Retention
is by count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.emit import EveryBatch, by_time
from windrow.core.keys import encode_equal
from windrow.core.positions import Partition
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import concat
from windrow.core.windows import Tuples
from windrow.operators.aggregate.assignment import bury_messages
from windrow.operators.aggregate.base import Steps, together
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emitter import Emitter, Firing
from windrow.operators.aggregate.output import sorted_states
from windrow.operators.aggregate.state_rows import broken_where_they_meet, merge_rows
from windrow.operators.aggregate.triggers import Judged, Moment
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.operator import RunAgain, numbers_of
from windrow.operators.steps.columns import EARLY, END, MESSAGES, ON_TIME, PENDING, START, UPSERT
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import Slice, countable_rows, event_time_marks
from windrow.operators.steps.micro_batching import Runs
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult
from windrow.operators.steps.work import Work
from windrow.stores.kv import KV, Batch
from windrow.stores.window_state import PlainWindows

#: Auxiliary keys: `c<key>` the last number of a key, `d<key>` a key with rows that are pending until a period ends,
#: `r<key>` a key whose windows are to be counted against the retention at the next step.
_COUNTER, _DIRTY, _COUNTED = b"c", b"d", b"r"


class TupleAggregator(Steps):
    """The logic of one definition of a tuple window."""

    def __init__(self, definition: AggregateDefinition) -> None:
        assert isinstance(definition.window, Tuples)
        super().__init__(definition)
        self.size, self.step = definition.window.size, definition.window.step
        if definition.ids is not None:
            self.seen = SeenIds(definition, self.aux_cf, None)
        self.store = PlainWindows(self.windows_cf, self.aux_cf, definition.by)

    def stays(self, key: bytes, value: bytes) -> bool:
        """True also for the number of messages of each key."""
        return key[:1] == _COUNTER or super().stays(key, value)

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Evict the windows that the counts of the last step put out of retention, then fire the period that `now` crossed."""
        work = self._begin(kv, now_us)
        progress = work.progress
        before_us = progress.now_us
        if progress.schema is not None:
            self._retire(kv)
            if self._emission_changed(kv):
                self._register_not_emitted(kv)
            moment = Moment(progress.step, now_us, before_us)
            if moment.comes(self.definition.emit.early):
                self._tick(work, moment)
        progress.watermark_us, progress.now_us = max(watermark_us, progress.watermark_us), now_us
        return self._end(work)

    def ingest_table(self, kv: KV, table: pa.Table, now_us: int) -> StepResult:
        """Number the messages and store them; full windows fire, and partial ones by the early trigger."""
        work = self._begin(kv, now_us)
        progress, result, dead = work.progress, work.result, work.dead
        table, others = self._passing(self._learnt(progress, table), now_us, dead)
        rows = countable_rows(self.definition, table, now_us, dead)
        rows = self._without_duplicates(kv, rows, result, START_OF_TIME_US)
        result.marks = dict(event_time_marks(rows))
        if others is not None:
            result.marks = further(result.marks, event_time_marks(others))
        if len(rows):
            self._file(work, rows)
        progress.begin(now_us)
        return self._end(work)

    def runs(
        self,
        kv: KV,
        largest_us: Mapping[Partition, int],
        seen_us: Mapping[Partition, int],
        watermark_us: int,
        now_us: int | None,
    ) -> Runs:
        from windrow.operators.aggregate.micro_batching.ingest import TupleRuns

        return TupleRuns(self, kv, largest_us, seen_us, watermark_us, now_us)

    def refiling(self) -> RunAgain | None:
        if self.history is None:
            return None
        return RunAgain(
            logic=self,
            kept_from=lambda kv: START_OF_TIME_US,
            begun=self.begun,
            reached=numbers_of(self, _COUNTER, _DIRTY),
            why=f"{self.definition.name!r} numbers messages by all that came before them",
        )

    # -- storing ----------------------------------------------------------------------------------------------------

    def _file(self, work: Work, rows: Slice) -> None:
        kv, progress, dead, counted = work.kv, work.progress, work.dead, Batch()
        numbers = self._number(kv, rows, counted)
        row_of, firsts = self._assign(numbers)
        rows = self.noted(rows, progress.step, numbers)
        deltas, delta_groups, broken = self.deltas(rows, row_of, firsts, firsts + self.size - 1)
        known = self.store.read(kv, deltas.select([START, *self.definition.by]))
        broken += broken_where_they_meet(self.calculation, known, deltas)
        if broken:
            # Messages on which user code raised have no number; the others are stored without them.
            stays = bury_messages(rows, row_of, delta_groups, broken, dead)
            if stays.any():
                self._file(work, rows.take(np.flatnonzero(stays)))
            return
        if self.history is not None:
            self.history.add(kv, rows, progress.step, self.calculation, numbers)
        kv.write(counted)
        fresh = deltas.append_column(UPSERT, pa.array(np.zeros(len(deltas), dtype=bool)))
        together = fresh if known is None else concat([known, fresh])
        notes = self._notes(not isinstance(self.definition.emit.early, EveryBatch))
        merged, _ = merge_rows(self.calculation, together, notes=notes)
        self._judge(work, merged, Moment(progress.step, work.now_us))

    def _number(self, kv: KV, rows: Slice, batch: Batch) -> IntArray:
        """Return the number of each row among those of its key. batch: receives the writes for those that count."""
        encoded, groups = self._keys(rows)
        stored = kv.multi_get(self.aux_cf, [_COUNTER + k for k in encoded])
        taken = np.array([0 if v is None else int.from_bytes(v, "big") for v in stored], dtype=np.int64)
        order, bounds = groups.slices()
        rank = np.empty(len(rows), dtype=np.int64)
        rank[order] = np.arange(len(rows)) - np.repeat(bounds[:-1], np.diff(bounds))
        counts = (taken + np.diff(bounds)).tolist()
        batch.put_many(self.aux_cf, [_COUNTER + k for k in encoded], [c.to_bytes(8, "big") for c in counts])
        if self.definition.retention.windows is not None or self.definition.retention.messages is not None:
            batch.put_many(self.aux_cf, [_COUNTED + k for k in encoded], [b""] * len(encoded))
        return taken[groups.codes] + rank + 1

    def _keys(self, rows: Slice) -> tuple[list[bytes], Groups]:
        by = self.definition.by
        groups = Groups([rows.table.column(b) for b in by], len(rows))
        first = pa.array(groups.first_rows)
        encoded = encode_equal([combine(rows.table.column(b)).take(first) for b in by]) if by else [b""]
        return encoded, groups

    def _assign(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return (row index, first number of a window that holds it), for each such window."""
        copies = -(-self.size // self.step)
        newest = (numbers - 1) // self.step * self.step + 1
        firsts = newest[:, None] - np.arange(copies - 1, -1, -1, dtype=np.int64)[None, :] * self.step
        row_of = np.repeat(np.arange(len(numbers), dtype=np.int64), copies)
        firsts = firsts.ravel()
        holds = (firsts >= 1) & (firsts + self.size > numbers[row_of])
        return row_of[holds], firsts[holds]

    def _judge(
        self,
        work: Work,
        merged: pa.Table,
        moment: Moment,
    ) -> None:
        kv, result = work.kv, work.result
        full = combine(merged.column(MESSAGES)).to_numpy() >= self.size
        early = self.definition.emit.early
        due = ~full & self._judged(kv, merged, moment).fires(early)
        parts = []
        for mask, timing in ((full, ON_TIME), (due, EARLY)):
            if mask.any():
                # A full window is emitted whatever `on_time` is: no later pane would emit it.
                parts.append(self._fire(work, merged.filter(pa.array(mask)), timing))
        result.panes = together(result.panes, self.definition.by)
        rest = ~(full | due)
        if rest.any():
            parts.append(merged.filter(pa.array(rest)))
        self.store.put(kv, concat(parts))
        if rest.any():
            self._note_waiting(kv, merged.filter(pa.array(rest)))

    def _note_waiting(self, kv: KV, rows: pa.Table) -> None:
        """Mark the keys of rows that are pending until a period ends, where there is one."""
        if by_time(self.definition.emit.early):
            batch = Batch()
            for key in self._encode(rows):
                batch.put(self.aux_cf, _DIRTY + key, b"")
            kv.write(batch)

    def _judged(self, kv: KV, rows: pa.Table, moment: Moment) -> Judged:
        """Return merged rows, ready for a trigger."""
        by = self.definition.by
        return Judged(
            rows, moment, lambda: pa.table({**{b: rows.column(b) for b in by}, **self._values(kv, rows)[0]})
        )

    def _encode(self, rows: pa.Table) -> list[bytes]:
        by = self.definition.by
        if not by:
            return [b""]
        return list(dict.fromkeys(encode_equal([rows.column(b) for b in by])))

    def _fire(self, work: Work, rows: pa.Table, timing: str) -> pa.Table:
        values, firing = partial(self._values, work.kv), Firing(timing, np.full(len(rows), timing == ON_TIME))
        emitter = Emitter(self.definition, work.dead, work.progress.step)
        fired = emitter.fire(
            rows, firing, values, None if self.history is None else partial(values, emitted=True)
        )
        if fired.panes is not None:
            work.result.panes.append(fired.panes)
        return fired.rows

    def _values(
        self, kv: KV, state: pa.Table, *, emitted: bool = False
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        if self.history is None:
            return self.calculation.finish({n: state.column(n) for n in state.column_names}, len(state))
        keys, values = [], []
        ranges: dict[bytes, tuple[int, int]] = {}
        encoded = (
            encode_equal([state.column(b) for b in self.definition.by])
            if self.definition.by
            else [None] * len(state)
        )
        for key, low, high in zip(
            encoded, state.column(START).to_pylist(), state.column(END).to_pylist(), strict=True
        ):
            known = ranges.get(key or b"", (low, high))
            ranges[key or b""] = (min(low, known[0]), max(high, known[1]))
        for key, (low, high) in ranges.items():
            k, v = self.history.store.scan_between(
                kv, (0, ("", 0, low)), (0, ("", 0, high)), key if self.definition.by else None
            )
            keys += k
            values += v
        rows = self.history.decode(kv, keys, values, self.calculation)
        if rows is None:
            return self.history.evaluate(
                kv, state, None, np.zeros(0, np.int64), np.zeros(0, np.int64), self.calculation
            )
        numbers = self.history.store.positions(keys)[2]
        row_of, firsts = self._assign(numbers)
        return self.history.evaluate(kv, state, rows, row_of, firsts, self.calculation, emitted=emitted)

    # -- time and retention -----------------------------------------------------------------------------------------

    def _tick(self, work: Work, moment: Moment) -> None:
        kv = work.kv
        dirty = [k[1:] for k, _ in kv.scan(self.aux_cf, _DIRTY, b"e")]
        if not dirty:
            return
        tables = []
        for key in dirty:
            table = self._open_rows(kv, key)
            if table is not None:
                tables.append(table)
        batch = Batch()
        batch.delete_range(self.aux_cf, _DIRTY, b"e")
        kv.write(batch)
        if not tables:
            return
        rows = without(concat(tables), UPSERT)
        fires = self._judged(kv, rows, moment).fires(self.definition.emit.early)
        if fires.any():
            after = self._fire(work, rows.filter(pa.array(fires)), EARLY)
            self.store.put(kv, after)
        waiting = ~fires & (combine(rows.column(PENDING)).to_numpy() > 0)
        if waiting.any():
            self._note_waiting(kv, rows.filter(pa.array(waiting)))

    def _register_not_emitted(self, kv: KV) -> None:
        """Mark the keys with messages that no pane has emitted."""
        table = self.store.read_all(kv)
        batch = Batch()
        batch.delete_range(self.aux_cf, _DIRTY, b"e")
        kv.write(batch)
        if table is not None:
            self._note_waiting(kv, table.filter(pa.array(combine(table.column(PENDING)).to_numpy() > 0)))

    def _open_rows(self, kv: KV, key: bytes) -> pa.Table | None:
        """Return the state rows of one key's partial windows."""
        value = kv.get(self.aux_cf, _COUNTER + key)
        last = 0 if value is None else int.from_bytes(value, "big")
        low = max(1, last - self.size + 2)
        table = self.store.read_key(kv, key, low, last + 1)
        if table is None:
            return None
        return table.filter(pa.array(combine(table.column(MESSAGES)).to_numpy() < self.size))

    def _retire(self, kv: KV) -> None:
        """Evict the oldest windows beyond the limits, as the last step left them; a partial window is never evicted."""
        if self.definition.retention.windows is None and self.definition.retention.messages is None:
            return
        touched = [k[1:] for k, _ in kv.scan(self.aux_cf, _COUNTED, b"s")]
        if not touched:
            return
        batch = Batch()
        batch.delete_range(self.aux_cf, _COUNTED, b"s")
        if self.definition.retention.per == "key":
            groups = [[key] for key in touched]
        else:
            groups = [[k[1:] for k, _ in kv.scan(self.aux_cf, _COUNTER, b"d")]]
        for keys in groups:
            for key, floor in self._floors(kv, keys).items():
                batch.delete_range(self.windows_cf, key + encode_i64(1), key + encode_i64(floor))
                if self.history is not None and self.definition.by:
                    self.history.store.expire_key(batch, key, ("", 0, floor))
                elif self.history is not None:
                    self.history.store.expire_offsets(kv, batch, "", 0, floor)
        kv.write(batch)

    def _floors(self, kv: KV, keys: list[bytes]) -> dict[bytes, int]:
        """Return the first number that is kept, for each of the keys, which share one limit."""
        retention = self.definition.retention
        last: dict[bytes, int] = {}
        holders: dict[int, list[bytes]] = {}  # first number of a window -> the keys that have it
        total = 0
        for key, value in zip(keys, kv.multi_get(self.aux_cf, [_COUNTER + k for k in keys]), strict=True):
            last[key] = 0 if value is None else int.from_bytes(value, "big")
            oldest = next(
                iter(kv.scan(self.windows_cf, key + encode_i64(1), key + encode_i64(last[key] + 1))), None
            )
            if oldest is None:
                continue
            for first in range(decode_i64(oldest[0][-8:]), last[key] + 1, self.step):
                holders.setdefault(first, []).append(key)
                total += self._held(first, last[key])
        floors: dict[bytes, int] = {}
        count = len(holders)
        for first in sorted(holders):
            too_many = retention.windows is not None and count > retention.windows
            if not too_many and not (retention.messages is not None and total > retention.messages):
                break
            full = [key for key in holders[first] if last[key] >= first + self.size - 1]
            count -= len(full) == len(holders[first])
            total -= self.size * len(full)
            floors.update((key, first + self.step) for key in full)
        return floors

    def _held(self, first: int, last: int) -> int:
        """Return how many messages the window that begins at `first` holds, of `last` in all."""
        return min(self.size, last - first + 1)

    # -- queries ----------------------------------------------------------------------------------------------------

    def states(self, kv: KV, low: int, high: int) -> Iterator[pa.Table]:
        """Yield state rows of retained windows whose first number is in `[low, high)`, with their present values, sorted."""
        progress = Progress.load(kv, self.aux_cf)
        if progress.schema is None:
            return
        self._bind(progress.schema)
        table = self.store.read_all(kv)
        if table is None:
            return
        starts = combine(table.column(START)).to_numpy()
        rows = without(table.filter(pa.array((starts >= low) & (starts < high))), UPSERT)
        if len(rows):
            yield sorted_states(self.definition, rows, self._values(kv, rows)[0])
