"""Required columns of an input of a join."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.errors import UnknownColumn
from windrow.core.expressions import names_no_column
from windrow.core.policy import RESERVED_COLUMNS
from windrow.core.types import widened
from windrow.operators.aggregate.sessions.dynamic_gap import gap_refused
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.output import Columns, Names, prefixes
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.steps.schema_inference import (
    Needs,
    check_filter,
    condition_refusal,
    expression_refusal,
    is_truth,
    key_refusal,
    learn,
    missing,
)


class JoinNeeds(Needs):
    """The columns that a join requires of an input: keys, event time, those in the condition. Messages are kept whole."""

    whole = True

    def __init__(
        self, definition: JoinDefinition, side: int, sides: Sequence[pa.Schema], called: Names | None
    ) -> None:
        input = (definition.left, definition.right)[side]
        self._input = input.name
        self._definition, self._side, self._sides, self._called = definition, side, sides, called
        self._where = None if definition.where is None else definition.where.expression
        #: The expression for dynamic gaps of messages.
        self._gap = definition.own_gap if side in definition.session_sides else None
        self._filters = input.asked
        self._asked = (*input.asked, *(() if self._gap is None else (self._gap,)))
        #: Keys and event time.
        self.required = {input.event_time, *(pair[side] for pair in definition.on)}
        self._prefixes = {prefixes(definition)[side]}
        if definition.is_self_join:
            self._prefixes.update(prefixes(definition))
            self.required.update(name for pair in definition.on for name in pair)

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        # A column that comes later may be known by name, as the partner of one of the other input.
        come = {f.name for f in known or () if not pa.types.is_null(f.type)} | set(names)
        for needed in sorted(self.required - come):
            raise missing(needed, repr(self._input), names)
        for condition in self._asked:
            check_filter(condition, known, come)

    def named(self, names: Iterable[str]) -> set[str]:
        return {
            n
            for n in names
            if n in self.required or self._mentioned(n) or any(c.mentions(n) for c in self._asked)
        }

    def _mentioned(self, name: str) -> bool:
        where = self._where
        return where is not None and any(
            where.mentions(n) for n in (name, *(f"{prefix}_{name}" for prefix in self._prefixes))
        )

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        """Return new columns whose output name is reserved or taken by another column."""
        definition = self._definition
        left_only = definition.how in ("semi", "anti")
        if left_only and self._side == 1:
            return {}
        known = {*self._sides[self._side].names, *self.required}
        taken = (
            {}
            if left_only or self._called is None
            else {c: n for side in self._called for n, c in side.items()}
        )
        reasons = {}
        for name in names:
            if name in known:
                continue
            if name in RESERVED_COLUMNS:
                reasons[name] = (
                    f"column {name!r} is one of ours ({', '.join(RESERVED_COLUMNS)}): rename it in the input"
                )
            elif taken.get(name, name) != name:
                reasons[name] = (
                    f"column {name!r} of the rows is {taken[name]!r} of an input: rename it in the input"
                )
        return reasons

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        itself = self._definition.is_self_join
        for pair in self._definition.on:
            if name in (pair if itself else pair[self._side : self._side + 1]):
                refusal = key_refusal(name, kind)
                if refusal is not None:
                    return refusal
            for side in (0, 1) if itself else (self._side,):
                partner, schema = pair[1 - side], self._sides[1 - side]
                if pair[side] != name or (itself and partner == name):
                    continue
                other = schema.field(partner).type if partner in schema.names else pa.null()
                if itself:
                    other = known.get(partner, other)
                if widened(kind, other) is None:
                    return f"key {name!r} is {kind}, its partner {partner!r} is {other}, which cannot be compared"
        return self.uncomputable(name, kind, known)

    def uncomputable(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        types = {**known, name: kind}
        gap = () if self._gap is None else (self._gap,)
        refusal = gap_refused(self._gap, types) or expression_refusal(gap, name, types)
        return refusal or condition_refusal(self._filters, name, types) or self._pairs_refusal(name, types)

    def among(self, own: pa.Schema) -> Needs | None:
        definition, time = self._definition, self._definition.left.event_time
        if not definition.is_self_join or definition.left_keys == definition.right_keys:
            return None
        sides = [learn(schema, own, event_time=time) for schema in self._sides]
        return JoinNeeds(definition, self._side, sides, self._called)

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        itself, sides, on = self._definition.is_self_join, self._sides, self._definition.on
        partners = [
            (sides[1 - side], pair[1 - side])
            for pair in on
            for side in ((0, 1) if itself else (self._side,))
            if pair[side] == name and not (itself and pair[1 - side] == name)
        ]
        return [schema.field(partner) for schema, partner in partners if partner in schema.names]

    def _pairs_refusal(self, name: str, types: Mapping[str, pa.DataType]) -> str | None:
        """Return the reason why the condition on pairs cannot be computed for a column of that type; None if it can."""
        definition = self._definition
        if self._where is None or not self._mentioned(name):
            return None
        needed = {n: kind for n, kind in types.items() if n in self.required or self._mentioned(n)}
        sides = [schema.empty_table() for schema in self._sides]
        for side in (LEFT, RIGHT) if definition.is_self_join else (self._side,):
            sides[side] = pa.schema({**_types(self._sides[side]), **needed}.items()).empty_table()
        columns = Columns.of(definition, sides[LEFT].schema, sides[RIGHT].schema, self._called)
        none = np.zeros(0, dtype=np.int64)
        pairs = columns.looked_at(definition, self._where, sides[LEFT], sides[RIGHT], none, none)
        try:
            kind = self._where.evaluate(pairs).type
        except UnknownColumn as error:
            return None if names_no_column(error) else f"column {name!r} is {types[name]}: {error.message}"
        if not is_truth(kind):
            return f"column {name!r} is {types[name]}: expression {self._where} cannot be {kind} there"
        return None


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema}
