"""Known columns of both inputs of a join, and their names in its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgpack
import pyarrow as pa

from windrow.core.envelope import check_version
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.output import Columns, Names
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.required_columns import JoinNeeds
from windrow.operators.several_inputs import InputSchemas
from windrow.operators.steps.arrivals import InputReading
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.schema_inference import Needs, learn
from windrow.operators.steps.work import Work
from windrow.stores.kv import KV, Batch

FORMAT = 1
SLOTS = ("0", "1")
NAMES = b"names"


class SideRows(NamedTuple):
    """New messages of a side, with their encoded keys if the join has keys."""

    side: int
    rows: Slice
    keys: list[bytes] | None


@dataclass
class JoinStep(Work):
    """A step of a join. sides: the known columns of both inputs"""

    inputs: InputColumns
    sides: list[pa.Schema]

    @cached_property
    def columns(self) -> Columns:
        """The columns of its rows, once those of the step's messages are known."""
        return self.inputs.called(self.kv, self.sides)

    def settle(self) -> None:
        """Fix the names of columns from now on."""
        packed = bytes((FORMAT,)) + msgpack.packb(self.columns.called)
        if self.kv.get(self.inputs.aux_cf, NAMES) != packed:
            batch = Batch()
            batch.put(self.inputs.aux_cf, NAMES, packed)
            self.kv.write(batch)


class InputColumns:
    """Reader and writer of the known columns in the store that it receives; stateless."""

    def __init__(self, definition: JoinDefinition, aux_cf: str) -> None:
        self.definition, self.aux_cf = definition, aux_cf
        sides = ((definition.left, definition.left_keys), (definition.right, definition.right_keys))
        #: The reading options of each side.
        self.readings = tuple(InputReading(input.name, input, keys) for input, keys in sides)
        self.stored_schemas = InputSchemas(aux_cf, SLOTS)

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table] | None = None) -> Needs:
        """Return the columns that the join requires of an input. other_inputs: tables of other inputs in the same step."""
        sides = self.schemas(kv)
        for side, input in enumerate((self.definition.left, self.definition.right)):
            if other_inputs is not None and input.name in other_inputs:
                sides[side] = learn(sides[side], other_inputs[input.name].schema, event_time=input.event_time)
        side = LEFT if name == self.definition.left.name else RIGHT
        return JoinNeeds(self.definition, side, sides, self.names(kv))

    def names(self, kv: KV) -> Names | None:
        """Return the final column names; None until the columns of both inputs are known or a row was emitted."""
        packed = kv.get(self.aux_cf, NAMES)
        if packed is None:
            return None
        check_version("names of columns", packed[0], FORMAT)
        left, right = msgpack.unpackb(packed[1:])
        return left, right

    def called(self, kv: KV, sides: Sequence[pa.Schema]) -> Columns:
        """Return the columns of rows, over such inputs."""
        return Columns.of(self.definition, sides[LEFT], sides[RIGHT], self.names(kv))

    def schemas(self, kv: KV) -> list[pa.Schema]:
        """Return the known columns of both sides; before the first message, the declared ones."""
        known = self.stored_schemas.known(kv)
        return [
            known[slot] if slot in known else _declared(reading)
            for slot, reading in zip(SLOTS, self.readings, strict=True)
        ]

    def known(self, kv: KV) -> list[pa.Schema] | None:
        """Return the columns of both sides; None until a message, or a table without rows, of each side has come."""
        known = self.stored_schemas.known(kv)
        return [known[slot] for slot in SLOTS] if len(known) == len(SLOTS) else None

    def learn(self, kv: KV, side: int, known: pa.Schema, seen: pa.Schema) -> pa.Schema:
        schema = learn(known, seen, event_time=self.readings[side].event_time)
        self.stored_schemas.save(kv, SLOTS[side], known, schema)
        return schema


def _declared(reading: InputReading) -> pa.Schema:
    return pa.schema([(name, pa.null()) for name in dict.fromkeys((*reading.by, reading.event_time))])
