"""`spark.read.format("windrow")`: the state of a job as DataFrames.

    spark.read.format("windrow").option("table", "windows").load(location)

The state is fixed when the query is planned: all partitions, one for each shard, read one commit of it. PySpark 4.2 passes
filters to a Python source, where `spark.sql.python.filterPushdown.enabled` is true, and no selection of columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from windrow.core.errors import ConfigurationError
from windrow.core.time import instant_us, is_number
from windrow.operators.view import WINDOWS, Query
from windrow.runners.spark.predicate_pushdown import Pushed
from windrow.runners.state import State
from windrow.runners.state.definitions import imported, location_and_log

#: Tables of the whole job; the others are those of its operators.
JOB_TABLES = ("panes", "commits", "dead_letters")
#: Options of a page, each with what parses its text.
PAGE: dict[str, Callable[[str], Any]] = {
    "order": str,
    "descending": "true".__eq__,
    "after": int,
    "limit": int,
    "contains": str,
}
OPTIONS = ("path", "table", "operator", "input", "asof", "start", "end", "key", "definition", *PAGE)
#: Rows travel to Spark in batches of so many.
BATCH_ROWS = 10_000
_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class WindrowSource(DataSource):
    """Options, all text:

    path: the location, as `load(location)` gives it; of a job with its log in Kafka "log:servers/name", or
        "log:module:name" of a `wr.kafka_log(...)`
    table: "windows" (default), "messages", "panes", "commits" or "dead_letters"
    operator: which, where the job has several; input: which input of a join
    asOf: as it was after this commit
    start, end: as for `get_windows` and `get_messages`; ISO text (UTC, unless it names a zone), microseconds, or numbers
    key: JSON: a value, a list, or a map by column
    definition: "module:name", where the log's text of a definition cannot be built again
    order, descending, after, limit, contains: some rows of a table of an operator, as `page` of `wr.read_state` returns them,
        in one partition. Filters apply to these rows
    """

    @classmethod
    def name(cls) -> str:
        return "windrow"

    def schema(self) -> StructType:
        with self._state() as state:
            return from_arrow_schema(_plain(_table(state, self.options).schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        with self._state(()) as state:  # as of the commit that is the last one now
            commit, shards = state.commit, state.shards
        pushes = _pushes() and not _page(dict(self.options))
        reader = PushingReader if pushes else StateReader
        return reader(dict(self.options), schema, commit, shards)

    def _state(self, shards: Sequence[int] | None = None) -> State:
        return open_state(dict(self.options), shards=shards)


def open_state(options: dict[str, str], *, as_of: int | None = None, shards: Sequence[int] | None) -> State:
    """Open the state that options name."""
    by_name = {name.lower(): value for name, value in options.items()}
    unknown = [name for name in by_name if name not in OPTIONS]
    if unknown:
        raise ConfigurationError(f"option {unknown[0]!r} is none of {list(OPTIONS)}")
    if "path" not in by_name:
        raise ConfigurationError("no location is given: load(location), where the job was opened")
    if as_of is None and "asof" in by_name:
        as_of = int(by_name["asof"])
    definition = imported(by_name["definition"]) if "definition" in by_name else None
    path, log = location_and_log(by_name["path"].removeprefix("file://").removeprefix("file:"))
    return State(path, log=log, as_of=as_of, definition=definition, shards=shards)


class StateReader(DataSourceReader):
    """A reader of one table of a job as of one commit. Picklable: it travels to the tasks."""

    def __init__(self, options: dict[str, str], schema: StructType, commit: int, shards: int) -> None:
        self.options = options
        self.schema = schema
        self.commit = commit
        self.shards = shards
        self.pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        if self.options.get("table", "windows") in JOB_TABLES or _page(self.options):
            return [InputPartition(None)]
        return [InputPartition(n) for n in range(self.shards)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        target = to_arrow_schema(self.schema, timezone="UTC")
        none = None if _page(self.options) else ()
        shards = none if partition.value is None else (partition.value,)
        with open_state(self.options, as_of=self.commit or None, shards=shards) as state:
            table = _table(state, self.options, self.pushed)
        columns = [
            table.column(f.name).cast(f.type)
            if f.name in table.column_names
            else pa.nulls(len(table), f.type)
            for f in target
        ]
        table = self.pushed.of(pa.table(columns, schema=target))
        yield from table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


class PushingReader(StateReader):
    """A state reader that accepts pushed filters. Without that setting Spark rejects a reader with `pushFilters`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        types = {f.name: f.type for f in to_arrow_schema(self.schema, timezone="UTC")}
        for condition in filters:
            if not self.pushed.accept(condition, types):
                yield condition


def _pushes() -> bool:
    """True in the process in which Spark plans with filters."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN in sys.modules or getattr(main, "name", None) == _PUSHDOWN


def _table(state: State, options: Any, pushed: Pushed | None = None) -> pa.Table:
    """Return the table of the options; of windows and messages all rows that pass the filters, and perhaps more."""
    options = {name.lower(): value for name, value in dict(options).items()}
    table, operator, name = options.get("table", "windows"), options.get("operator"), options.get("input")
    page = _page(options)
    if page and table in JOB_TABLES:
        raise ConfigurationError(f"table {table!r} has no pages: leave out {[*page]}")
    if table == "commits":
        return state.commits_table()
    if table == "dead_letters":
        return state.dead_letters_table()
    if table == "panes":
        return state.panes(operator)
    key = json.loads(options["key"]) if "key" in options else None
    key = tuple(key) if isinstance(key, list) else key
    start, end = (_instant(options.get(n)) for n in ("start", "end"))
    Query(start, end).checked(WINDOWS)
    crossed = False
    if pushed is not None:
        start, end = pushed.narrowed(state.timed(table, operator, name), start, end)
        key = pushed.key(state.key_types(operator, name, table), key)
        # `window.start <= 12 AND window.end > 15` is of windows that hold both; of messages the filters leave none.
        crossed = start is not None and end is not None and start > end
    if crossed:
        start, end = end, start
    if page:
        return state.page(table, start, end, key=key, operator=operator, input=name, **page).rows
    covering = crossed and table == WINDOWS
    return state.table(table, start, end, covering=covering, key=key, operator=operator, input=name)


def _page(options: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of a page that options name; none where all rows are read."""
    return {name.lower(): PAGE[name.lower()](text) for name, text in options.items() if name.lower() in PAGE}


def _instant(text: str | None) -> int | None:
    if text is None:
        return None
    if is_number(text):
        return int(text)
    return instant_us(text, zone=UTC)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Map types to those of Spark: a type that is unknown is text, unsigned integers are signed."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_null(kind):
            kind = pa.string()
        elif pa.types.is_uint64(kind):
            kind = pa.decimal128(20, 0)
        elif pa.types.is_unsigned_integer(kind):
            kind = pa.int64()
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)
