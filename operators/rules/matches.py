"""Rows of matches: their ids, the messages that they are made of, and the columns of `then`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from windrow.core.arrays import IntArray
from windrow.core.expressions import Expr, error_text
from windrow.core.temporal import END
from windrow.core.types import as_type
from windrow.operators.rules.definition import MATCH_ID, MATCH_TIME, MESSAGES, RULE
from windrow.operators.rules.patterns import Rule
from windrow.operators.rules.rule_columns import MESSAGE, STAMP
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.operators.steps.groups import combine
from windrow.operators.steps.poison_rows import is_of_data

#: Columns of a tuple: its id, and the end of its last event or fact that has a time.
ID, AT = "__id", "__at"
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15))
#: Both digits of each octet.
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), dtype=np.uint16)

Words = npt.NDArray[np.uint64]


def match_ids(rule: str, tuples: pa.Table, bindings: Sequence[str]) -> pa.Array:
    """Compute the id of each tuple: 128 bits of its rule's name and the positions of its messages, in the order of patterns."""
    return ids_of([rule], places_of(tuples, bindings), np.zeros(len(tuples), dtype=np.int64))


def places_of(tuples: pa.Table, bindings: Sequence[str]) -> Words:
    """Compute the part of an id that comes from the positions of messages: two words for each tuple."""
    words = np.empty((2, len(tuples)), dtype=np.uint64)
    for seed in (0, 1):
        state = np.full(len(tuples), seed, dtype=np.uint64)
        for binding in bindings:
            sources = combine(tuples.column(f"{binding}.{SOURCE}")).dictionary_encode()
            names = [xxhash.xxh64_intdigest(name.encode(), seed) for name in sources.dictionary.to_pylist()]
            state = _mixed(state, np.array(names, dtype=np.uint64)[sources.indices.to_numpy()])
            for name in (PARTITION, OFFSET, ORDINAL):
                state = _mixed(state, tuples.column(f"{binding}.{name}").to_numpy().astype(np.uint64))
        words[seed] = state
    return words


def ids_of(rules: Sequence[str], places: Words, numbers: IntArray) -> pa.Array:
    """Compute the ids of tuples with these places. numbers: of the rule of each, in `rules`"""
    halves = []
    for seed in (0, 1):
        names = [xxhash.xxh64_intdigest(name.encode(), seed) for name in rules]
        halves.append(_mixed(places[seed], np.array(names, dtype=np.uint64)[numbers]))
    return _hex(np.stack(halves, axis=1))


def _mixed(state: Words, value: Words) -> Words:
    """Mix numbers into states, as splitmix64 does."""
    with np.errstate(over="ignore"):
        state = (state ^ value) + _MIX[2]
        state = (state ^ (state >> np.uint64(30))) * _MIX[0]
        state = (state ^ (state >> np.uint64(27))) * _MIX[1]
        mixed: Words = state ^ (state >> np.uint64(31))
    return mixed


def _hex(words: Words) -> pa.Array:
    """Write rows of words as text, 16 digits for each."""
    digits = 16 * words.shape[1]
    text = _HEX[words.astype(">u8").view(np.uint8)]
    offsets = np.arange(len(words) + 1, dtype=np.int32) * np.int32(digits)
    return pa.Array.from_buffers(pa.string(), len(words), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def match_times(tuples: pa.Table, bindings: Sequence[str]) -> IntArray:
    """Compute the largest end of the events of each tuple."""
    ends: IntArray = np.stack([tuples.column(f"{binding}.{END}").to_numpy() for binding in bindings])
    latest: IntArray = ends.max(axis=0)
    return latest


def in_order(tuples: pa.Table, bindings: Sequence[str]) -> IntArray:
    """Order tuples by the positions of their messages, in the order of patterns."""
    keys = []
    for binding in reversed(bindings):
        keys += [tuples.column(f"{binding}.{n}").to_numpy() for n in (ORDINAL, OFFSET, PARTITION)]
        sources = combine(tuples.column(f"{binding}.{SOURCE}")).dictionary_encode()
        names = sources.dictionary.to_pylist()
        ranks = (
            np.argsort(np.argsort(np.array(names, dtype=object))) if names else np.zeros(0, dtype=np.int64)
        )
        keys.append(ranks[sources.indices.to_numpy()])
    return np.lexsort(keys) if keys else np.arange(len(tuples))


def messages_of(tuples: pa.Table, inputs: Mapping[str, tuple[str, str]]) -> pa.Array:
    """List the messages of each tuple. inputs: of each binding its input, and the prefix of its sources."""
    n, k = len(tuples), len(inputs)
    at = pa.array((np.arange(n * k) % k) * n + np.arange(n * k) // k)
    fields: list[pa.Array] = []
    labels = [binding.removeprefix("__") for binding in inputs]
    for column in (labels, [name for name, _ in inputs.values()]):
        fields.append(pa.array(column, pa.string()).take(pa.array(np.arange(n * k) % k)))
    for name in POSITION_COLUMNS:
        parts = [combine(tuples.column(f"{binding}.{name}")) for binding in inputs]
        if name == SOURCE:
            prefixes = [prefix for _, prefix in inputs.values()]
            parts = [_without(part, prefix) for part, prefix in zip(parts, prefixes, strict=True)]
        fields.append(pa.concat_arrays(parts).take(at))
    items = pa.StructArray.from_arrays(fields, fields=list(MESSAGE))
    return pa.ListArray.from_arrays(pa.array(np.arange(n + 1, dtype=np.int32) * k), items)


def _without(sources: pa.Array, prefix: str) -> pa.Array:
    encoded = sources.dictionary_encode()
    names = [name.removeprefix(prefix) for name in encoded.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(encoded.indices)


def rows_of(
    rules: Sequence[tuple[str, Rule, IntArray]],
    tuples: pa.Table,
    ids: pa.ChunkedArray,
    fields: Sequence[pa.Field],
    inputs: Mapping[str, tuple[str, str]],
) -> pa.Table:
    """Make the output rows of rules over the same complete tuples, which have `AT`; what rules share is computed once.

    rules: each with the tuples that it is true of. ids, fields: the ids and the columns of all rows
    """
    at, numbers = rows_and_numbers(rules)
    taken = pa.array(at)
    own = {RULE: pa.array([name for name, _, _ in rules], pa.string()).take(pa.array(numbers)), MATCH_ID: ids}
    own[MATCH_TIME] = combine(tuples.column(AT)).take(taken).cast(STAMP)
    own[MESSAGES] = messages_of(tuples, inputs).take(taken)
    columns = []
    for field in fields:
        if field.name in own:
            columns.append(own[field.name])
            continue
        sources: dict[Expr | str | None, list[int]] = {}
        for i, (_, rule, _) in enumerate(rules):
            sources.setdefault(_source(field.name, rule, tuples), []).append(i)
        values, first = list[pa.Array](), np.zeros(len(rules), dtype=np.int64)
        for source, of in sources.items():
            first[of] = len(values) * len(tuples)
            values.append(as_type(_column(source, tuples, [rules[i][2] for i in of]), field.type))
        if len(values) > 1:
            columns.append(pa.concat_arrays(values).take(pa.array(at + first[numbers])))
        else:
            columns.append(values[0].take(taken))
    return pa.table(columns, schema=pa.schema(fields))


def rows_and_numbers(rules: Sequence[tuple[str, Rule, IntArray]]) -> tuple[IntArray, IntArray]:
    """Give the tuple and the number of the rule of each row, rule by rule."""
    sizes = [len(rows) for _, _, rows in rules]
    return np.concatenate([rows for _, _, rows in rules]), np.repeat(np.arange(len(rules)), sizes)


def _source(name: str, rule: Rule, tuples: pa.Table) -> Expr | str | None:
    """Return the expression or the column of tuples that a column of a rule's rows comes from; None for nulls."""
    if rule.then is not None and name in rule.then:
        return rule.then[name]
    if name in tuples.column_names:  # a key
        return name
    return _dotted(name, tuples) if rule.then is None else None


def _column(source: Expr | str | None, tuples: pa.Table, rows: Sequence[IntArray]) -> pa.Array:
    """Compute a column of rows for all tuples; an expression for those alone that are in `rows`."""
    if source is None:
        return pa.nulls(len(tuples))
    if isinstance(source, str):
        return combine(tuples.column(source))
    if any(len(used_rows) == len(tuples) for used_rows in rows):
        return combine(_value(source, tuples))
    used = np.unique(np.concatenate(rows))
    place = np.zeros(len(tuples), dtype=np.int64)
    place[used] = np.arange(len(used))
    return combine(_value(source, tuples.take(pa.array(used)))).take(pa.array(place))


class ThenRaised(Exception):
    """The error of a column of `then` on some tuple: its cause."""


def _value(expression: Expr, tuples: pa.Table) -> pa.ChunkedArray:
    """Evaluate a column of rows, which is mostly a bound column as it is."""
    name = repr(expression)
    if name in tuples.column_names and expression.expression.equals(pc.field(name)):
        return tuples.column(name)
    try:
        return expression.evaluate(tuples, "then")
    except Exception as error:
        if not is_of_data(error):
            raise
        raise ThenRaised(error_text(error)) from error


def _dotted(name: str, tuples: pa.Table) -> str | None:
    """Find the bound column that a column of a row is, if the rule has no `then`."""
    return next((c for c in tuples.column_names if c.replace(".", "_", 1) == name and "." in c), None)
