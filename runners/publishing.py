"""Publishing of panes and dead letters: step 5 of docs/explanation/commit-protocol.md, for both runners.

A commit is published when its panes and its dead letters are with their sinks. Sinks get both in the order of commits, under
the commit's token, and get them again if it is unknown whether they arrived.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from windrow.checkpoint.files import pane_digests
from windrow.checkpoint.job import Job
from windrow.checkpoint.records import PANES_OF, Commit
from windrow.checkpoint.truncation_summary import letters_in
from windrow.connectors.pane_files import DEAD_LETTERS, PaneFiles, Sink
from windrow.connectors.sinks import as_sink, check_sink
from windrow.core.errors import ConfigurationError
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
    for name, target in by_operator.items():
        if name not in names:
            raise ConfigurationError(f"sink for {name!r}: the operators of the job are {names}, name these")
        if name == DEAD_LETTERS and dead_letters is not None:
            raise ConfigurationError(
                f"operator {name!r} has the name under which sinks keep dead letters, and dead_letters= is given: give "
                "the operator another name"
            )
        check_sink(as_one(target), parts[name])
    return {name: as_one(target) for name, target in by_operator.items()}


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
            reached = {name: sink.last_commit(job.job, name) for name, sink in self._outlets.items()}
            if not self._send_again(give, reached):
                return False
            self._reached = reached
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

    def _send_again(self, give: Give, reached: dict[str, int | None]) -> bool:
        """Send a sink the published commits after its last one: it was restored to an older state than the log.

        A sink without a commit is another or an emptied one, and gets no history. Files of panes are kept for a few dozen
        commits; the loss of older ones is logged. False where the sink refused.
        """
        job, again, missing = self._job, Counter[str](), Counter[str]()
        behind = {name: k for name, k in reached.items() if k is not None and k < job.progress.published}
        for record in job.commits() if behind else ():
            if not min(behind.values()) < record.commit <= job.progress.published:
                continue
            for sink, panes in self._outputs(record):
                name = panes.operator
                if name not in behind or record.commit <= behind[name]:
                    continue
                if not all(map(os.path.exists, panes.files)):
                    missing[name] += panes.rows
                    continue
                if not give(sink, Token(job.job, record.commit), panes):
                    return False
                again[name] += panes.rows
                reached[name] = record.commit
        for name in sorted(again.keys() | missing.keys()):
            job.logger.warning(
                "the sink is behind the log, as one that was restored from a backup: rows that the job still has were sent "
                "again, the others are missing in the sink",
                operator=name,
                sink_commit=behind[name],
                commit=job.progress.published,
                sent_again=again[name],
                missing=missing[name],
            )
        return True

    def _outputs(self, record: Commit) -> Iterator[tuple[Sink, PaneFiles]]:
        """Yield a commit's output for the sinks: panes of the operators, then dead letters. Counts are the tasks'."""
        files = self._job.pane_files(record)
        for operator in self._sinks:
            if operator in files:
                rows = sum(r.counters.get(PANES_OF + operator, 0) for r in record.shards)
                panes = self._files(operator, self._parts[operator], files[operator], rows)
                digests = pane_digests(self._job.folders, record, operator)
                yield self._outlets[operator], replace(panes, digests=digests)
        if DEAD_LETTERS in self._outlets and (dead := letters_in(record)):
            paths = [self._job.letter_file(file) for file in dead]
            output = self._files(DEAD_LETTERS, self._definitions[0], paths, sum(file.rows for file in dead))
            yield self._outlets[DEAD_LETTERS], replace(output, letters_of=record.commit)

    def _files(self, operator: str, definition: Definition, files: Sequence[str], rows: int) -> PaneFiles:
        job = self._job
        return PaneFiles(tuple(files), rows, operator, definition, job.job, job.epoch.epoch, job.check_epoch)
