"""Oracle of the windowed aggregate in the plainest possible Python: lists and loops, no store.

From the steps of a job it computes the panes and dead letters that each step must give. Operators are compared
with it; it shares nothing with them but the value types of `windrow.core`. Seed 003 "Basic Algorithm for
Windowed Aggregators", seed 001 "Triggers" and "Accumulation Mode".
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from windrow.core.emit import Delay, EveryPeriod, Never, Trigger
from windrow.core.messages import (
    Kind,
    Pane,
    Timing,
    TupleWindow,
    Window,
    WindowInfo,
)
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us, to_datetime
from windrow.core.windows import Inherited, Tuples
from windrow.operators.aggregate.chaining import WINDOW_COLUMNS, WINDOW_END, WINDOW_START, WINDOW_TIME
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.oracle_intake import PlainIntake
from windrow.operators.aggregate.tuple_oracle import Touched, without_failed
from windrow.operators.oracle.aggregates import IntegerOverflow, Row, added, evaluate, same
from windrow.operators.oracle.arrow import Raised
from windrow.operators.oracle.cells import Cell, Key, Taken, place
from windrow.operators.oracle.oracle import Messages, Outcome, listed
from windrow.operators.oracle.times import shown
from windrow.operators.oracle.triggers import Moment
from windrow.operators.oracle.windows import tuple_windows_of, windows_of


class AggregateOracle(PlainIntake):
    """The expected behaviour of one `AggregateDefinition`."""

    definition: AggregateDefinition

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        self._now_us: int | None = None
        self._ticked_us: int | None = None  # `now` of the last advance, or of the very first step
        self._cells: dict[tuple[Key, Window | TupleWindow], Cell] = {}
        self._numbers: dict[Key, int] = {}  # tuple windows: messages of each key so far
        self._floors_us: dict[Key | None, int] = {}  # newest end dropped by size, per key (None: the job)
        self._step = 0
        self._recomputed: tuple[tuple[str, int], ...] = ()
        self._place = _by_end if isinstance(definition.window, Inherited) else place

    def redefine(self, definition: AggregateDefinition) -> None:
        """Replace the definition. A last pane under the former one need not stay the last."""
        self.definition = definition
        self._arguments = {name: a.of_others(self._of(name)) for name, a in self._arguments.items()}
        kept = [message for cell in self._sorted() for message in cell.messages]
        if definition.recomputed_us:
            self._learn_arguments(kept, [])
        for message in kept:
            if definition.numbered:  # an aggregation that returns counts as added
                message.arguments = {a: v for a, v in message.arguments.items() if a in definition.agg}
            input = self._input_of(message.position).name
            aliases, own = self._of(input), self._arguments[input]
            new = [a for a, _ in definition.recomputed_us if a not in message.arguments]
            message.arguments |= dict.fromkeys(new)
            message.arguments |= own.of_kept(message.payload, [a for a in new if a in aliases])
        for cell in self._sorted():
            cell.ended = False

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        """Fire, tick, close and expire."""
        self._dead, self._step = [], self._step + 1
        now = self._now(now_us)
        ticked = now if self._ticked_us is None else self._ticked_us
        before, after = self.watermark_us, max(watermark_us, self.watermark_us)
        self.watermark_us, self._ticked_us = after, now
        emit, panes = self.definition.emit, self._corrections(before)

        expiry, cells = self._drop_by_size(before, after), self._sorted()
        for cell in cells:
            if before < self._end(cell) <= after and (emit.on_time or (cell.pending and not emit.emits_late)):
                cell.fired = True
                no_more = not emit.emits_late
                panes += self._emit(cell, Timing.ON_TIME, no_more or self._closed(cell, after))
        for cell in cells:
            early, closed = self._is_early(cell, after), self._closed(cell, after)
            trigger = emit.early if early else emit.late
            moment = self._moment(cell, now, ticked, (before, after))
            if moment.fires(trigger) and (cell.pending or not closed):
                timing = Timing.EARLY if early else Timing.LATE
                panes += self._emit(cell, timing, closed and not early, always=moment.insists(trigger))
        for cell in cells:
            if not self._closed(cell, before) and self._closed(cell, after) and not cell.ended:
                late = cell.pending and not isinstance(emit.late, Never)
                if late or emit.closing_pane:
                    expiry.append((cell, Timing.LATE))
        for cell, timing in sorted(expiry, key=lambda pair: self._place(pair[0])):
            panes += self._emit(cell, timing, True, closing=True)

        for cell in cells:
            if self._expired(cell, after):
                del self._cells[cell.key, cell.window]
        return Outcome(panes, self._buried())

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        """Process messages in position order, then judge each (key, window) that they touched, once."""
        messages, self._dead, self._step = listed(messages), [], self._step + 1
        now = self._now(now_us)
        self._ticked_us = now if self._ticked_us is None else self._ticked_us
        self.counted, corrections = [], self._corrections(watermark_us)
        touched: Touched = {}
        numbers, filed = dict(self._numbers), list[tuple[Key, Taken]]()
        for message in self._admitted(messages, now, watermark_us):
            key = self._key_of(message)
            if not self._ids.is_new(key, message, watermark_us):
                self.duplicates += 1
                continue
            refused = self._refused(message)
            numbered = isinstance(self.definition.window, Tuples)
            windows = (
                [] if refused is not None and numbered else self._windows_for(message, key, watermark_us)
            )
            if refused is not None and (windows or numbered):
                self._bury("malformed", refused, message.position, message.time_us, message.payload)
                self._ids.forget(key, message)
                continue
            if windows is not None:
                self.counted.append((message.position.source, message.position.partition, message.time_us))
            filed.append((key, message))
            for window in windows or []:
                touched.setdefault((key, window), []).append(message)
        if isinstance(self.definition.window, Tuples) or self.definition.full_state:
            touched = without_failed(self, touched, filed, numbers)
        cells = [self._file(key, window, new, now) for (key, window), new in touched.items()]
        panes: list[Pane] = []
        for cell in sorted([cell for cell in cells if cell is not None], key=self._place):
            panes += self._judge(cell, watermark_us, now)
        return Outcome(corrections + panes, self._buried())

    def _corrections(self, watermark_us: int) -> list[Pane]:
        """Emit panes of windows that still take messages again, where aggregations of kept messages were added."""
        recomputed, emit, panes = self.definition.recomputed_us, self.definition.emit, list[Pane]()
        if set(recomputed) <= set(self._recomputed):
            return []
        self._recomputed = recomputed
        for cell in self._sorted():
            early = self._is_early(cell, watermark_us)
            emitted = cell.panes > 0 and cell.first_us < max(us for _, us in recomputed)
            if emitted and not self._closed(cell, watermark_us) and (early or emit.emits_late):
                panes += self._emit(cell, Timing.EARLY if early else Timing.LATE, False)
        return panes

    def windows(self) -> list[WindowInfo]:
        """Return every retained window, sorted by (start, end, key).

        In discarding mode the values are of the messages since the last pane: earlier ones were discarded with it.
        """
        return [self._info(c, c.fired) for c in sorted(self._cells.values(), key=place) if c.remaining]

    def _info(self, cell: Cell, fired: bool) -> WindowInfo:
        return WindowInfo(
            window=shown(cell.window),
            key=self._key(cell),
            messages=len(cell.remaining),
            first=min(m.position for m in cell.messages),
            last=max(m.position for m in cell.messages),
            values={alias: self._value_or_none(alias, cell) for alias in self.definition.agg},
            panes=cell.panes,
            fired=fired,
        )

    def forwarded(self, row: Any) -> dict[str, Any]:
        assert isinstance(row.window, Window)
        start_us, end_us = row.window.start_us, row.window.end_us
        return {
            **row.key,
            **row.values,
            WINDOW_TIME: to_datetime(end_us - 1),
            WINDOW_START: to_datetime(start_us),
            WINDOW_END: to_datetime(end_us),
        }

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.definition.output_columns, *WINDOW_COLUMNS)

    def _only_advances(self, message: Taken, watermark_us: int) -> bool:
        covering, open_ = self._covering(message, self._key_of(message), watermark_us)
        return bool(open_) or not covering

    def _windows_for(self, message: Taken, key: Key, watermark_us: int) -> list[Window | TupleWindow] | None:
        """Return the windows that take the message (in a gap between hops: none), or None: a dead letter."""
        spec = self.definition.window
        if isinstance(spec, Tuples):
            self._numbers[key] = self._numbers.get(key, 0) + 1
            return [*tuple_windows_of(spec, self._numbers[key])]
        floor, kept = self._floor(key), self.definition.retention.time_us
        covering, open_ = self._covering(message, key, watermark_us)
        if covering and not open_:
            gone = all(
                w.end_us <= floor or (kept is not None and past(w.end_us, kept, watermark_us))
                for w in covering
            )
            reason = "out_of_retention" if gone else "too_late"
            detail = f"no window of {covering!r} takes messages at watermark {watermark_us}"
            self._bury(reason, detail, message.position, message.time_us, message.payload)
            return None
        return [*open_]

    def _covering(self, message: Taken, key: Key, watermark_us: int) -> tuple[list[Window], list[Window]]:
        """Return (the windows of time that hold its time, those of them that still take it)."""
        spec, late = self.definition.window, self.definition.allowed_lateness_us
        if isinstance(spec, Tuples):
            covering = []
        elif isinstance(spec, Inherited):
            covering = [_inherited(message)]
        else:
            covering = [*windows_of(spec, message.time_us)]
        floor = self._floor(key)
        return covering, [w for w in covering if w.end_us > floor and not past(w.end_us, late, watermark_us)]

    def _floor(self, key: Key) -> int:
        """Return the end at or before which windows were evicted by size."""
        return self._floors_us.get(key if self.definition.retention.per == "key" else None, START_OF_TIME_US)

    def _refused(self, message: Taken) -> str | None:
        """Return the error of an expression for the values of a message, such as a division by zero; else None."""
        try:
            message.arguments = self._arguments_of(message)
        except Raised as error:
            return str(error)
        return None

    def _file(self, key: Key, window: Window | TupleWindow, new: list[Taken], now_us: int) -> Cell | None:
        """Put messages into a window, unless a user aggregate cannot take them: then none."""
        former = self._cells.get((key, window))
        cell = Cell(key, window) if former is None else former
        cell.messages = cell.messages + new
        cell.pending = cell.pending + new
        try:
            for alias in self.definition.agg:
                self._value(alias, cell, added)
        except Exception:
            for message in new:
                self._bury(
                    "aggregate_failed",
                    traceback.format_exc(),
                    message.position,
                    message.time_us,
                    message.payload,
                )
            cell.messages = cell.messages[: -len(new)]
            cell.pending = cell.pending[: -len(new)]
            return None
        self._cells[key, window] = cell
        if cell.since_us is None and any(isinstance(t, Delay) for t in self.definition.emit.leaves):
            cell.since_us = now_us
        return cell

    def _judge(self, cell: Cell, watermark_us: int, now_us: int) -> list[Pane]:
        """Fire full tuple windows; else the early or the late trigger decides, by the messages that have come."""
        emit = self.definition.emit
        if isinstance(cell.window, TupleWindow) and self._numbers[cell.key] >= cell.window.last:
            cell.fired = True
            return self._emit(cell, Timing.ON_TIME, True)
        early = self._is_early(cell, watermark_us)
        fires = self._moment(cell, now_us, None, (watermark_us, watermark_us)).fires(
            emit.early if early else emit.late
        )
        return self._emit(cell, Timing.EARLY if early else Timing.LATE, False) if fires else []

    def _emit(
        self, cell: Cell, timing: Timing, is_last: bool, closing: bool = False, always: bool = False
    ) -> list[Pane]:
        """Return the panes of one judgement: none, one, or a retraction and the pane that replaces it."""
        emit = self.definition.emit
        news = bool(cell.pending)
        try:
            values = {alias: self._value(alias, cell) for alias in self.definition.agg}
        except Exception as error:
            cell.pending, cell.since_us = [], None
            if emit.mode == "discarding":
                cell.emitted_in = self._step  # a discarded pane counts as emitted
            reason = "integer_overflow" if isinstance(error, IntegerOverflow) else "aggregate_failed"
            self._bury(reason, f"{cell.window!r} {self._key(cell)!r}: {error}", None, None, {})
            return []
        cell.pending, cell.since_us = [], None
        if not cell.remaining:
            return self._vanished(cell, timing)
        unchanged = cell.sent is not None and same(self._said(cell.sent), values)
        asked = closing and emit.closing_pane
        if emit.only_if_changed and not asked and (not news if emit.mode == "discarding" else unchanged):
            return []
        panes, window = [], shown(cell.window)
        if emit.mode == "retracting" and cell.sent is not None:
            if unchanged and not asked and not always and timing is not Timing.ON_TIME:
                return []
            panes.append(self._back(cell, cell.sent, timing))
        panes.append(Pane(window, self._key(cell), values, timing, cell.panes, is_last))
        cell.panes += 1
        cell.sent = values
        cell.emitted_in = self._step
        cell.ended = is_last
        return panes

    def _vanished(self, cell: Cell, timing: Timing) -> list[Pane]:
        """Retract the last pane of a window whose messages were all retracted; nothing replaces it."""
        sent, cell.sent = cell.sent, None
        return [] if sent is None else [self._back(cell, sent, timing)]

    def _back(self, cell: Cell, sent: dict[str, Any], timing: Timing) -> Pane:
        values, index = self._said(sent), cell.panes - 1
        return Pane(shown(cell.window), self._key(cell), values, timing, index, False, Kind.RETRACT)

    def _said(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Return the emitted values of the current aggregations; null for one that was added since."""
        return {alias: sent.get(alias) for alias in self.definition.agg}

    def _value(self, alias: str, cell: Cell, make: Callable[..., Any] = evaluate) -> Any:
        since, numbered = dict(self.definition.since_us), self.definition.numbered
        if not numbered and cell.first_us < since.get(alias, cell.first_us):
            return None  # it was added to the state when the window had, or could have had, messages
        discarding = self.definition.emit.mode == "discarding"
        rows, messages = [], cell.pending if discarding else cell.remaining
        if numbered and any(alias not in m.arguments for m in messages):
            return None  # it was added to the state when the window had messages
        for message in messages:
            arguments = message.arguments[alias]
            if arguments is not None:
                rows.append(Row(message.time_us, message.position, message.payload, arguments))
        return make(self.definition.agg[alias], rows, self.definition.integer_overflow)

    def _moment(
        self, cell: Cell, now_us: int, ticked_us: int | None, moved: tuple[int, int] = (0, 0)
    ) -> Moment:
        """Return a moment of a window. ticked_us: `now` of the last advance, None in an ingest; moved: watermarks around it"""

        def shown() -> dict[str, Any]:
            return {**self._key(cell), **{a: self._value_or_none(a, cell) for a in self.definition.agg}}

        def ends(leaf: Trigger) -> bool:
            if isinstance(leaf, EveryPeriod) and leaf.event_time:
                return ticked_us is not None and moved[0] > START_OF_TIME_US and ticks(leaf, *moved)
            return ticked_us is not None and ticks(leaf, ticked_us, now_us)

        over, emitted = not self._is_early(cell, moved[1]), cell.emitted_in == self._step
        passed = over and self._is_early(cell, moved[0])
        return Moment(cell, now_us, ticked_us is not None, ends, shown, emitted, over, passed)

    def _value_or_none(self, alias: str, cell: Cell) -> Any:
        try:
            return self._value(alias, cell)
        except Exception:
            return None

    def _key(self, cell: Cell) -> dict[str, Any]:
        return dict(zip(self.definition.by, cell.key, strict=True))

    def _sorted(self) -> Sequence[Cell]:
        """Return the windows in the order of panes; a copy, whatever becomes of them."""
        return sorted(self._cells.values(), key=self._place)

    def _end(self, cell: Cell) -> int:
        """Return the end of a window of event time; a tuple window has none that a watermark could pass."""
        return 2**64 if isinstance(cell.window, TupleWindow) else cell.window.end_us

    def _is_early(self, cell: Cell, watermark_us: int) -> bool:
        return self._end(cell) > watermark_us

    def _closed(self, cell: Cell, watermark_us: int) -> bool:
        """True if the window takes no more messages."""
        return past(self._end(cell), self.definition.allowed_lateness_us, watermark_us)

    def _expired(self, cell: Cell, watermark_us: int) -> bool:
        kept = self.definition.retention.time_us
        return kept is not None and past(self._end(cell), kept, watermark_us)

    def _drop_by_size(self, before_us: int, watermark_us: int) -> list[tuple[Cell, Timing]]:
        """Evict the oldest windows beyond the limits by number; return those that emit a last pane.

        The counts of the step before decide.
        """
        retention, emit = self.definition.retention, self.definition.emit
        groups: dict[Key | None, list[Cell]] = {}
        limited = retention.windows is not None or retention.messages is not None
        for cell in self._counted_cells(before_us) if limited else ():
            groups.setdefault(cell.key if retention.per == "key" else None, []).append(cell)
        last_words = []
        for group, cells in groups.items():
            windows = sorted({(cell.end_us, cell.first_us) for cell in cells})
            count, total = len(windows), sum(len(cell.remaining) for cell in cells)
            for window in windows:
                too_many = retention.windows is not None and count > retention.windows
                too_large = retention.messages is not None and total > retention.messages
                if not too_many and not too_large:
                    break
                here = [cell for cell in cells if (cell.end_us, cell.first_us) == window]
                dropped = [cell for cell in here if not isinstance(cell.window, TupleWindow) or cell.fired]
                count -= len(dropped) == len(here)
                for cell in dropped:
                    total -= len(cell.remaining)
                    self._drop(cell)
                    if isinstance(cell.window, Window):
                        self._floors_us[group] = max(window[0], self._floors_us.get(group, START_OF_TIME_US))
                    early = self._is_early(cell, watermark_us)
                    not_emitted = self.definition.emits_evicted and self._is_early(cell, before_us)
                    never = isinstance(emit.early if early else emit.late, Never)
                    waits = cell.pending and (not_emitted or not never)
                    open_ = isinstance(cell.window, Window) and not self._closed(cell, before_us)
                    if waits or (open_ and emit.closing_pane):
                        last_words.append((cell, Timing.EARLY if early else Timing.LATE))
        return last_words

    def _counted_cells(self, watermark_us: int) -> Sequence[Cell]:
        """Return the windows that count towards the limits."""
        return [*self._cells.values()]

    def _drop(self, cell: Cell) -> None:
        del self._cells[cell.key, cell.window]

    def _now(self, now_us: int) -> int:
        self._now_us = now_us if self._now_us is None else max(now_us, self._now_us)
        return self._now_us


def _inherited(message: Taken) -> Window:
    """Return the window that a message came from; one that begins before the year 1 has no start."""
    start = message.payload[WINDOW_START]
    return Window(START_OF_TIME_US if start is None else instant_us(start), message.time_us + 1)


def _by_end(cell: Cell) -> tuple[Any, ...]:
    """Return the sort key of panes of propagated windows: end, key and start."""
    first_us, end_us, key = place(cell)
    return (end_us, [*key, (1, first_us)])


def past(end_us: int, by_us: int, watermark_us: int) -> bool:
    """True if the watermark is `by_us` or more past the end; if that is without bound, at the end of time only."""
    if watermark_us >= END_OF_TIME_US:
        return end_us <= END_OF_TIME_US
    return by_us < UNBOUNDED_US and end_us + by_us <= watermark_us


def ticks(trigger: Trigger, before_us: int, now_us: int) -> bool:
    """True if `now` crossed a multiple of the period."""
    return isinstance(trigger, EveryPeriod) and now_us // trigger.period_us > before_us // trigger.period_us
