"""Oracle of an alert, in lists and loops: each key has a list of samples, and a status.

Within a step the samples of a key are ingested in the order of event time. Those before the moment of its window come first,
and cause one evaluation together. Each of the others causes one, after the rows that time made due before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from windrow.core.aggregation import Aggregation
from windrow.core.emit import EveryCount
from windrow.core.expressions import Expr
from windrow.core.frames import RangeBetween
from windrow.core.keys import encode_key, plain_number
from windrow.core.messages import Message, Position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime
from windrow.operators.alert.actions import Action
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.alert.identity import alert_id, number_of
from windrow.operators.oracle.aggregates import IntegerOverflow, Row, evaluate
from windrow.operators.oracle.arrow import Arguments, Columns, Raised
from windrow.operators.oracle.cells import Key
from windrow.operators.oracle.one_input import OneInputOracle
from windrow.operators.oracle.oracle import Messages, Outcome, by_input, listed

#: In this order things are due that are due at one moment.
_DELAY, _EXPIRY, _LEAVING = range(3)


@dataclass
class Sample:
    """A message in a window."""

    time_us: int
    position: Position
    payload: dict[str, Any]
    arguments: dict[str, tuple[Any, ...] | None]


@dataclass
class Watched:
    """The window and the status of one key.

    seen_us: the moment of its last sample. begun: false while it has history alone. pending: action -> when its delay ends, and
    the row of the opening. repeats: action -> the `now` of its next row. last: the row of the last evaluation
    """

    key: Key
    samples: list[Sample] = field(default_factory=list)
    seen_us: int = START_OF_TIME_US
    begun: bool = False
    status: str = "CANCEL"
    count: int = 0
    open_us: int | None = None
    change_us: int | None = None
    alert_id: str | None = None
    pending: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)

    def cancel(self) -> None:
        self.status, self.count, self.open_us, self.change_us = "CANCEL", 0, None, None
        self.pending, self.repeats, self.last = {}, {}, {}


class AlertOracle(OneInputOracle):
    """The expected behaviour of one `AlertDefinition`."""

    definition: AlertDefinition

    def __init__(self, definition: AlertDefinition) -> None:
        super().__init__(definition)
        self._keys: dict[bytes, Watched] = {}
        self._arguments = Arguments(dict(definition.agg))
        self._columns = Columns()
        self._new: dict[bytes, list[Sample]] = {}
        self._emitted: list[tuple[tuple[Any, ...], str, dict[str, Any]]] = []
        self._now_us: int | None = None
        self._step_us = 0
        self._began = False

    def know(self, input: str, columns: Sequence[str]) -> None:
        super().know(input, columns)
        self._began = True

    # -- steps ------------------------------------------------------------------------------------------------------

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        time = self.definition.event_time
        self._arguments.learn([{**m.payload, time: None} for m in listed(messages)])
        self._began = self._began or bool(listed(messages))
        self._step_us = now_us
        by_name = by_input(self.definition.inputs, messages)
        history, loaded = self.definition.history, list[Any]()
        past = [] if history is None else by_name.pop(history, [])
        if past:
            self._input, self.counted = self.definition.inputs[1], []
            self._ingest(past, now_us, self._load)
            self._fill()
            loaded = self.counted
        buried = super().ingest([m for of_input in by_name.values() for m in of_input], now_us, watermark_us)
        self.counted = [*loaded, *self.counted]
        if self._now_us is None:
            self._now_us = now_us
        for key, samples in self._new.items():
            self._add(key, samples)
        self._new = {}
        self._flush()
        emitted = self._outcome()
        return Outcome(emitted.rows, buried.dead + emitted.dead)

    def _load(self, message: Message, time_us: int, now_us: int) -> bool:
        """Accept a message of history."""
        sample = self._sample(message, time_us)
        if sample is None:
            return False
        key = self.key_of(message.payload)
        watched = self._keys.setdefault(encode_key([plain_number(v) for v in key]), Watched(key))
        if watched.begun:
            self.bury("too_late", message, time_us)
            return False
        watched.samples.append(sample)
        return True

    def _fill(self) -> None:
        """Let keys whose first message has not come begin with the history that is in their windows."""
        for watched in self._keys.values():
            if not watched.begun:
                watched.seen_us = max([watched.seen_us, *(s.time_us for s in watched.samples)])
                self._window(watched, self._moment(watched))
        self._flush()

    def _sample(self, message: Message, time_us: int) -> Sample | None:
        """Return a message as it is kept in a window; None for a dead letter."""
        payload = dict(message.payload)
        assert message.position is not None
        self._arguments.learn([payload])
        try:
            return Sample(time_us, message.position, payload, self._arguments.of(payload))
        except Raised:
            self.bury("malformed", message, time_us)
            return None

    def accept(self, message: Message, time_us: int, now_us: int) -> bool:
        key, sample = self.key_of(message.payload), self._sample(message, time_us)
        encoded = encode_key([plain_number(value) for value in key])
        if sample is None:
            return False
        watched = self._keys.setdefault(encoded, Watched(key))
        size_us = self.definition.size_us
        if size_us is not None and time_us < self._moment(watched) - size_us:
            self.bury("too_late", message, time_us)
            return False
        self._new.setdefault(encoded, []).append(sample)
        return True

    def pass_time(self, before_us: int, now_us: int) -> None:
        self._step_us = now_us
        if self.watermark_us < END_OF_TIME_US:
            for watched in self._in_order():
                since_us = before_us if self.definition.clocked else max(watched.seen_us, before_us)
                self._pass(watched, since_us, self.watermark_us, "ON_TIME")
            self._flush()
            period_us, former_us = self.definition.evaluate_us, self._now_us
            if (
                period_us is not None
                and former_us is not None
                and now_us // period_us > former_us // period_us
            ):
                self._tick(now_us // period_us * period_us)
            self._repeat(now_us)
        self._now_us = now_us

    def _repeat(self, now_us: int) -> None:
        """Emit the repeats that `now` makes due."""
        for watched in self._in_order():
            for name, action in self.definition.actions.items():
                if watched.repeats.get(name, END_OF_TIME_US) <= now_us:
                    row = {**watched.last, "time": self._time(self._moment(watched)), "cause": "repeat"}
                    row |= {"before_status": watched.status, "trigger": "on_repeat"}
                    self._emit(watched, "ON_TIME", name, action, row)
                    self._repeat_from(watched, name, action)
        self._flush()

    def _tick(self, grid_us: int) -> None:
        """Evaluate each key that has a window."""
        if not self.definition.by and self._began and self.watermark_us > START_OF_TIME_US:
            self._keys.setdefault(b"", Watched(()))
        for watched in self._in_order():
            if watched.begun or not self.definition.by:
                watched.begun = True
                self._evaluate(watched, self._moment(watched), "evaluate", "ON_TIME", grid_us)
        self._flush()

    def _in_order(self) -> list[Watched]:
        return [watched for _, watched in sorted(self._keys.items())]

    def _moment(self, watched: Watched) -> int:
        """Return the moment at which its window ends."""
        if self.definition.clocked:
            begins = self.watermark_us == START_OF_TIME_US
            return self._step_us - self.definition.watermark.delay_us if begins else self.watermark_us
        return max(watched.seen_us, self.watermark_us)

    # -- samples ----------------------------------------------------------------------------------------------------

    def _add(self, key: bytes, samples: list[Sample]) -> None:
        """Add the samples of a key in a step."""
        made, watched = self.definition, self._keys[key]
        if made.frame is None:
            for one in samples:
                moment_us = self._moment(watched)
                self._newest(watched, one, moment_us if made.clocked else max(one.time_us, moment_us))
            return
        moment_us, stored = self._moment(watched), self._window(watched, self._moment(watched))
        late_us = moment_us
        if made.clocked:
            late_us = stored[-1].time_us if stored else START_OF_TIME_US
        older = [one for one in samples if one.time_us < late_us]
        if (
            made.rows is not None and len(stored) == made.rows
        ):  # one older than all of a full window changes nothing
            older = [one for one in older if one.time_us >= stored[0].time_us]
        if older:
            watched.samples += older
            watched.begun = True
            watched.seen_us = max(watched.seen_us, moment_us)
            self._evaluate(watched, moment_us, "late", "LATE")
        for one in sorted((s for s in samples if s.time_us >= late_us), key=lambda s: s.time_us):
            self._newest(watched, one, moment_us if made.clocked else one.time_us)
        watched.begun = True  # by one that changes nothing, too

    def _newest(self, watched: Watched, sample: Sample, moment_us: int) -> None:
        if not self.definition.clocked:
            self._pass(watched, self._moment(watched), moment_us, "EARLY")
        watched.begun = True
        watched.seen_us = max(watched.seen_us, moment_us, sample.time_us)
        if self.definition.frame is None:
            watched.samples = []
        watched.samples.append(sample)
        late = self.definition.frame is None and self.is_late(sample.time_us)
        self._evaluate(watched, moment_us, "sample", "LATE" if late else "EARLY")

    def _pass(self, watched: Watched, before_us: int, until_us: int, timing: str) -> None:
        """Emit the rows that time makes due between two moments."""
        made = self.definition
        while True:
            due = [(at, _DELAY, name) for name, (at, _) in watched.pending.items() if at <= until_us]
            seen_us = watched.seen_us
            if made.ttl_us is not None and START_OF_TIME_US < seen_us < until_us - made.ttl_us:
                due.append((seen_us + made.ttl_us + 1, _EXPIRY, ""))
            if made.size_us is not None and made.leaving and watched.begun:
                leave = {s.time_us + made.size_us + 1 for s in watched.samples}
                due += [(at, _LEAVING, "") for at in leave if before_us < at <= until_us]
            if not due:
                return
            names = list(made.actions)
            at_us, kind, name = min(due, key=lambda d: (d[0], d[1], names.index(d[2]) if d[2] else 0))
            if kind == _DELAY:
                row = {**watched.pending.pop(name)[1], "cause": "delay", "time": self._time(at_us)}
                self._emit(watched, timing, name, made.actions[name], row)
                self._repeat_from(watched, name, made.actions[name])
            elif kind == _EXPIRY:
                self._expire(watched, at_us, timing)
            else:
                before_us = at_us
                self._evaluate(watched, at_us, "leaving", timing)

    def _expire(self, watched: Watched, at_us: int, timing: str) -> None:
        """Evict a quiet key. An open alert is cancelled, with the values of its last evaluation."""
        if watched.status != "CANCEL":
            row = {**watched.last, "trigger": "on_cancel", "cause": "expired", "status": "CANCEL", "count": 0}
            row |= {"before_status": watched.status, "time": self._time(at_us)}
            for name, action in self.definition.actions.items():
                self._act(watched, timing, name, action, row, at_us)
            watched.cancel()
        watched.samples, watched.seen_us = [], START_OF_TIME_US

    def _window(self, watched: Watched, moment_us: int) -> list[Sample]:
        """Return its samples at a moment, by event time; the others are removed."""
        made, order = self.definition, sorted(watched.samples, key=lambda s: s.time_us)
        if made.size_us is not None:
            order = [s for s in order if s.time_us >= moment_us - made.size_us]
        elif made.rows is not None:
            order = order[-made.rows :]
        watched.samples = order
        return order

    # -- the status -------------------------------------------------------------------------------------------------

    def _evaluate(
        self, watched: Watched, moment_us: int, cause: str, timing: str, grid_us: int | None = None
    ) -> None:
        """Evaluate the condition at a moment: a row of the requirements' status table."""
        made, before = self.definition, watched.status
        values = self._values(watched, moment_us, cause, grid_us)
        if values is None:
            return
        stays = values["when"] if made.until is None else not values["until"]
        holds = values["when"] if before == "CANCEL" else stays
        watched.status = ("OPEN" if before == "CANCEL" else "REPEAT") if holds else "CANCEL"
        if not holds and before == "CANCEL":
            return
        watched.count = watched.count + 1 if watched.status == "REPEAT" else 0
        if watched.status != before:
            watched.change_us = moment_us
        if watched.status == "OPEN":
            watched.open_us = moment_us
            watched.alert_id = alert_id(
                made.name,
                encode_key([plain_number(v) for v in watched.key]),
                (moment_us, number_of(cause), len(watched.samples), grid_us or 0),
            )
        trigger = {"OPEN": "on_open", "REPEAT": "on_repeat", "CANCEL": "on_cancel"}[watched.status]
        row = {
            "alert_id": watched.alert_id,
            "action": None,
            "trigger": trigger,
            "cause": cause,
            "status": watched.status,
            "before_status": before,
            "count": watched.count,
            "time": self._time(moment_us),
            "open_time": self._time(watched.open_us),
            **{name: values[name] for name in (*made.agg, *made.variables)},
        }
        watched.last = row
        for name, action in made.actions.items():
            self._act(watched, timing, name, action, row, moment_us)
        if watched.status == "CANCEL":
            watched.cancel()

    def _act(
        self,
        watched: Watched,
        timing: str,
        name: str,
        action: Action,
        row: dict[str, Any],
        moment_us: int,
    ) -> None:
        """Judge one action on a transition."""
        trigger = row["trigger"]
        if trigger == "on_open" and action.delay_us:
            watched.pending[name] = (moment_us + action.delay_us, row)
        elif name in watched.pending:
            return
        elif trigger == "on_repeat":
            if isinstance(action.repeat, EveryCount) and row["count"] % action.repeat.n == 0:
                self._emit(watched, timing, name, action, row)
            if action.period_us is not None and name not in watched.repeats:
                self._repeat_from(watched, name, action)
        else:
            self._emit(watched, timing, name, action, row)
            self._repeat_from(watched, name, action)

    def _repeat_from(self, watched: Watched, name: str, action: Action) -> None:
        if action.period_us is not None:
            watched.repeats[name] = self._step_us + action.period_us

    def _emit(self, watched: Watched, timing: str, name: str, action: Action, row: dict[str, Any]) -> None:
        if not {"on_open": action.open, "on_cancel": action.cancel}.get(row["trigger"], True):
            return
        row = {**dict(zip(self.definition.by, watched.key, strict=True)), **row, "action": name}
        try:
            if action.where is not None and self._value(action.where, row) is not True:
                return
        except Raised:
            self.bury("function_failed", None)
            return
        key = encode_key([plain_number(v) for v in watched.key])
        self._emitted.append(((row["time"], key), timing, row))

    def _flush(self) -> None:
        """Emit the rows of a part of a step, in the order of time and key."""
        for _, timing, row in sorted(self._emitted, key=lambda e: e[0]):
            self.emit_row(timing, row)
        self._emitted = []
        for key, watched in list(self._keys.items()):
            empty = self.definition.frame is None or not self._window(watched, self._moment(watched))
            if empty and watched.status == "CANCEL":
                del self._keys[key]

    # -- values -----------------------------------------------------------------------------------------------------

    def _values(
        self, watched: Watched, moment_us: int, cause: str, grid_us: int | None
    ) -> dict[str, Any] | None:
        """Keys, aggregates, fields, variables and conditions; None where one could not be computed."""
        made, window = self.definition, self._window(watched, moment_us)
        values: dict[str, Any] = dict(zip(made.by, watched.key, strict=True))
        if made.frame is None and cause == "sample":
            values = {**window[-1].payload, **values}
        failed = self._fold(values, window, moment_us)
        values |= {
            "samples": len(window),
            "before_status": watched.status,
            "count": watched.count,
            "open_time": self._time(watched.open_us),
            "change_time": self._time(watched.change_us),
            "first_time": self._time(window[0].time_us) if window else None,
            "last_time": self._time(window[-1].time_us) if window else None,
            "now": to_datetime(self._step_us if grid_us is None else grid_us),
            "leaving": cause == "leaving",
        }
        conditions = [("when", made.when)] + ([] if made.until is None else [("until", made.until)])
        try:
            for name, expression in made.variables.items():
                values[name] = self._value(expression, values)
            for name, expression in conditions:
                values[name] = self._value(expression, values) is True
        except Raised:
            failed = failed or "function_failed"
        if failed:
            self.bury(failed, None)
            return None
        return values

    def _fold(self, values: dict[str, Any], window: list[Sample], moment_us: int) -> str | None:
        """Set the aggregates. Returns why one could not be computed."""
        failed = None
        for alias, aggregation in self.definition.agg.items():
            rows = [
                Row(s.time_us, s.position, s.payload, arguments)
                for s in self._part(aggregation, window, moment_us)
                if (arguments := s.arguments[alias]) is not None
            ]
            try:
                values[alias] = evaluate(aggregation, rows, self.definition.integer_overflow)
            except IntegerOverflow:
                failed, values[alias] = failed or "integer_overflow", None
            except Exception:
                failed, values[alias] = failed or "aggregate_failed", None
        return failed

    def _part(self, aggregation: Aggregation, window: list[Sample], moment_us: int) -> list[Sample]:
        """Return the samples of a window in the frame of an aggregation."""
        frame = aggregation.frame
        if isinstance(frame, RangeBetween):
            return [s for s in window if s.time_us >= moment_us + frame.low_us]
        assert frame is not None and frame.low is not None
        return window[frame.low - 1 :]

    def _value(self, expression: Expr, values: dict[str, Any]) -> Any:
        return self._columns.of_values(expression, values)

    def _time(self, time_us: int | None) -> Any:
        return None if time_us is None else to_datetime(time_us)
