"""Columns of a join's output in the oracle, and its condition on one pair at a time. Semantics "Joins", "Columns"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow.operators.join.definition import JoinDefinition
from windrow.operators.oracle.arrow import Columns, is_true

Payload = Mapping[str, Any]


class JoinColumns:
    """The columns seen on each side, and their names in the output."""

    def __init__(self, join: JoinDefinition, known: Mapping[str, Any]) -> None:
        self.join = join
        # Keys and event time are known of an input that was never seen.
        right = list(dict.fromkeys((*join.right_keys, join.right.event_time)))
        left = list(dict.fromkeys((*join.left_keys, join.left.event_time)))
        self._names: dict[str, list[str]] = {join.right.name: right, join.left.name: left}
        self._types = Columns()  # of (input, column)
        self._seen = set(known)
        # Output name of (side, column), for good.
        self._called_names: dict[tuple[str, str], str] = {}
        for name, schema in known.items():
            self._names[name] = list(schema.names)
            for field in schema:
                self._types.declare((name, field.name), field.type)

    def see(self, name: str, payload: Payload) -> None:
        """Remember the columns of an input, even if they come from a dead letter."""
        self._seen.add(name)
        self._names[name] += [column for column in payload if column not in self._names[name]]

    def refused(self, name: str, payload: Payload) -> list[str]:
        """Return the columns that no message may have: new ones with a reserved name, or with one that is taken in the rows."""
        left_only = self.join.how in ("semi", "anti")
        if left_only and name != self.join.left.name:
            return []
        taken = {out: column for (_, column), out in self._called_names.items() if not left_only}
        new = [c for c in payload if c not in self._names[name]]
        return [c for c in new if c in ("window", "pane", "commit") or taken.get(c, c) != c]

    def settle(self, *, emitted: bool = False) -> None:
        """Fix the names of columns once both inputs have been seen or a row was emitted."""
        if emitted or self._seen == {source.name for source in self.join.inputs}:
            self._called_names = self._called()

    @property
    def names(self) -> list[str]:
        """The columns of the output."""
        if self.join.how not in ("semi", "anti"):
            return list(self._output())
        own = [name for name in self._names[self.join.left.name] if name not in self.join.left_keys]
        return [*self.join.left_keys, *own]

    def learn(self, name: str, payload: Payload) -> None:
        """Remember the types of columns, so that a null is a null of that type."""
        for column, value in payload.items():
            if value is not None and self.join.where is not None:
                self._types.learn((name, column), [value])

    def row(self, left: Payload | None, right: Payload | None) -> dict[str, Any]:
        """Return the output of a pair, or of a message without a partner."""
        self.settle(emitted=True)
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
                self._types.row({n: ((source, n), payload.get(n)) for n in self._names[source]})
                for source, payload in ((self.join.left.name, left), (self.join.right.name, right))
            ]
            [answer] = where.function(*tables)
        else:
            assert where.expression is not None
            cells: dict[str, tuple[Any, Any]] = {}
            output = self._output()
            for (side, own), called in self._called().items():
                # A column may be named with its input's name before it.
                output.setdefault(f"{self._prefix(side)}_{own}", output[called])
            for out, (left_name, right_name) in output.items():
                column = (
                    (self.join.right.name, right_name)
                    if left_name is None
                    else (self.join.left.name, left_name)
                )
                cells[out] = (column, _value(left, right, left_name, right_name))
            [answer] = where.expression.evaluate(self._types.row(cells))
        return is_true(answer)

    def _prefix(self, side: str) -> str:
        if self.join.is_self_join:
            return side
        return self.join.left.name if side == "left" else self.join.right.name

    def _called(self) -> dict[tuple[str, str], str]:
        """Return output names by side and column, without keys: names that were chosen stay."""
        called = dict(self._called_names)
        lefts = [n for n in self._names[self.join.left.name] if n not in self.join.left_keys]
        rights = [n for n in self._names[self.join.right.name] if n not in self.join.right_keys]
        both = [("left", n, n in rights) for n in lefts]
        both += [("right", n, n in (*lefts, *self.join.left_keys)) for n in rights]
        for side, column, twice in both:
            if (side, column) in called:
                continue
            out = f"{self._prefix(side)}_{column}" if twice else column
            while out in (*self.join.left_keys, *called.values()):
                out = f"{self._prefix(side)}_{out}"
            called[side, column] = out
        return called

    def _output(self) -> dict[str, tuple[str | None, str | None]]:
        """Return output name -> (name on the left, name on the right): keys have both."""
        output: dict[str, tuple[str | None, str | None]] = {pair[0]: pair for pair in self.join.on}
        for (side, column), out in self._called().items():
            output[out] = (column, None) if side == "left" else (None, column)
        return output


def _value(left: Payload | None, right: Payload | None, left_name: str | None, right_name: str | None) -> Any:
    if left is not None and left_name is not None:
        return left.get(left_name)
    return None if right is None or right_name is None else right.get(right_name)
