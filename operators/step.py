"""How every operator begins and ends a step, and what a step says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from windrow.core.definition import UNBOUNDED_US, AggregateDefinition
from windrow.core.keys import Encode, encode_columns, encode_equal
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.calculation import Calculation
from windrow.operators.dead import DeadLetters
from windrow.operators.history import History
from windrow.operators.ids import SeenIds
from windrow.operators.intake import Slice, in_known_times
from windrow.operators.learning import AggregateNeeds, check_keys, in_learnt_types, learn
from windrow.operators.progress import EMISSION, KEYS_BY_TYPE, KEYS_EQUAL, KEYS_MARK, Progress
from windrow.operators.state_rows import in_window_order
from windrow.stores.kv import KV, Batch


@dataclass
class StepResult:
    """What a step says to the world: panes, dead letters, event-time marks, counts."""

    panes: list[pa.Table] = field(default_factory=list)
    dead: pa.Table | None = None
    marks: dict[tuple[str, int], int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    #: (start, key) of windows whose last pane is among these, where a closing pane is asked for.
    ended: set[tuple[int, bytes]] = field(default_factory=set)
    #: Panes of operators inside a chain, by name.
    inner: dict[str, list[pa.Table]] = field(default_factory=dict)

    @property
    def silent(self) -> bool:
        """True if there is nothing to say."""
        said = (self.marks, self.counts, self.ended, any(self.inner.values()))
        return not self.panes and self.dead is None and not any(said)

    def then(self, later: StepResult) -> StepResult:
        """This step and a later one, told together."""
        dead = [d for d in (self.dead, later.dead) if d is not None]
        counts = dict(self.counts)
        for name, n in later.counts.items():
            counts[name] = counts.get(name, 0) + n
        return StepResult(
            self.panes + later.panes,
            pa.concat_tables(dead) if dead else None,
            {**self.marks, **later.marks},
            counts,
            self.ended | later.ended,
            {n: self.inner.get(n, []) + later.inner.get(n, []) for n in {**self.inner, **later.inner}},
        )


class Operator(Protocol):
    """The two pure steps, and what a store needs to know."""

    definition: Any

    def cfs(self) -> tuple[str, ...]:
        """The column families it keeps its state in."""
        ...

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult: ...

    def ingest(self, kv: KV, table: pa.Table, now_us: int) -> StepResult: ...


class Steps:
    """What the operators share. Holds no state of its own: everything is in the store that it is given."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self.definition = definition
        self.windows_cf = f"{definition.name}.windows"
        self.aux_cf = f"{definition.name}.aux"
        self.history = History(definition) if definition.full_state else None
        self.seen: SeenIds | None = None
        self.needs = AggregateNeeds(definition)
        self._calculation: Calculation | None = None
        self._emission_noted = False
        #: True if keys are part of the state's own keys.
        self.writes_keys = False

    def cfs(self) -> tuple[str, ...]:
        ids = () if self.seen is None else (self.seen.cf,)
        return (self.windows_cf, self.aux_cf, *ids, *(() if self.history is None else self.history.cfs))

    def _begin(self, kv: KV) -> tuple[Progress, StepResult, DeadLetters]:
        progress = Progress.load(kv, self.aux_cf)
        progress.step += 1
        if self.writes_keys:
            self.choose_keys(kv, progress.schema, store=True)
        if progress.schema is not None:
            self._bind(progress.schema)
        return progress, StepResult(), DeadLetters(self.definition.dead_letter_limit)

    def _end(self, kv: KV, progress: Progress, result: StepResult, dead: DeadLetters) -> StepResult:
        batch = Batch()
        progress.save(lambda key, value: batch.put(self.aux_cf, key, value))
        kv.write(batch)
        result.dead = dead.table()
        for reason, n in dead.counts.items():
            result.counts[f"dead.{reason}"] = n
        return result

    def choose_keys(self, kv: KV, schema: pa.Schema | None, *, store: bool = False) -> None:
        """Write keys as this state has them."""
        mark = keys_mark(kv, self.aux_cf, schema, self.definition.by)
        if store and kv.get(self.aux_cf, KEYS_MARK) is None:
            batch = Batch()
            batch.put(self.aux_cf, KEYS_MARK, mark)
            kv.write(batch)
        self._write_keys(encode_equal if mark == KEYS_EQUAL else encode_columns)

    def _write_keys(self, encode: Encode) -> None:
        """Where keys are part of the state: write them like that."""

    def _emission_changed(self, kv: KV) -> bool:
        """True in the first `advance` under another emission than that of the last one: what waits has to be looked for."""
        if self._emission_noted:
            return False
        stored, own = kv.get(self.aux_cf, EMISSION), repr(self.definition.emit).encode()
        self._emission_noted = stored == own  # not before it is stored for good
        if not self._emission_noted:
            batch = Batch()
            batch.put(self.aux_cf, EMISSION, own)
            kv.write(batch)
        return stored is not None and not self._emission_noted

    def _notes(self, unsaid: bool) -> bool:
        """True if merging has to note what last panes said: rows may be stored with more than that, `unsaid`, or told anew."""
        emit = self.definition.emit
        return not self.definition.full_state and emit.mode != "discarding" and (unsaid or emit.remembers)

    def _learn(self, progress: Progress, schema: pa.Schema) -> None:
        check_keys(self.needs.keys, schema)
        known = [] if progress.schema is None else progress.schema.names
        only = None if self.needs.whole else self.needs.named({*known, *schema.names})
        progress.schema = learn(progress.schema, schema, only)
        self._bind(progress.schema)

    def _learnt(self, progress: Progress, table: pa.Table) -> pa.Table:
        """Input in the types that the stream has by now."""
        time = self.definition.event_time
        if progress.schema is not None and time in progress.schema.names:
            known = progress.schema.field(time).type
            table = in_known_times(
                table, time, self.definition.time_zone, known, self.definition.event_time_unit
            )
        self._learn(progress, table.schema)
        assert progress.schema is not None
        return in_learnt_types(table, progress.schema, time)

    def _bind(self, schema: pa.Schema) -> None:
        if self._calculation is None or not self._calculation.schema.equals(schema):
            self._calculation = Calculation(self.definition, schema)

    def _without_duplicates(self, kv: KV, rows: Slice, result: StepResult, floor_us: int) -> Slice:
        """Rows whose ids were not seen before; ids of event times below the floor are forgotten."""
        if self.seen is None or len(rows) == 0:
            return rows
        fresh = self.seen.first_seen(kv, rows, floor_us)
        if len(fresh) == len(rows):
            return rows
        result.counts["duplicates"] = len(rows) - len(fresh)
        return rows.take(fresh)

    @property
    def calculation(self) -> Calculation:
        assert self._calculation is not None, "no input was seen yet"
        return self._calculation


def keys_mark(kv: KV, aux_cf: str, schema: pa.Schema | None, by: tuple[str, ...]) -> bytes:
    """How keys are written in a state: so that equal numbers are, whatever their type, since a column may widen.

    State that was begun with keys of floats, decimals or times before that was so keeps what it has.
    """
    mark = kv.get(aux_cf, KEYS_MARK)
    if mark is not None or schema is None:
        return mark or KEYS_EQUAL
    by_type = (pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal)
    kinds = [schema.field(b).type for b in by if b in schema.names]
    return KEYS_BY_TYPE if any(is_one(kind) for is_one in by_type for kind in kinds) else KEYS_EQUAL


def limit(time_us: int, minus_us: int) -> int:
    """`time_us - minus_us` that stays an int64; what is unbounded reaches back to the start of time."""
    if minus_us >= UNBOUNDED_US:
        return START_OF_TIME_US
    return max(time_us - minus_us, START_OF_TIME_US)


def passed(watermark_us: int, by_us: int) -> int:
    """What the watermark is `by_us` or more past. At the end of time that is everything, though nothing bounds it."""
    return END_OF_TIME_US if watermark_us >= END_OF_TIME_US else limit(watermark_us, by_us)


def together(panes: list[pa.Table], by: tuple[str, ...]) -> list[pa.Table]:
    """Panes of several firings as one, by start, end and key; a retraction stays before its insertion."""
    if len(panes) < 2:
        return panes
    table = concat(panes)
    return [table.take(pa.array(in_window_order(table, by)))]
