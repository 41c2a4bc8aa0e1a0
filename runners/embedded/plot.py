"""Plot of a definition: a handful of messages run through it in memory, one a step, and the picture of what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from windrow.core.errors import ConfigurationError
from windrow.core.inputs import Input
from windrow.core.messages import Message, Pane, TupleWindow
from windrow.core.notebook import emitted_window, timing_of, words
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us, show_instant
from windrow.drawing.steps import MOST, EmittedWindow, Step, steps_picture
from windrow.drawing.svg import Picture
from windrow.drawing.timeline import Dot
from windrow.operators.operator import Definition
from windrow.operators.steps.derived_columns import with_derived
from windrow.operators.steps.intake import event_times
from windrow.runners.embedded.backtest import EMITTED_AT, InMemoryJob
from windrow.runners.embedded.intake import Intake
from windrow.runners.embedded.user_input import many_of


@dataclass
class _Run:
    """A job in memory that ingests messages one by one, and the steps of its picture."""

    definition: Definition
    steps: list[Step] = field(default_factory=list)
    #: Event times of the counted messages of each key, in order: tuple windows count them.
    counted: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job = InMemoryJob(self.definition)
        self.intake = Intake(self.job, {})
        self.emitted = 0

    def ingest(self, input: Input, message: Message, time_us: int | None) -> None:
        """Ingest one message as a step."""
        before = self._dead()
        if time_us is not None:
            self.job.now_us = max(self.job.now_us, time_us)
        self.intake.ingest_messages({input.name: [message]})
        self.job.commit()
        dead = self._dead() - before
        key = tuple(message.payload.get(name) for name in self.definition.keys(input))
        if time_us is not None and not dead:
            self.counted.setdefault(key, []).append(time_us)
        name = " ".join([*([input.name] if len(self.definition.inputs) > 1 else []), *map(str, key)])
        shown = "no event time" if time_us is None else show_instant(time_us)
        reason = f", dead letter: {self._reason()}" if dead else ""
        detail = f"{words(message.payload)} ({shown}){reason}"
        dot = None if time_us is None else Dot(time_us, detail, dead > 0)
        self._step(f"{name} ✗" if dead else name, dot, time_us)

    def drain(self) -> None:
        """Let the watermark pass all windows."""
        self.job.advance(to_us=END_OF_TIME_US)
        self.job.commit()
        if len(self.job.rows) > self.emitted:
            self._step("end of the stream", None, None)

    def _step(self, name: str, dot: Dot | None, time_us: int | None) -> None:
        watermark = self.job.staged.watermark_us
        known = START_OF_TIME_US < watermark < END_OF_TIME_US
        rows = [
            self._bar(row, time_us) for table in self.job.rows[self.emitted :] for row in self._values(table)
        ]
        self.emitted = len(self.job.rows)
        self.steps.append(Step(name, dot, watermark if known else None, rows))

    def _values(self, table: pa.Table) -> Iterator[Any]:
        yield from self.definition.parts[-1].values(table.drop_columns([EMITTED_AT]), "plot")

    def _bar(self, row: Any, time_us: int | None) -> EmittedWindow:
        """Return a pane over its window, another row over the times that it has."""
        if isinstance(row, Pane) and not isinstance(row.window, TupleWindow):
            return emitted_window(row)
        if isinstance(row, Pane):
            bar = emitted_window(row)
            assert isinstance(row.window, TupleWindow)
            times = self.counted.get(tuple(row.key.values()), [])[row.window.first - 1 : row.window.last]
            label = f"{row.window!r} {bar.label}"
        else:
            times = [instant_us(v) for v in row.values.values() if isinstance(v, datetime) and v.tzinfo]
            bar = EmittedWindow(0, 0, timing_of(row.timing, row.kind), "", str(row))
            label = words({k: v for k, v in row.values.items() if not isinstance(v, (datetime, Mapping))})
        times = times or [time_us if time_us is not None else self.job.now_us]
        return EmittedWindow(min(times), max(times), bar.timing, label, bar.detail)

    def _dead(self) -> int:
        return 0 if self.job.result.dead is None else len(self.job.result.dead)

    def _reason(self) -> str:
        assert self.job.result.dead is not None
        return str(self.job.result.dead.column("reason")[-1])


def plot(definition: Definition, messages: Any) -> Picture:
    """Draw what messages do, in the order in which they come; see `Verbs.plot`."""
    definition.check_begins()
    arriving = list(_arrivals(definition, messages))
    run = _Run(definition)
    for input, message, time_us in arriving[:MOST]:
        run.ingest(input, message, time_us)
    if len(arriving) <= MOST:
        run.drain()
    title = f"Messages, watermark and panes of {definition.name}"
    listed = "; ".join(f"{s.name}: {', '.join(e.detail for e in s.emitted)}" for s in run.steps if s.emitted)
    more = len(arriving[MOST:])
    return Picture(steps_picture(run.steps, title=title, description=f"{listed}.", more=more))


def _arrivals(definition: Definition, messages: Any) -> list[tuple[Input, Message, int | None]]:
    """Return messages with their input and event time. Those of several inputs are merged by time, each in its order."""
    if isinstance(messages, Mapping) and definition.by_input:
        by_name = {i.name: i for i in definition.inputs}
        unknown = [name for name in messages if name not in by_name]
        if unknown:
            raise ConfigurationError(
                f"plot: {definition.name!r} has no input {unknown[0]!r}: its inputs are {list(by_name)}"
            )
        by_input = {by_name[name]: many for name, many in messages.items()}
    elif len(definition.inputs) == 1:
        by_input = {definition.inputs[0]: messages}
    else:
        names = [i.name for i in definition.inputs]
        raise ConfigurationError(
            f"plot: {definition.name!r} has the inputs {names}: give {{input: messages}}"
        )
    arriving = []
    for input, many in by_input.items():
        reached = START_OF_TIME_US
        for message, time_us in _with_times(definition, input, many):
            reached = max(reached, time_us or START_OF_TIME_US)
            arriving.append((reached, input, message, time_us))
    if len(by_input) > 1:
        arriving.sort(key=lambda one: one[0])
    return [(input, message, time_us) for _, input, message, time_us in arriving]


def _with_times(definition: Definition, input: Input, many: Any) -> Iterator[tuple[Message, int | None]]:
    rows = many_of(many, "plot")
    messages: Sequence[Message] = (
        [Message(row) for row in rows.to_pylist()] if isinstance(rows, pa.Table) else rows
    )
    for message in messages:
        yield message, _time_of(definition, input, message)


def _time_of(definition: Definition, input: Input, message: Message) -> int | None:
    """Return the event time of a message; None where it has none, as malformed ones."""
    try:
        table = with_derived(getattr(definition, "makes", ()), pa.Table.from_pylist([dict(message.payload)]))
        column = table.column(input.event_time)
        [time] = event_times(column, input.event_time, input.time_zone, input.event_time_unit).to_pylist()
    except (pa.ArrowException, ValueError, KeyError, TypeError):
        return None
    return None if time is None else int(time)
