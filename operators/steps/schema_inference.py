"""Schema inference of an input: columns may be added, types may widen; only required columns are learnt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import pyarrow as pa

from windrow.core.column_types import joined
from windrow.core.deliver import MARK
from windrow.core.errors import TypeClash, UnknownColumn
from windrow.core.expressions import Expr, names_no_column
from windrow.core.suggestions import meant
from windrow.core.types import NESTED_MOST, as_type, is_key, is_too_deep, plain_type, widened

#: Metadata of a schema besides its columns.


def learn(
    known: pa.Schema | None, seen: pa.Schema, needs: Needs | None = None, event_time: str | None = None
) -> pa.Schema:
    """Return the schema after a slice with `seen` columns; system columns (two underscores) are no part of it.

    needs: of the operator: columns that it does not need are left out, too. event_time: a column that is read whatever its
    type is, and written in the known one (`in_known_times`)
    """
    fields = {} if known is None else {f.name: f for f in known}
    only = None if needs is None or needs.whole else needs.named({*fields, *seen.names})
    if only is not None:
        fields = {name: field for name, field in fields.items() if name in only}
    for field in seen:
        name = field.name
        if name.startswith("__") or (only is not None and name not in only):
            continue
        before = fields.get(name, pa.field(name, pa.null()))
        if name == event_time:
            fields[name] = pa.field(name, _type_of_times(before.type, field.type))
            continue
        after = joined(before, field)
        if after is None and is_too_deep(field.type):
            raise TypeClash(
                f"column {name!r} of the input has more than {NESTED_MOST} lists and structs inside each other: give it as text"
            )
        if after is None:
            raise TypeClash(
                f"column {name!r} of the input was {before.type} and is now {field.type}, which do not go together: cast it "
                "to its former type before it reaches the operator"
            )
        fields[name] = after
    return pa.schema(list(fields.values()))


def _type_of_times(known: pa.DataType, seen: pa.DataType) -> pa.DataType:
    """Return the type of event times after a slice. No message counts whose time is a float."""
    if pa.types.is_null(known) or pa.types.is_floating(known):
        return plain_type(seen)
    return known if pa.types.is_floating(seen) else widened(known, seen) or known


def in_learnt_types(table: pa.Table, schema: pa.Schema, event_time: str) -> pa.Table:
    """Return the table with the columns of `schema` in its types. Others, and times, read as integers, keep theirs."""
    types = {f.name: f.type for f in schema if f.name != event_time}
    fields = [f.with_type(types.get(f.name, f.type)) for f in table.schema]
    columns = [as_type(column, f.type) for column, f in zip(table.columns, fields, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def key_refusal(name: str, kind: pa.DataType) -> str | None:
    """Return the reason why a column of that type cannot be a key; None if it can."""
    if is_key(kind):
        return None
    return (
        f"key {name!r} is of type {kind}: keys are text, bytes, numbers, booleans, dates or times; make one of it, "
        "e.g. cast it to text, or take one of its fields"
    )


def check_keys(names: Iterable[str], schema: pa.Schema) -> None:
    """Raise `TypeClash` where a key is of a type that cannot be one."""
    for name in names:
        if name in schema.names:
            refusal = key_refusal(name, schema.field(name).type)
            if refusal is not None:
                raise TypeClash(refusal)


def missing(column: str, of: str, names: Iterable[str]) -> UnknownColumn:
    """Return the error for a column that no message has; messages have these names."""
    known = sorted(map(str, names))
    near = meant(column, known)
    remedy = f"did you mean {near!r}? Else" if near else "use one of these names, or"
    if column == MARK:
        remedy = f"wr.skipped() counts what deliver=wr.deliver.latest().marked() of a wr.Aggregate skips; else {remedy}"
    return UnknownColumn(
        f"column {column!r} of {of} is in no message so far, which have {known}: {remedy} declare the columns that are to come "
        "by open(schema=)",
        column,
        of,
    )


def check_types(
    check: Callable[[Mapping[str, pa.DataType]], object], types: Mapping[str, pa.DataType]
) -> None:
    """Raise `UnknownColumn` where a check of columns does: these are the columns of messages so far.

    It is asked again without the types of lists and structs: a message may have one where it should not, and does not count.
    """
    try:
        check(types)
    except UnknownColumn as error:
        if error.column is not None:
            raise missing(error.column, error.of, types) from None
        with suppress(UnknownColumn):
            if not names_no_column(error):
                check({n: pa.null() if pa.types.is_nested(kind) else kind for n, kind in types.items()})
                return
        raise UnknownColumn(
            f"{error.message}; declare the columns of messages without a type yet by open(schema=)"
        ) from None


def check_filter(where: Expr, known: pa.Schema | None, names: Iterable[str]) -> None:
    """Raise `UnknownColumn` where a filter is of a column that neither the stream nor messages with these names have."""
    types = dict.fromkeys(names, pa.null()) | {f.name: f.type for f in known or ()}
    check_types(lambda seen: where.evaluate(pa.schema(seen.items()).empty_table()), types)


def condition_refusal(conditions: Iterable[Expr], name: str, known: Mapping[str, pa.DataType]) -> str | None:
    """Return the reason why a column cannot have its type in conditions over columns of the `known` types; None if it can."""
    return expression_refusal(conditions, name, known, are=is_truth)


def expression_refusal(
    uses: Iterable[Expr],
    name: str,
    known: Mapping[str, pa.DataType],
    are: Callable[[pa.DataType], bool] = lambda _: True,
) -> str | None:
    """Return the reason why a column cannot have its type in expressions over columns of the `known` types; None if it can.

    are: the types that the expressions may be of
    """
    for use in uses:
        if not use.mentions(name):
            continue
        mentioned = [(n, kind) for n, kind in known.items() if use.mentions(n)]
        try:
            kind = use.evaluate(pa.schema(mentioned).empty_table()).type
        except UnknownColumn as error:
            if not names_no_column(error):  # which may come later
                return f"column {name!r} is {known[name]}: {error.message}"
        else:
            if not are(kind):
                return f"column {name!r} is {known[name]}: expression {use} cannot be {kind} there"
    return None


def is_truth(kind: pa.DataType) -> bool:
    """True if values of that type are true, false or null."""
    return bool(pa.types.is_boolean(kind) or pa.types.is_null(kind))


class Needs(Protocol):
    """The columns of an input that an operator requires."""

    #: True if messages are kept with all of their columns.
    whole: bool
    #: Columns that hold times in any form, as event times do.
    times: frozenset[str] = frozenset()

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        """Raise `UnknownColumn` where a column is needed that neither the stream nor messages with these names have."""
        ...

    def named(self, names: Iterable[str]) -> set[str]:
        """Return the columns that the definition names: a message in which one of them cannot be read does not count."""
        ...

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        """Return the columns that no message may have, with the reasons."""
        ...

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        """Return the reason why a column cannot have that type, next to others of the `known` ones; None if it can."""
        ...

    def uncomputable(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        """Return why conditions and times of the definition cannot be computed from a column of that type; None if they can.

        It is part of `refusal`. In tables the rows with a value there are dead letters, and decide no type.
        """
        return None

    def among(self, own: pa.Schema) -> Needs | None:
        """Return the needs of a slice with these columns, if they are compared with each other; else None."""
        return None

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        """Return the known columns of other inputs with which the values of a column are compared."""
        return ()


class Together(Needs):
    """The columns that several operators require of an input that all of them take."""

    def __init__(self, needs: Sequence[Needs]) -> None:
        self._needs = needs
        self.whole = any(n.whole for n in needs)
        self.times = frozenset[str]().union(*(n.times for n in needs))

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        names = list(names)
        for needs in self._needs:
            needs.check(known, names)

    def named(self, names: Iterable[str]) -> set[str]:
        names = list(names)
        return {name for needs in self._needs for name in needs.named(names)}

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        names = list(names)
        return {name: why for needs in self._needs for name, why in needs.refused(names).items()}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        return next((why for n in self._needs if (why := n.refusal(name, kind, known)) is not None), None)

    def uncomputable(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        reasons = (n.uncomputable(name, kind, known) for n in self._needs)
        return next((why for why in reasons if why is not None), None)

    def among(self, own: pa.Schema) -> Needs | None:
        parts = [needs.among(own) for needs in self._needs]
        both = zip(parts, self._needs, strict=True)
        return None if not any(parts) else Together([part or needs for part, needs in both])

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        return [field for needs in self._needs for field in needs.compared_with(name)]


class ForwardedColumns(Needs):
    """The columns of an operator's input that a downstream operator requires.

    called: the names of a column in these rows. as_they_are: the rows are the messages, under the names that they came with.
    """

    whole = False

    def __init__(self, needs: Needs, called: Callable[[str], Sequence[str]], *, as_they_are: bool) -> None:
        self._needs, self._called, self._as_they_are = needs, called, as_they_are
        self.times = needs.times if as_they_are else frozenset[str]()

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        if self._as_they_are:
            self._needs.check(known, names)

    def named(self, names: Iterable[str]) -> set[str]:
        return {name for name in names if self._needs.named(self._called(name))}

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        return self._needs.refusal(name, kind, known) if self._as_they_are else None

    def uncomputable(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        return self._needs.uncomputable(name, kind, known) if self._as_they_are else None

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        return [field for called in self._called(name) for field in self._needs.compared_with(called)]
