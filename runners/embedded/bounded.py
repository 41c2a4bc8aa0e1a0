"""Bounded runner: a definition on bounded frames in this process, as one ingest and the end of event time. No log, no folder.

`definition.apply` calls it with frames that are not Spark's. The input is complete, so the watermark moves once, past all of
it: nothing is late, and the rows are those of Spark's `apply`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.connectors.pane_files import DEAD_LETTERS, PaneFiles, Sink
from windrow.connectors.sinks import as_sink
from windrow.core.clock import Clock, clock_of
from windrow.core.errors import ConfigurationError, UnknownColumn
from windrow.core.logs import get_logger
from windrow.core.messages import Message, Token
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.steps.dead_letters import of_operator
from windrow.operators.steps.output_columns import flat
from windrow.operators.steps.step import StepResult
from windrow.runners.embedded.intake import Engine, Intake
from windrow.runners.embedded.positions import Passed
from windrow.runners.embedded.step_transaction import Staged, ingested
from windrow.runners.embedded.user_input import many_of
from windrow.stores.kv import MemoryKV, Overlay
from windrow.stores.temp_dirs import scratch

logger = get_logger()
#: All is one commit.
COMMIT = 1


class _Memory:
    """A job in memory, as far as an intake needs one: state, and one step."""

    def __init__(self, definition: Definition, clock: Clock | None) -> None:
        self.definition, self.logic = definition, definition.logic()
        self.now_us = clock_of(clock).now_us()
        kv = Overlay(MemoryKV(self.logic.cfs()))
        self.staged = Staged(kv, {}, {}, {}, START_OF_TIME_US, None, None)
        self.result = StepResult()

    def ingest_and_advance(
        self, tables: Mapping[str, pa.Table], passed: Passed, *, prepared: Mapping[str, pa.Table]
    ) -> None:
        self.result = ingested(self.logic, self.staged.overlay, prepared, self.now_us)

    def leave(self, passed: Passed) -> None: ...

    def end(self) -> StepResult:
        """End the step of the messages, as each step ends, and then event time."""
        result = self.result
        for watermark_us in (START_OF_TIME_US, END_OF_TIME_US):
            result = result.then(self.logic.advance(self.staged.overlay, watermark_us, self.now_us))
        return result


def apply(
    definition: Definition,
    frames: Mapping[str, Any],
    *,
    dead_letters: Any = None,
    clock: Clock | None = None,
) -> Any:
    """Compute the rows that an operator emits of bounded frames, by input: an Arrow table; of polars, a polars frame."""
    definition.check_begins()
    sink = None if dead_letters is None else as_sink(dead_letters)
    memory = _Memory(definition, clock)
    intake = Intake(memory, {})
    many = {name: many_of(frame, "apply") for name, frame in frames.items()}
    intake.ingest_messages(many)
    result = memory.end()
    if result.dead is not None:
        bury(definition, of_operator(result.dead, definition.name), result.counts, sink)
    emitted = memory.logic.emitted(StepResult(result.panes), COMMIT).get(definition.name)
    rows = no_rows(memory, intake, many) if emitted is None else emitted
    return _as_polars(rows) if any(map(_is_of_polars, frames.values())) else rows


def frames_of(
    definition: Definition, frame: Any, frames: Mapping[str, Any], verb: str = "apply"
) -> dict[str, Any]:
    """Return the frames of `verb` by input. Raises `ConfigurationError` where an input has none, or one too many."""
    if not definition.by_input:
        if frames or isinstance(frame, Mapping):
            raise ConfigurationError(
                f"{definition.name!r} has one input without a name, and frames are given by name: give the frame alone"
            )
        return {definition.inputs[0].name: frame}
    names = [i.name for i in definition.inputs]
    if isinstance(frame, Mapping):
        frames = {**frame, **frames}
    elif frame is not None:
        raise ConfigurationError(
            f"{definition.name!r} takes the inputs {names}, and one frame is given: give each by its name, e.g. "
            f"{verb}({', '.join(f'{n}=frame' for n in names)})"
        )
    if set(frames) != set(names):
        raise ConfigurationError(
            f"{definition.name!r} takes the inputs {names}, given are {sorted(frames)}: give each by its name, e.g. "
            f"{verb}({', '.join(f'{n}=frame' for n in names)})"
        )
    return dict(frames)


def no_rows(
    memory: Engine, intake: Intake, many: Mapping[str, pa.Table] | Mapping[str, pa.Table | list[Message]]
) -> pa.Table:
    """Give an empty table with the columns that rows would have, as far as the inputs have columns."""
    schemas = {
        name: frame.schema if isinstance(frame, pa.Table) else intake.known(intake.input(name))
        for name, frame in many.items()
    }
    try:
        return memory.logic.schema(
            {name: known or pa.schema([]) for name, known in schemas.items()}
        ).empty_table()
    except (UnknownColumn, KeyError):
        if all(isinstance(frame, pa.Table) and frame.column_names for frame in many.values()):
            raise
    return pa.table({})  # messages say their columns, and there are none


def bury(
    definition: Definition, dead_letters: pa.Table, counts: Mapping[str, int], sink: Sink | None
) -> None:
    """Publish dead letters to their sink; log them if there is none."""
    if sink is None:
        first = dead_letters.slice(0, 1).to_pylist()[0]
        logger.warning(
            "messages could not be counted: dead_letters=function gets them",
            operator=definition.name,
            counts={name: n for name, n in counts.items() if name.startswith("dead.")},
            first={name: first[name] for name in ("reason", "detail", "payload")},
        )
        return
    job = uuid.uuid4().hex
    with scratch("apply") as folder:
        path = os.path.join(folder, f"dead-{job}.parquet")
        pq.write_table(dead_letters, path)
        files = PaneFiles((path,), len(dead_letters), DEAD_LETTERS, definition, job, letters_of=COMMIT)
        sink.publish(Token(job, COMMIT), files)


def _is_of_polars(frame: Any) -> bool:
    return type(frame).__module__.partition(".")[0] == "polars"


def _as_polars(rows: pa.Table) -> Any:
    import polars as pl

    return pl.from_arrow(flat(rows))
