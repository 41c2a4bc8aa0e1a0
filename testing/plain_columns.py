"""The columns of a join's output, and its condition on pairs, one pair at a time. Semantics "Joins", "Columns"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from windrow.core.join import JoinDefinition

Payload = Mapping[str, Any]


class JoinColumns:
    """What columns each side has, as they were seen, and what they are called in the output."""

    def __init__(self, join: JoinDefinition, known: Mapping[str, pa.Schema]) -> None:
        self.join = join
        # Keys and event time are known of an input that was never seen.
        right = list(dict.fromkeys((*join.right_keys, join.right.event_time)))
        left = list(dict.fromkeys((*join.left_keys, join.left.event_time)))
        self._names: dict[str, list[str]] = {join.right.name: right, join.left.name: left}
        self._types: dict[tuple[str, str], pa.DataType] = {}
        for name, schema in known.items():
            self._names[name] = list(schema.names)
            self._types |= {(name, field.name): field.type for field in schema}

    def see(self, name: str, payload: Payload) -> None:
        """Remember which columns an input has, be it from a dead letter."""
        self._names[name] += [column for column in payload if column not in self._names[name]]

    @property
    def names(self) -> list[str]:
        """The columns of the output."""
        if self.join.how not in ("semi", "anti"):
            return list(self._output())
        own = [name for name in self._names[self.join.left.name] if name not in self.join.left_keys]
        return [*self.join.left_keys, *own]

    def learn(self, name: str, payload: Payload) -> None:
        """Remember what type columns are, so that a null is a null of that type."""
        for column, value in payload.items():
            if value is None or self.join.where is None:
                continue
            seen, known = pa.array([value]).type, self._types.get((name, column))
            if known is None or (pa.types.is_integer(known) and pa.types.is_floating(seen)):
                self._types[name, column] = seen

    def row(self, left: Payload | None, right: Payload | None) -> dict[str, Any]:
        """The output of a pair, or of a message without a partner."""
        if self.join.how in ("semi", "anti"):
            assert left is not None
            return {name: left.get(name) for name in self.names}
        return {
            out: _value(left, right, left_name, right_name)
            for out, (left_name, right_name) in self._output().items()
        }

    def holds(self, left: Payload, right: Payload) -> bool:
        """True if the condition on pairs is true for this one; null is not."""
        where = self.join.where
        if where is None:
            return True
        if where.function is not None:
            tables = [
                pa.table({n: self._cell(source, n, payload.get(n)) for n in self._names[source]})
                for source, payload in ((self.join.left.name, left), (self.join.right.name, right))
            ]
            [answer] = where.function(*tables)
        else:
            assert where.expression is not None
            columns = {}
            for out, (left_name, right_name) in self._output().items():
                source, column = (
                    (self.join.right.name, right_name)
                    if left_name is None
                    else (self.join.left.name, left_name)
                )
                columns[out] = self._cell(source, column, _value(left, right, left_name, right_name))
            [answer] = where.expression.evaluate(pa.table(columns))
        answer = answer.as_py() if isinstance(answer, pa.Scalar) else answer
        return answer is not None and bool(answer)

    def _output(self) -> dict[str, tuple[str | None, str | None]]:
        """Output name -> name on the left, name on the right: keys have both."""
        left, right = (self._names[source.name] for source in (self.join.left, self.join.right))
        one, two = self.join.left.name, self.join.right.name
        if self.join.is_self_join:
            one, two = "left", "right"
        output: dict[str, tuple[str | None, str | None]] = {pair[0]: pair for pair in self.join.on}
        lefts = [name for name in left if name not in self.join.left_keys]
        rights = [name for name in right if name not in self.join.right_keys]
        for name in lefts:
            output[f"{one}_{name}" if name in rights else name] = (name, None)
        for name in rights:
            output[f"{two}_{name}" if name in (*lefts, *self.join.left_keys) else name] = (None, name)
        return output

    def _cell(self, source: str, column: str | None, value: Any) -> pa.Array:
        assert column is not None
        return pa.array([value], self._types.get((source, column), pa.null()))


def _value(left: Payload | None, right: Payload | None, left_name: str | None, right_name: str | None) -> Any:
    if left is not None and left_name is not None:
        return left.get(left_name)
    return None if right is None or right_name is None else right.get(right_name)
