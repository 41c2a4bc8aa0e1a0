"""Oracle of the windowed aggregate in the plainest possible Python: lists and loops, no store.

From the steps of a job it computes the panes and dead letters that each step must give. Operators are compared
with it; it shares nothing with them but the value types of `windrow.core`. Seed 003 "Basic Algorithm for
Windowed Aggregators", seed 001 "Triggers" and "Accumulation Mode".
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.emit import Delay, EveryPeriod, Never, Trigger
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.messages import (
    DeadLetter,
    Kind,
    Message,
    Pane,
    Position,
    Timing,
    TupleWindow,
    Window,
    WindowInfo,
)
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us, to_datetime
from windrow.core.windows import Hopping, Inherited, Session, Tuples, TupleSession
from windrow.operators.aggregate.definition import (
    WINDOW_COLUMNS,
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    AggregateDefinition,
)
from windrow.operators.oracle.aggregates import IntegerOverflow, Row, added, evaluate, is_nan, same
from windrow.operators.oracle.arrow import Arguments, Filter, Raised
from windrow.operators.oracle.cells import Cell, Key, Taken, key_field, place
from windrow.operators.oracle.oracle import Messages, Oracle, Outcome, TakenBack, listed
from windrow.operators.oracle.times import event_time_us, shown
from windrow.operators.oracle.triggers import Moment
from windrow.operators.oracle.windows import tuple_windows_of, windows_of


class AggregateOracle(Oracle):
    """The expected behaviour of one `AggregateDefinition`."""

    definition: AggregateDefinition

    def __init__(self, definition: AggregateDefinition) -> None:
        super().__init__(definition)
        self._arrived = 0
        self._ids = PlainIds(definition)
        self._arguments = {i.name: Arguments(self._of(i.name)) for i in definition.inputs}
        wheres = {i.name: definition.where if i.where is None else i.where for i in definition.inputs}
        self._filters = {name: Filter(where) for name, where in wheres.items()}
        #: Other expressions over messages besides aggregations, by input.
        self._asked: dict[str, list[Arguments]] = {name: [f] for name, f in self._filters.items()}
        self._derived = Arguments({name: Aggregation("any_value", (e,)) for name, e in definition.makes})
        self._dead: list[DeadLetter] = []
        self._inputs = definition, definition.inputs
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

    def _advance_to(self, watermark_us: int, now_us: int) -> tuple[int, int, int, int]:
        """Begin a step. Returns the watermark before and after it, and the time before and after it."""
        self._dead, self._step = [], self._step + 1
        now = self._now(now_us)
        ticked = now if self._ticked_us is None else self._ticked_us
        before, after = self.watermark_us, max(watermark_us, self.watermark_us)
        self.watermark_us, self._ticked_us = after, now
        return before, after, ticked, now

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        """Fire, tick, close and expire."""
        before, after, ticked, now = self._advance_to(watermark_us, now_us)
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
        emit, news, values = self.definition.emit, bool(cell.pending), self._finished(cell)
        if values is None:
            return []
        if not cell.remaining:
            return self._vanished(cell, timing)
        unchanged = cell.sent is not None and same(self._emitted_values(cell.sent), values)
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

    def _finished(self, cell: Cell) -> dict[str, Any] | None:
        """Return the values of a cell, which is not pending any more; None where they raise."""
        try:
            return {alias: self._value(alias, cell) for alias in self.definition.agg}
        except Exception as error:
            if self.definition.emit.mode == "discarding":
                cell.emitted_in = self._step  # a discarded pane counts as emitted
            reason = "integer_overflow" if isinstance(error, IntegerOverflow) else "aggregate_failed"
            self._bury(reason, f"{cell.window!r} {self._key(cell)!r}: {error}", None, None, {})
            return None
        finally:
            cell.pending, cell.since_us = [], None

    def _vanished(self, cell: Cell, timing: Timing) -> list[Pane]:
        """Retract the last pane of a window whose messages were all retracted; nothing replaces it."""
        sent, cell.sent = cell.sent, None
        return [] if sent is None else [self._back(cell, sent, timing)]

    def _back(self, cell: Cell, sent: dict[str, Any], timing: Timing) -> Pane:
        values, index = self._emitted_values(sent), cell.panes - 1
        return Pane(shown(cell.window), self._key(cell), values, timing, index, False, Kind.RETRACT)

    def _emitted_values(self, sent: dict[str, Any]) -> dict[str, Any]:
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

    def know(self, input: str, columns: Sequence[str]) -> None:
        [only, *others] = self._arguments
        name = input if others else only  # a single input takes any name
        for arguments in (self._arguments[name], *self._asked[name]):
            arguments.learn([dict.fromkeys(columns)])
        self._learn_made([dict.fromkeys(columns)])

    # -- the input of a message ---------------------------------------------------------------------------------------

    def _input_of(self, position: Position | None) -> Input:
        """Return the input of a message; with several, the source of its position begins with its name."""
        if self._inputs[0] is not self.definition:  # it builds them at each call
            self._inputs = self.definition, self.definition.inputs
        first, *others = self._inputs[1]
        if not others or position is None:
            return first
        return self.definition.input(position.source.partition(":")[0])

    def _of(self, input: str) -> dict[str, Aggregation]:
        """Return the aggregations of an input: its own, and those of all."""
        return {
            alias: part for alias, a in self.definition.agg.items() if (part := a.part(input)) is not None
        }

    def _learn_arguments(self, admitted: Iterable[Taken], others: Iterable[Message]) -> None:
        """Record the columns of inputs. A column of a message that does not count is known by name only: `others`."""
        for name, arguments in self._arguments.items():
            known = [m.payload for m in admitted if self._input_of(m.position).name == name]
            arguments.learn(
                known + [dict.fromkeys(m.payload) for m in others if self._input_of(m.position).name == name]
            )

    def _arguments_of(self, message: Taken) -> dict[str, tuple[Any, ...] | None]:
        """Return arguments by alias; None where the message is not aggregated. Raises `Raised`."""
        arguments = self._arguments[self._input_of(message.position).name].of(message.payload)
        return {alias: arguments.get(alias) for alias in self.definition.agg}

    def _admitted(self, messages: Sequence[Message], now_us: int, watermark_us: int) -> list[Taken]:
        """Return the messages of a step that pass the filter and can be counted, in order."""
        self._learn_made([m.payload for m in messages])
        derived = [m for placed in self._in_order(messages) if (m := self._with_made(placed)) is not None]
        timed = [t for m in derived if (t := self._timed(m, now_us)) is not None]
        every = [*messages, *(m for _, m in derived)]
        for name, asked in self._asked.items():
            known = [t.payload for t in timed if self._input_of(t.position).name == name]
            known += [dict.fromkeys(m.payload) for m in every if self._input_of(m.position).name == name]
            for arguments in asked:
                arguments.learn(known)
        admitted = [t for t in timed if self._passes(t, watermark_us) and self._admit(t)]
        self._learn_arguments(admitted, every)
        return admitted

    def _learn_made(self, payloads: Iterable[Mapping[str, Any]]) -> None:
        """Learn derived columns, without the event time: values that are no time may have any type."""
        time = self.definition.event_time
        self._derived.learn([{n: v for n, v in payload.items() if n != time} for payload in payloads])

    # -- one by one ---------------------------------------------------------------------------------------------------

    def _in_order(self, messages: Iterable[Message]) -> list[tuple[Position, Message]]:
        """Return messages by (source, partition, offset, ordinal); messages without a position are numbered on arrival."""
        placed = []
        for message in messages:
            position = message.position
            if position is None:
                position = Position("", 0, self._arrived)
                self._arrived += 1
            placed.append((position, message))
        return sorted(placed, key=lambda pair: pair[0])

    def _with_made(self, placed: tuple[Position, Message]) -> tuple[Position, Message] | None:
        """Return the message with the derived keys and the derived time."""
        position, message = placed
        try:
            derived = self._derived.of(dict(message.payload))
        except Raised as error:
            self._bury("malformed", str(error), position, None, dict(message.payload))
            return None
        columns = {name: values[0] for name, values in derived.items() if values is not None}
        return position, replace(message, payload={**message.payload, **columns})

    def _timed(self, placed: tuple[Position, Message], now_us: int) -> Taken | None:
        position, message = placed
        payload, input = dict(message.payload), self._input_of(position)
        value = payload.get(input.event_time)
        time_us = event_time_us(value, input.time_zone, now_us, input.max_ahead_us, input.event_time_unit)
        if time_us is None:
            self._bury("malformed", f"event time {input.event_time!r} is {value!r}", position, None, payload)
            return None
        sign = -1 if isinstance(placed[1], TakenBack) else 1
        return Taken(time_us, position, payload, {}, sign=sign)

    def _passes(self, message: Taken, watermark_us: int) -> bool:
        """True for a message that passes the filter of the input. Another one only advances the watermark."""
        try:
            if self._filters[self._input_of(message.position).name].passes(message.payload):
                return True
        except Raised as error:
            self._bury("malformed", str(error), message.position, message.time_us, message.payload)
            return False
        if self._only_advances(message, watermark_us):
            self.counted.append((message.position.source, message.position.partition, message.time_us))
        return False

    def _admit(self, message: Taken) -> bool:
        position, time_us, payload = message.position, message.time_us, message.payload
        if self._ids.are_missing(payload):
            self._bury("malformed", "an id is null", position, time_us, payload)
            return False
        nulls = [column for column in self._keys_of(position) if payload.get(column) is None]
        if nulls and self.definition.null_keys == "dead_letter":
            self._bury("null_key", f"key field {nulls[0]!r} is null", position, time_us, payload)
            return False
        return True

    def _key_of(self, message: Taken) -> Key:
        return tuple(key_field(message.payload.get(column)) for column in self._keys_of(message.position))

    def _keys_of(self, position: Position) -> tuple[str, ...]:
        return self.definition.keys(self._input_of(position))

    def _bury(
        self,
        reason: str,
        detail: str,
        position: Position | None,
        time_us: int | None,
        payload: dict[str, Any],
    ) -> None:
        self._dead.append(DeadLetter(reason, detail, position, time_us, repr(payload)))

    def _buried(self) -> list[DeadLetter]:
        """Return dead letters by position; failed panes come last."""
        return sorted(self._dead, key=lambda letter: (letter.position is None, letter.position or ()))


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


class PlainIds:
    """The ids of one definition's messages; of a definition without ids, nothing."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self._definition = definition
        self._columns = () if definition.ids is None else definition.ids.columns
        self._seen: dict[tuple[Key, Key], int] = {}  # key and ids -> event time of the message that had them

    def are_missing(self, payload: Mapping[str, Any]) -> bool:
        return any(payload.get(column) is None or is_nan(payload[column]) for column in self._columns)

    def is_new(self, key: Key, message: Taken, watermark_us: int) -> bool:
        """False for a message of a key and ids that are remembered."""
        if not self._columns:
            return True
        known_as = self._known_as(key, message)
        before_us = self._seen.get(known_as)
        if before_us is not None and self._remembered(before_us, watermark_us):
            return False
        self._seen[known_as] = message.time_us
        return True

    def forget(self, key: Key, message: Taken) -> None:
        """Forget the ids of a message that cannot be counted: the next one with them is new."""
        if self._columns:
            del self._seen[self._known_as(key, message)]

    def _known_as(self, key: Key, message: Taken) -> tuple[Key, Key]:
        values = [message.payload[column] for column in self._columns]
        # Messages of several inputs are known within their own.
        several = len(self._definition.inputs) > 1
        input = message.position.source.partition(":")[0] if several else None
        return key, (input, *((isinstance(value, bool), value) for value in values))

    def _remembered(self, time_us: int, watermark_us: int) -> bool:
        """True until the last window that begins at or before the event time is out of retention."""
        spec, kept_us = self._definition.window, self._definition.retention.time_us
        if kept_us is None or kept_us >= UNBOUNDED_US or isinstance(spec, Tuples | TupleSession):
            return True
        if isinstance(spec, Session):  # until a message of that time is out of retention by itself
            cell = windows_of(spec.cut, time_us) if spec.cut is not None else []
            gap_us = 0 if isinstance(spec.gap, Expr) else spec.gap
            end_us = min([time_us + gap_us, *(window.end_us for window in cell)])
            return end_us + kept_us >= watermark_us
        covering = windows_of(spec, time_us)
        while not covering and isinstance(spec, Hopping):  # in a gap between hops: the window before it
            time_us -= spec.size_us
            covering = windows_of(spec, time_us)
        return covering[-1].end_us + kept_us > watermark_us


#: New messages of each window of each key.
Touched = dict[tuple[Key, Window | TupleWindow], list[Taken]]


def without_failed(
    oracle: AggregateOracle, touched: Touched, filed: list[tuple[Key, Taken]], numbers: dict[Key, int]
) -> Touched:
    """Remove a message on which code raises, with others of its step in one of its windows; it is in none and gets no number.

    filed: the messages of the step, in order. numbers: how many there were of each key before it
    """
    while failed := _failed(oracle, touched):
        left = {one: [m for m in new if not any(m is f for f in failed)] for one, new in touched.items()}
        if not isinstance(oracle.definition.window, Tuples):
            touched = {one: new for one, new in left.items() if new}
            continue
        filed = [(key, m) for key, m in filed if not any(m is other for other in failed)]
        oracle._numbers, touched = dict(numbers), {}
        for key, message in filed:
            for window in oracle._windows_for(message, key, START_OF_TIME_US) or []:
                touched.setdefault((key, window), []).append(message)
    return touched


def _failed(oracle: AggregateOracle, touched: Touched) -> list[Taken]:
    """Return the messages of windows in which code raises; they are dead letters."""
    failed = list[Taken]()
    for (key, window), new in touched.items():
        former = oracle._cells.get((key, window), Cell(key, window))
        cell = Cell(key, window, former.messages + new, former.pending + new)
        try:
            for alias in oracle.definition.agg:
                oracle._value(alias, cell, added)
        except Exception:
            for m in new:
                if not any(m is other for other in failed):
                    detail = traceback.format_exc()
                    oracle._bury("aggregate_failed", detail, m.position, m.time_us, m.payload)
                    failed.append(m)
    return failed
