"""An aggregate over several inputs: their rows, united, are ingested by the aggregate that does the work (`tagged_union.py`).

It keeps that one's state, and the known columns of each input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.column_types import compared
from windrow.core.inputs import Input
from windrow.core.types import concat
from windrow.operators.aggregate.delegating import Delegating
from windrow.operators.cogroup.definition import PASSES, CoGroupDefinition
from windrow.operators.cogroup.tagged_union import United
from windrow.operators.operator import FileAgain, Refiling
from windrow.operators.several_inputs import InputSchemas
from windrow.operators.steps.arrivals import InputReading, check_inputs
from windrow.operators.steps.columns import OFFSET, STEP
from windrow.operators.steps.dead_letters import DeadLetters, letters_by_input
from windrow.operators.steps.groups import combine
from windrow.operators.steps.input_filter import divided
from windrow.operators.steps.intake import Slice, countable_rows
from windrow.operators.steps.message_rows import with_positions
from windrow.operators.steps.poison_rows import OF_STEPS, sifted
from windrow.operators.steps.schema_inference import Needs, check_keys, in_learnt_types, learn
from windrow.operators.steps.step import Redone, StepResult
from windrow.operators.view import View
from windrow.stores.kv import KV, Overlay

# -- required columns of one input of an aggregate over several inputs ------------------------------------------------


class InputNeeds(Needs):
    """The columns that an aggregate of that input alone would require; shared columns must have one type in all inputs.

    others: the known columns of the other inputs
    """

    def __init__(self, united: United, input: Input, others: Mapping[str, pa.Schema]) -> None:
        self._united, self._input, self._others = united, input, others
        self._own = united.needs[input.name]
        self.whole = united.takes_whole(input)

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        self._own.check(known, names)

    def named(self, names: Iterable[str]) -> set[str]:
        return self._own.named(names)

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        own = self._own.refusal(name, kind, known)
        if own is not None:
            return own
        for other, theirs in self._partners(name):
            if compared(theirs, pa.field(name, kind)) is None:
                return (
                    f"column {name!r} is {kind}, and {theirs.name!r} of input {other!r} is {theirs.type}, which "
                    "do not go together: cast one of them"
                )
        return None

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        return [field for _, field in self._partners(name)]

    def _partners(self, name: str) -> Iterator[tuple[str, pa.Field]]:
        """Yield (input, column) of the others that share a column of the united rows with this one."""
        shared = {
            called for called, column in self._united.places(self._input, [name]).items() if column == name
        }
        for other, schema in self._others.items():
            places = self._united.places(self._united.definition.input(other), schema.names)
            for called in shared & places.keys():
                if places[called] in schema.names:
                    yield other, schema.field(places[called])


# -- logic ------------------------------------------------------------------------------------------------------------

_PLACE = ("source", "partition", "offset", "ordinal")


class CoGroupOperator(Delegating):
    """The operator of one definition on one store. It is stateless."""

    def __init__(self, definition: CoGroupDefinition) -> None:
        self.united = United(definition)
        super().__init__(definition, self.united.one)
        self.definition: CoGroupDefinition = definition
        self.readings = {i.name: InputReading.of(definition, i) for i in definition.inputs}
        self.stored_schemas = InputSchemas(self.aux_cf, list(self.readings))

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        step: StepResult = self.engine.advance(kv, watermark_us, now_us)
        return step

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        check_inputs(tables, self.definition.name, [i.name for i in self.definition.inputs])
        dead = DeadLetters(self.definition.dead_letter_limit)
        number = self.progress(kv).step + 1
        placed = {
            i.name: with_positions(tables[i.name], number, i.source_prefix)
            for i in self.definition.inputs
            if i.name in tables
        }
        schemas = self.schemas(kv)
        for name, table in placed.items():
            placed[name] = self.readings[name].in_known_times(table, schemas.get(name))
            self._learn(kv, name, schemas, placed[name].schema)
        result: StepResult = self.engine.ingest_table(kv, self._rows(placed, schemas, now_us, dead), now_us)
        return self._with_letters(result, dead, placed)

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        schemas = self.schemas(kv)
        self._learn(kv, input, schemas, schema)
        self.engine.learn(kv, self.united.one.inputs[0].name, self.united.schema(schemas))

    def _learn(self, kv: KV, name: str, schemas: dict[str, pa.Schema], seen: pa.Schema) -> None:
        """Learn the columns of an input, and add them to the known ones."""
        input, known = self.definition.input(name), schemas.get(name)
        check_keys(self.definition.keys(input), seen)
        if known is None:
            self.united.needs[name].check(None, seen.names)
        schema = learn(known, seen, InputNeeds(self.united, input, {}), input.event_time)
        self.stored_schemas.save(kv, name, known, schema)
        schemas[name] = schema

    def schemas(self, kv: KV) -> dict[str, pa.Schema]:
        """Return the known columns of inputs."""
        return self.stored_schemas.known(kv)

    def _rows(
        self, tables: Mapping[str, pa.Table], schemas: Mapping[str, pa.Schema], now_us: int, dead: DeadLetters
    ) -> pa.Table:
        """Return the countable rows of inputs, united."""
        parts = [
            (i, self._taken(i, tables[i.name], schemas[i.name], now_us, dead))
            for i in self.definition.inputs
            if i.name in tables
        ]
        return self.united.table(parts, self.united.schema(schemas))

    def _taken(
        self, input: Input, table: pa.Table, schema: pa.Schema, now_us: int, dead: DeadLetters
    ) -> Slice:
        """Return the countable rows of an input, and those that its filter rejects, which only advance the watermark."""
        dead.input, reading = input.name, self.readings[input.name]
        if input.where is None:
            rows = countable_rows(reading, table, now_us, dead, sort=False)
            return Slice(in_learnt_types(rows.table, schema, input.event_time), rows.times)
        parts = []
        silent = replace(reading, null_keys="group", ids=None)
        both = divided(input.where, in_learnt_types(table, schema, input.event_time))
        for part, read, passes in zip(both, (reading, silent), (True, False), strict=True):
            rows = countable_rows(read, part, now_us, dead, sort=False)
            parts.append(Slice(rows.table.append_column(PASSES, pa.repeat(passes, len(rows))), rows.times))
        return Slice(concat([p.table for p in parts]), np.concatenate([p.times for p in parts]))

    def _with_letters(
        self, result: StepResult, dead: DeadLetters, tables: Mapping[str, pa.Table]
    ) -> StepResult:
        """Return the step with the dead letters of rows that could not be united, and each message as it came."""
        own, room = dead.table(), self.definition.dead_letter_limit - sum(dead.counts.values())
        theirs = (
            None
            if result.dead is None or room <= 0
            else self._as_they_came(result.dead.slice(0, room), tables)
        )
        letters = [table for table in (own, theirs) if table is not None]
        by_place = [(column, "ascending") for column in _PLACE]
        result.dead = letters_by_input(pa.concat_tables(letters).sort_by(by_place)) if letters else None
        for reason, n in dead.counts.items():
            counter = f"dead.{reason}"
            result.counts[counter] = result.counts.get(counter, 0) + n
        return result

    def _as_they_came(self, dead_letters: pa.Table, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return dead letters of united rows with their original messages."""
        rows = dead_letters.to_pylist()
        placed = [row for row in rows if row["source"] is not None]
        for row in placed:
            row["input"] = self.definition.input_of(row["source"]).name
        for name, table in tables.items():
            offsets = pa.array({row["offset"] for row in placed if row["input"] == name}, pa.int64())
            originals = table.filter(pc.is_in(table.column(OFFSET), value_set=offsets))
            came = DeadLetters(len(originals))
            came.add_rows("", "", originals, np.arange(len(originals)), None)
            found = came.table()
            payloads = {} if found is None else {_place(one): one["payload"] for one in found.to_pylist()}
            for row in placed:
                row["payload"] = payloads.get(_place(row), row["payload"])
        return pa.Table.from_pylist(rows, dead_letters.schema)

    # -- lost messages, filed again ---------------------------------------------------------------------------------

    def refiling(self) -> Refiling | None:
        again: Refiling | None = self.engine.refiling()
        if isinstance(again, FileAgain):
            return replace(again, logic=self, file=partial(self._file_again, again))
        return None if again is None else replace(again, logic=self)

    def _file_again(self, again: FileAgain, kv: KV, tables: Mapping[str, pa.Table], redone: Redone) -> int:
        filled = {name: table for name, table in tables.items() if len(table)}
        if not filled:
            return 0
        first = combine(next(iter(filled.values())).column(STEP))[0].as_py()
        schemas = self.schemas(kv)
        filled = {n: self.readings[n].in_known_times(t, schemas.get(n)) for n, t in filled.items()}

        def united(_: KV, tables: Mapping[str, pa.Table]) -> pa.Table:
            return self._rows(tables, schemas, int(redone.nows_us[first]), DeadLetters(0))

        # A filter raises where it did: a message on which it does was not filed.
        rows = sifted(united, Overlay(kv), filled, OF_STEPS)
        return again.file(kv, {self.united.one.inputs[0].name: rows}, redone)

    # -- emitted rows -----------------------------------------------------------------------------------------------

    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        return self.engine.rows(panes, commit)

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return self.engine.schema(self._over(inputs))

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return self.engine.messages(panes)

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return self.engine.message_schema(self._over(inputs))

    def known_schema(self, kv: KV) -> pa.Schema | None:
        made: pa.Schema | None = self.engine.known_schema(kv)
        return made

    def _over(self, inputs: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
        return {self.united.one.inputs[0].name: self.united.schema(inputs)}

    # -- inputs -----------------------------------------------------------------------------------------------------

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        for name, schema in inputs.items():
            InputNeeds(self.united, self.definition.input(name), {}).check(schema, schema.names)
        self.united.schema(inputs)

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        return self.schemas(kv).get(name)

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        others = self.schemas(kv)
        for other, table in other_inputs.items():
            times = [f for f in table.schema if f.name != self.definition.input(other).event_time]
            others[other] = learn(others.get(other), pa.schema(times))
        others.pop(name, None)
        return InputNeeds(self.united, self.definition.input(name), others)

    def columns(self, kv: KV) -> list[str]:
        return list(self.definition.output_columns) if self.schemas(kv) else []

    def key_types(
        self, name: str, inputs: Mapping[str, pa.Schema]
    ) -> list[tuple[str, tuple[pa.DataType, ...]]]:
        schema, input = self.united.schema(inputs), self.definition.input(name)
        keys = zip(self.definition.by, self.definition.keys(input), strict=True)
        return [(own, (schema.field(key).type,)) for key, own in keys]

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.cogroup.views import CoGroupView

        return CoGroupView(self, stores, watermark_us)


def _place(letter: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(letter[part] for part in _PLACE)
