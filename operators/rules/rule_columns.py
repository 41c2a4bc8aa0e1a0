"""Columns of rules: those that each input needs, those that are kept of a message, and those of output rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import pyarrow as pa

from windrow.core.column_types import compared
from windrow.core.errors import TypeClash
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.types import widened
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.rules.definition import MATCH_ID, MATCH_TIME, MESSAGES, RULE, RulesDefinition
from windrow.operators.rules.patterns import Pattern, Rule, references
from windrow.operators.several_inputs import InputSchemas
from windrow.operators.steps.schema_inference import (
    Needs,
    check_filter,
    check_types,
    condition_refusal,
    expression_refusal,
    is_truth,
    key_refusal,
    learn,
    missing,
)
from windrow.stores.kv import KV

#: The messages of a match, in the order of their patterns.
MESSAGE = pa.struct(
    [
        pa.field("binding", pa.string()),
        pa.field("input", pa.string()),
        pa.field("source", pa.string()),
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("ordinal", pa.int64()),
    ]
)
STAMP = pa.timestamp("us", "UTC")


class PartAggregating:
    """The aggregations of one pattern, as `Calculation` takes them."""

    integer_overflow = "dead_letter"

    def __init__(self, pattern: Pattern, input: Input, by: tuple[str, ...]) -> None:
        self.by, self.event_time, self.agg = by, input.event_time, dict(pattern.agg)


def own_columns(pattern: Pattern) -> set[str]:
    """Return the columns of its input that a pattern names by themselves, without those in expressions."""
    named = {own for own, _ in pattern.on} | {r.this for r in pattern.time if r.this is not None}
    return named | {c for a in pattern.agg.values() for c in a.columns}


def referred(rule: Rule) -> Iterator[tuple[str, str]]:
    """Give the columns of bindings that the patterns and rows of a rule name: (binding, column)."""
    for pattern in rule.when.values():
        for expression in pattern.expressions:
            yield from references(expression)
        for relation in pattern.time:
            if relation.binding is not None and relation.column is not None:
                yield relation.binding, relation.column
        for _, other in pattern.on:
            binding, column = other.split(".", 1)
            yield binding, column
    for expression in (rule.then or {}).values():
        yield from references(expression)


class RuleColumns:
    """The columns of one definition. It holds no state: the schemas of inputs are in the store."""

    def __init__(self, definition: RulesDefinition, stored: InputSchemas) -> None:
        self.definition, self.stored = definition, stored
        self.whole = {
            pattern.input
            for rule in definition.rules.values()
            if rule.then is None
            for binding, pattern in rule.when.items()
            if pattern.binds and not binding.startswith("__")
        }
        self._required: dict[str, frozenset[str]] = {}
        #: By input the names that were last asked for, and those of them that rules name.
        self._used: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        #: Values derived from the columns of the inputs last used.
        self._made_of: dict[str, pa.Schema] = {}
        self._provenance: dict[tuple[object, ...], list[pa.Field]] = {}

    def _once(
        self, key: tuple[object, ...], schemas: Mapping[str, pa.Schema], make: Callable[[], list[pa.Field]]
    ) -> list[pa.Field]:
        """Return the value derived from these columns, made once."""
        if self._made_of != schemas:
            self._made_of, self._provenance = dict(schemas), {}
        if key not in self._provenance:
            self._provenance[key] = make()
        return self._provenance[key]

    # -- inputs -----------------------------------------------------------------------------------------------------

    def schemas(self, kv: KV) -> dict[str, pa.Schema]:
        """Return the columns of all inputs: of those without a message the declared ones, without a type."""
        known = self.stored.known(kv)
        return {
            i.name: known[i.name] if i.name in known else self._declared[i.name]
            for i in self.definition.inputs
        }

    @cached_property
    def _declared(self) -> dict[str, pa.Schema]:
        """The columns of inputs without a message."""
        return {
            i.name: pa.schema([(n, pa.null()) for n in sorted(self.required(i))])
            for i in self.definition.inputs
        }

    def required(self, input: Input) -> frozenset[str]:
        """Return the columns that every message of an input must have, except those in expressions."""
        if input.name not in self._required:
            self._required[input.name] = frozenset(self._named(input))
        return self._required[input.name]

    def _named(self, input: Input) -> set[str]:
        patterns = [p for _, _, p in self.definition.patterns if p.input == input.name]
        named = set(self.definition.columns_of(input)).union(*(own_columns(p) for p in patterns))
        for rule in self.definition.rules.values():
            of = {binding for binding, p in rule.when.items() if p.input == input.name and p.binds}
            named |= {column for binding, column in referred(rule) if binding in of}
        return named

    def used(self, input: Input, names: Iterable[str]) -> frozenset[str]:
        """Return the columns of an input that rules name."""
        names = frozenset(names)
        if self._used.get(input.name, (None, None))[0] != names:
            self._used[input.name] = names, frozenset(self._mentioned(input, names))
        return self._used[input.name][1]

    def _mentioned(self, input: Input, names: Iterable[str]) -> set[str]:
        names = set(names)
        found = names & self.required(input)
        for rule in self.definition.rules.values():
            for pattern in rule.when.values():
                if pattern.input == input.name:
                    uses = [*pattern.expressions, *(e for a in pattern.agg.values() for e in a.expressions)]
                    found |= {n for n in names if any(e.mentions(n) for e in uses)}
        return found

    def kept(self, input: Input, schema: pa.Schema) -> list[str]:
        """Return the columns that are kept of a message."""
        if input.name in self.whole:
            return list(schema.names)
        used = self.used(input, schema.names)
        return [name for name in schema.names if name in used]

    def needs(self, input: Input) -> RuleNeeds:
        """Return the columns of an input that rules need, whatever those of other inputs are."""
        return RuleNeeds(self, input, self._declared)

    def needs_with(self, kv: KV, input: Input, others: Mapping[str, pa.Table]) -> RuleNeeds:
        """Return the columns of an input that rules need. others: tables of other inputs in the same step."""
        schemas = self.schemas(kv)
        for name, table in others.items():
            if name in schemas and name != input.name:
                schemas[name] = learn(
                    self.stored.of(kv, name), table.schema, None, self.definition.input(name).event_time
                )
        return RuleNeeds(self, input, schemas)

    # -- output -----------------------------------------------------------------------------------------------------

    def key_fields(self, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        """Return the partition columns, in the types in which the inputs are compared."""
        return self._once(("keys",), schemas, lambda: self._key_fields(schemas))

    def _key_fields(self, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        fields = []
        for i, name in enumerate(self.definition.by):
            field = pa.field(name, pa.null())
            for input in self.definition.inputs:
                keys, schema = self.definition.keys(input), schemas[input.name]
                if i >= len(keys) or keys[i] not in schema.names:
                    continue
                common = compared(field, schema.field(keys[i]))
                if common is None:
                    raise TypeClash(
                        f"key {keys[i]!r} of input {input.name!r} is {schema.field(keys[i]).type}, and {field.type} in another "
                        "input, which cannot be compared: cast one of them"
                    )
                field = common
            fields.append(field.with_name(name).remove_metadata())
        return fields

    def bound(self, rule: Rule, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        """Return the columns of complete tuples of a rule, as `<binding>.<column>`, that its conditions and rows name."""
        return self._once(("bound", id(rule)), schemas, lambda: self._bound(rule, schemas))

    def _bound(self, rule: Rule, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        wanted, fields = set(referred(rule)), []
        for binding, pattern in rule.when.items():
            if pattern.binds and not binding.startswith("__"):
                whole = rule.then is None
                fields += [
                    f.with_name(f"{binding}.{f.name}").remove_metadata()
                    for f in schemas[pattern.input]
                    if whole or (binding, f.name) in wanted
                ]
        return fields

    def aggregates(self, rule: Rule, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        """Return the columns of accumulates, as `<binding>.<alias>`."""
        fields = []
        for binding, pattern in rule.subpatterns.items():
            if pattern.agg:
                output = self.calculation(pattern, schemas[pattern.input]).output
                fields += [f.with_name(f"{binding}.{f.name}") for f in output]
        return fields

    def calculation(self, pattern: Pattern, schema: pa.Schema) -> Calculation:
        """Return the aggregations of a pattern over its input."""
        input = self.definition.input(pattern.input)
        return Calculation(PartAggregating(pattern, input, self.definition.keys(input)), schema)

    def then(self, rule: Rule, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        """Return the own columns of the rows of a rule."""
        bound = [*self.bound(rule, schemas), *self.aggregates(rule, schemas)]
        if rule.then is None:
            return [f.with_name(f.name.replace(".", "_", 1)) for f in bound]
        empty = pa.schema([*self.key_fields(schemas), *bound]).empty_table()
        return [pa.field(name, value.evaluate(empty, "then").type) for name, value in rule.then.items()]

    def output(self, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        """Return the columns of all rows."""
        return self._once(("output",), schemas, lambda: self._output(schemas))

    def check_output(self, schemas: Mapping[str, pa.Schema]) -> dict[str, pa.Field]:
        """Return the columns that rules give their rows. Raises `TypeClash` where two give one name different types."""
        own: dict[str, pa.Field] = {}
        for name, rule in self.definition.rules.items():
            for field in self.then(rule, schemas):
                known = own.setdefault(field.name, field)
                kind = widened(known.type, field.type)
                if kind is None:
                    raise TypeClash(
                        f"column {field.name!r} of rule {name!r} is {field.type}, and {known.type} in another rule: rename one"
                    )
                own[field.name] = known.with_type(kind)
        return own

    def _output(self, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        own = self.check_output(schemas)
        first = [
            pa.field(RULE, pa.string()),
            pa.field(MATCH_ID, pa.string()),
            pa.field(MATCH_TIME, STAMP),
        ]
        keys = self.key_fields(schemas)
        rest = [f for n, f in own.items() if n not in self.definition.by]
        return [*keys, *first, *rest, pa.field(MESSAGES, pa.list_(MESSAGE))]


class RuleNeeds(Needs):
    """The columns of one input that rules need. schemas: of all inputs, as far as they are known."""

    def __init__(self, columns: RuleColumns, input: Input, schemas: Mapping[str, pa.Schema]) -> None:
        self._columns, self._input, self._schemas = columns, input, schemas
        self.whole = input.name in columns.whole
        interval = input.interval
        ends = () if interval is None else (interval.start, interval.end)
        relations = [r for _, _, p in columns.definition.patterns if p.input == input.name for r in p.time]
        self.times = frozenset(n for n in (*ends, *(r.this for r in relations)) if n is not None)
        self._keys = columns.definition.keys(input)

    def _uses(self) -> Iterator[tuple[Expr, dict[str, pa.DataType]]]:
        """Give each condition of a pattern of this input, with the columns of others that it names."""
        for rule in self._columns.definition.rules.values():
            bound = {f.name: f.type for f in self._columns.bound(rule, self._schemas)}
            for pattern in rule.when.values():
                if pattern.input == self._input.name and pattern.where is not None:
                    yield pattern.where, bound

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        come = {*(() if known is None else known.names), *names}
        for needed in sorted(self._columns.required(self._input) - come):
            raise missing(needed, repr(self._input.name), come)
        for condition in self._input.asked:
            check_filter(condition, known, come)
        own = dict.fromkeys(come, pa.null()) | {f.name: f.type for f in known or ()}
        for where, bound in self._uses():
            others = {name: kind for name, kind in bound.items() if where.mentions(name)}
            check_types(partial(_evaluate, where), {**own, **others})

    def named(self, names: Iterable[str]) -> set[str]:
        names = set(names)
        asked = {n for n in names if any(condition.mentions(n) for condition in self._input.asked)}
        return asked | self._columns.used(self._input, names)

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = (
            key_refusal(name, kind) if name in self._columns.required(self._input) & set(self._keys) else None
        )
        types = {**known, name: kind}
        refusal = refusal or condition_refusal(self._input.asked, name, types)
        for other in self.compared_with(name):
            if compared(other, pa.field(name, kind)) is None:
                refusal = (
                    refusal
                    or f"column {name!r} is {kind}, its partner is {other.type}, which cannot be compared"
                )
        for where, bound in self._uses():
            refusal = refusal or expression_refusal([where], name, {**bound, **types}, is_truth)
        return refusal or self._clash(types)

    def _clash(self, types: Mapping[str, pa.DataType]) -> str | None:
        """Return how columns of this input clash in the rows of rules with those of other inputs that came before."""
        others = [schema for name, schema in self._schemas.items() if name != self._input.name]
        if all(pa.types.is_null(kind) for schema in others for kind in schema.types):
            return None  # the definition is to blame, and the step raises
        own = pa.schema((dict.fromkeys(self._columns.required(self._input), pa.null()) | dict(types)).items())
        try:
            self._columns.check_output({**self._schemas, self._input.name: own})
        except TypeClash as error:
            return str(error.args[0])
        return None

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        found, definition = [], self._columns.definition
        for i, key in enumerate(self._keys):
            for other in definition.inputs:
                keys, schema = definition.keys(other), self._schemas[other.name]
                if key == name and other is not self._input and i < len(keys) and keys[i] in schema.names:
                    found.append(schema.field(keys[i]))
        for rule in definition.rules.values():
            found += self._equal(rule, name)
        return found

    def _equal(self, rule: Rule, name: str) -> Iterator[pa.Field]:
        """Give the columns that a rule compares with this one by `on=`."""
        for pattern in rule.when.values():
            for own, dotted in pattern.on:
                binding, column = dotted.split(".", 1)
                other = rule.when.get(binding)
                if other is None:
                    continue
                for (a, b), (c, d) in (
                    ((pattern.input, own), (other.input, column)),
                    ((other.input, column), (pattern.input, own)),
                ):
                    if (a, b) == (self._input.name, name) and d in self._schemas[c].names:
                        yield self._schemas[c].field(d)


def _evaluate(where: Expr, types: Mapping[str, pa.DataType]) -> object:
    return where.evaluate(pa.schema(types.items()).empty_table())
