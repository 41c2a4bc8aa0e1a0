"""Publishing of panes and dead letters: step 5 of docs/explanation/commit-protocol.md, for both runners.

A commit is published when its panes and its dead letters are with their sinks. Sinks get both in the order of commits, under
the commit's token, and get them again if it is unknown whether they arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.checkpoint.job import Job
from windrow.checkpoint.records import Commit
from windrow.connectors.pane_files import DEAD_LETTERS, PaneFiles, Sink
from windrow.connectors.sinks import as_sink, check_sink
from windrow.core.errors import ConfigurationError, CorruptState
from windrow.core.messages import Token
from windrow.operators.operator import Definition

#: Publishes panes to a sink. False where the sink refuses: it gets nothing more then.
Give = Callable[[Sink, Token, PaneFiles], bool]


def sinks_of(
    definitions: Sequence[Definition], sink: Any, dead_letters: Any, as_one: Callable[[Any], Sink] = as_sink
) -> dict[str, Sink]:
    """Return the sink of each operator: `sink` serves all, or is a dict by operator. Raises if one is not a sink."""
    if sink is None:
        return {}
    parts = {p.name: p for d in definitions for p in d.parts}
    names = list(parts)
    by_operator = sink if isinstance(sink, Mapping) else {d.name: sink for d in definitions}
    for name, one in by_operator.items():
        if name not in names:
            raise ConfigurationError(f"sink for {name!r}: the operators of the job are {names}, name these")
        if name == DEAD_LETTERS and dead_letters is not None:
            raise ConfigurationError(
                f"operator {name!r} has the name under which sinks keep dead letters, and dead_letters= is given: give "
                "the operator another name"
            )
        check_sink(as_one(one), parts[name])
    return {name: as_one(one) for name, one in by_operator.items()}


class Publisher:
    """The sinks of one opening of a job, and their progress.

    A sink is asked once for its last commit of earlier runs; from then on its progress is known here.
    """

    def __init__(
        self,
        job: Job,
        definitions: Sequence[Definition],
        sinks: Mapping[str, Sink],
        dead_letters: Sink | None = None,
    ) -> None:
        self._job, self._definitions, self._sinks = job, tuple(definitions), dict(sinks)
        self._outlets = {**self._sinks, **({} if dead_letters is None else {DEAD_LETTERS: dead_letters})}
        self._parts = {p.name: p for d in self._definitions for p in d.parts}
        self._reached: dict[str, int | None] | None = None
        self._published = 0

    def publish(self, give: Give, *, acknowledge: bool = True) -> bool:
        """Publish the panes and dead letters of every commit that may be unpublished, in order. False where a sink refused.

        Without `acknowledge` nothing counts as published by it: panes stay for another reader.
        """
        job = self._job
        if job.progress.published >= job.progress.commit:
            return True
        if self._reached is None:
            self._reached = {name: sink.last_commit(job.job, name) for name, sink in self._outlets.items()}
        known = [k or 0 for k in self._reached.values()]
        out = max(self._published, min(known, default=0))
        ahead = [k for k in known if k > job.progress.commit]
        for record in job.unpublished(max(ahead, default=out) or None):
            for sink, panes in self._outputs(record):
                if (self._reached[panes.operator] or 0) >= record.commit:
                    continue
                if not give(sink, Token(job.job, record.commit), panes):
                    return False
                self._reached[panes.operator] = record.commit  # it is not given again because another refuses
            self._published = record.commit
            if acknowledge:
                job.mark_published(record.commit)
        if acknowledge:
            job.mark_published(job.progress.commit)
        return True

    def _outputs(self, record: Commit) -> Iterator[tuple[Sink, PaneFiles]]:
        """Yield a commit's output for the sinks: panes of the operators, then dead letters."""
        files = self._job.pane_files(record)
        for operator in self._sinks:
            if operator in files:
                yield self._outlets[operator], self._files(operator, self._parts[operator], files[operator])
        if DEAD_LETTERS in self._outlets and (letters := self._job.dead_files(record)):
            some = self._files(DEAD_LETTERS, self._definitions[0], letters)
            yield self._outlets[DEAD_LETTERS], replace(some, letters_of=record.commit)

    def _files(self, operator: str, definition: Definition, files: Sequence[str]) -> PaneFiles:
        job = self._job
        rows = sum(_rows_of(f) for f in files)
        return PaneFiles(tuple(files), rows, operator, definition, job.job, job.epoch.epoch, job.check_epoch)


def _rows_of(path: str) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except pa.ArrowInvalid as error:
        raise CorruptState(
            f"{path}, which is not published yet, cannot be read: {error}. Restore it from a backup"
        ) from error
