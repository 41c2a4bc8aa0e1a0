"""Views of a process function: the state of keys, and the timers that are set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from windrow.core.byte_order import decode_u32
from windrow.core.errors import ConfigurationError
from windrow.core.show import json_text
from windrow.core.types import concat
from windrow.operators.process.calls import Families, Kind, unpacked
from windrow.operators.process.definition import ProcessDefinition
from windrow.operators.process.logic import Processor
from windrow.operators.steps.message_rows import unpack_rows
from windrow.operators.steps.output_columns import STAMP
from windrow.operators.view import Query, View, key_of, of_key
from windrow.stores.kv import KV

STATE, TIMERS = "state", "timers"
#: The columns of each, besides the key.
OF_STATE = (pa.field("state", pa.string()), pa.field("value", pa.string()))
OF_TIMERS = (pa.field("at", STAMP), pa.field("of", pa.string()))


class ProcessView(View):
    """A view with the tables `state`, a row for each value of a key, as JSON, and `timers`, a row for each pending one."""

    logic: Processor
    definition: ProcessDefinition

    def table(self, table: str, query: Query) -> pa.Table:
        if table not in self.definition.tables:
            raise self.refuse(table)
        cfs, by = Families(self.definition.name), self.definition.by
        if table == STATE and (query.start is not None or query.end is not None):
            raise ConfigurationError(
                f"start={query.start!r}, end={query.end!r}: the state of {self.definition.name!r} has no time, ask by key="
            )
        low, high = query.times
        entries: list[tuple[bytes, bytes, tuple[Any, ...], KV]] = []
        for kv in self.stores:
            if table == STATE:
                for at, value in kv.scan(cfs.state):
                    encoded = at[4 : 4 + decode_u32(at)]
                    row = (kv.get(cfs.keys, encoded) or b"")[16:]
                    entries.append((encoded, row, (at[4 + len(encoded) :].decode(), _shown(value)), kv))
                continue
            for of, index in cfs.indices.items():
                for at_us, key_bytes, _, value in index.between(kv, low, high).of(Kind.TIMER):
                    entries.append((key_bytes, value[8:], (at_us, of), kv))
        entries.sort(key=lambda one: (one[0], one[2]))
        made = _rows(entries, self._schema(), self._fields(table), cfs.aux)
        return made.filter(pa.array(of_key(made, key_of(by, query.key))))

    def timed(self, table: str) -> str | None:
        if table not in self.definition.tables:
            raise self.refuse(table)
        return self._fields(table)[0].name if table == TIMERS else None

    def _fields(self, table: str) -> list[pa.Field]:
        """Return its columns besides the key; if a key column has such a name, it is `of_state`, `of_at`."""
        fields, by = OF_STATE if table == STATE else OF_TIMERS, self.definition.by
        return [f.with_name(f"of_{f.name}") if f.name in by else f for f in fields]

    def _schema(self) -> pa.Schema:
        types = self.key_types()
        return pa.schema([(b, types[b]) for b in self.definition.by])


def _shown(value: bytes) -> str:
    return json_text(_named(unpacked(value)))


def _named(value: Any) -> Any:
    """Return a value with text for those keys of maps that JSON does not take: bytes, times."""
    if isinstance(value, list):
        return [_named(one) for one in value]
    if isinstance(value, dict):
        plain = (str, int, float, bool, type(None))
        return {k if isinstance(k, plain) else str(k): _named(v) for k, v in value.items()}
    return value


def _rows(
    found: Sequence[tuple[bytes, bytes, tuple[Any, ...], KV]],
    keys: pa.Schema,
    fields: Sequence[pa.Field],
    aux_cf: str,
) -> pa.Table:
    """Return rows with the filed keys of each, and its values."""
    tables = [pa.schema([*keys, *fields]).empty_table()]
    for _, row, values, kv in found:
        own = [
            pa.array([v], pa.int64() if f.type == STAMP else f.type)
            for v, f in zip(values, fields, strict=True)
        ]
        own = [a.cast(f.type) for a, f in zip(own, fields, strict=True)]
        filed = unpack_rows(kv, aux_cf, [row], [("", 0, 0, 0)], keys) if len(keys) else None
        columns = [] if filed is None else [filed.column(b) for b in keys.names]
        tables.append(pa.table([*columns, *own], schema=tables[0].schema))
    return concat(tables)
