"""Views of an alert: the status of each key, and the samples of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import ConfigurationError
from windrow.core.time import Instant, instant_us, to_datetime
from windrow.core.types import concat
from windrow.operators.alert import evaluations as events
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.alert.logic import Alerting
from windrow.operators.alert.states import NEVER, States
from windrow.operators.alert.status import CANCEL, NAMES
from windrow.operators.one_input import Work
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.intake import Slice, user_columns
from windrow.operators.steps.output_columns import STAMP
from windrow.operators.steps.step import StepResult
from windrow.operators.view import Provenance, Query, View, key_of, of_key, rows_without_prefix, stored
from windrow.stores.event_log import TIME
from windrow.stores.kv import Overlay

ALERTS = "alerts"


#: Of a window at a moment before the newest one.
_FORGOTTEN = (
    "samples that have left the window since are not kept: `--as-of` a commit of that time has them all"
)


class AlertView(View):
    """The view of an alert. `alerts`: a row for each key that has a window or an open alert."""

    logic: Alerting
    definition: AlertDefinition

    def table(self, table: str, query: Query) -> pa.Table:
        if table != ALERTS:
            raise self.refuse(table)
        if query.start is not None or query.end is not None:
            raise ConfigurationError(
                f"start={query.start!r}, end={query.end!r}: the alerts of {self.definition.name!r} are those of now, ask "
                "by key=, or as of a commit"
            )
        found = [self._of(work, states) for work, states in self._states()]
        rows = concat([self._schema().empty_table(), *found])
        rows = rows.filter(pa.array(of_key(rows, key_of(self.definition.by, query.key))))
        return rows.sort_by([(b, "ascending") for b in self.definition.by]) if self.definition.by else rows

    def _schema(self) -> pa.Schema:
        types, known = self.key_types(), self.known()
        outputs = [] if known is None else self.logic.outputs(known)
        own = [
            ("status", pa.string()),
            ("count", pa.int64()),
            ("open_time", STAMP),
            ("alert_id", pa.string()),
        ]
        keys = [(b, types[b]) for b in self.definition.by]
        return pa.schema([*keys, *own, ("samples", pa.int64()), *outputs, ("due", pa.string())])

    def _states(self) -> Iterator[tuple[Work, States]]:
        for store in self.stores:
            kv = Overlay(store)  # nothing of it is written
            progress = self.logic.progress(kv)
            work = Work(kv, progress, StepResult(), DeadLetters(0), progress.now_us or 0)
            keys = self.logic.states.all_keys(kv)
            if progress.schema is not None and keys:
                yield work, self.logic.states.load(kv, keys)

    def _of(self, work: Work, states: States) -> pa.Table:
        """Return the rows of one shard."""
        records, open_ = states.records, states.records["status"] != CANCEL
        moments = self.logic.moments(work.progress.watermark_us, states, work.now_us)
        window = self.logic.samples.window(work, states, moments)
        made = self.logic.aggregated(work, window, events.of_keys(window.lines, moments), None)
        keys = self.logic.named_keys(work, states, np.arange(len(states)))
        columns: dict[str, Any] = {b: keys.column(b) for b in keys.column_names}
        columns |= {
            "status": pa.array([NAMES[s] for s in records["status"].tolist()], pa.string()),
            "count": pa.array(records["count"].astype(np.int64)),
            "open_time": pa.array(records["open"].astype(np.int64), mask=~open_).cast(STAMP),
            "alert_id": pa.array(
                [i.hex() if o else None for i, o in zip(records["id"].tolist(), open_.tolist(), strict=True)],
                pa.string(),
            ),
            "due": pa.array([self._due(states, i) for i in range(len(states))], pa.string()),
        }
        schema = self._schema()
        kept = made.of.codes  # those of which an aggregate could be made
        table = pa.table(columns).take(pa.array(kept))
        return pa.table(
            [
                table.column(f.name) if f.name in table.column_names else made.columns[f.name].cast(f.type)
                for f in schema
            ],
            schema=schema,
        )

    def _due(self, states: States, number: int) -> str | None:
        """Return the next event that is due for a key."""
        found = [
            (int(times[number]), f"{name} {what} {to_datetime(int(times[number])):%Y-%m-%d %H:%M:%S}")
            for what, actions in (("open", states.pending), ("repeat", states.repeats))
            for name, times in actions.items()
            if times[number] != NEVER
        ]
        return min(found)[1] if found else None

    # -- why --------------------------------------------------------------------------------------------------------

    def made_at(self, at: Instant, key: Any) -> list[Provenance]:
        """Return the windows of keys at a moment."""
        at_us, wanted = instant_us(at, "time"), key_of(self.definition.by, key)
        return [
            made
            for work, states in self._states()
            for made in self._windows(work, states, at_us, wanted, None)
        ]

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Provenance]]:
        """Return the samples in the window of each of `rows`, transitions that were emitted."""
        found: list[list[Provenance]] = []
        for row in rows:
            at_us, wanted = instant_us(row["time"], "time"), {b: row[b] for b in self.definition.by}
            found.append(
                [
                    m
                    for work, states in self._states()
                    for m in self._windows(work, states, at_us, wanted, row)
                ]
            )
        return found

    def _windows(
        self,
        work: Work,
        states: States,
        at_us: int,
        wanted: Mapping[str, Any] | None,
        row: Mapping[str, Any] | None,
    ) -> Iterator[Provenance]:
        """Yield the samples of each key in its window at a moment, as far as they are kept; None if none is."""
        definition, keys = self.definition, self.logic.named_keys(work, states, np.arange(len(states)))
        if definition.frame is None:
            return
        now_us = self.logic.moments(work.progress.watermark_us, states, work.now_us)
        moments = np.full(len(states), at_us)
        window = self.logic.samples.window(work, states, np.minimum(moments, now_us))
        assert window.source is not None
        mask = of_key(keys, wanted) if definition.by else np.ones(len(states), dtype=bool)
        name = definition.inputs[0].name
        for code in np.flatnonzero(mask).tolist():
            places = np.flatnonzero((window.lines.codes == code) & (window.lines.times <= at_us))
            if definition.size_us is not None:
                places = places[window.lines.times[places] >= at_us - definition.size_us]
            known = (
                at_us >= work.progress.watermark_us
                if definition.size_us is not None
                else at_us >= now_us[code]
            )
            if not len(places) and known:
                continue
            samples = window.source.take(pa.array(window.lines.order[places]))
            names = [n for n in samples.column_names if n in user_columns(samples)]
            positions = [n for n in samples.column_names if n.startswith("__")]
            kept = Slice(samples.select([*names, *positions]), samples.column(TIME).to_numpy())
            shown = (
                row if row is not None else {**keys.slice(code, 1).to_pylist()[0], "time": to_datetime(at_us)}
            )
            inside = {name: stored(rows_without_prefix(kept, self.prefix))} if known or len(kept) else None
            yield Provenance(None, shown, inside, reasons=() if known else (_FORGOTTEN,), complete=known)
