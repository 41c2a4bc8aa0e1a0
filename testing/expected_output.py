"""Expected output of a job: the oracles of its operators, over the steps of its log."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from windrow.core.messages import JoinedRow, Message, Position
from windrow.core.time import END_OF_TIME_US, instant_us
from windrow.operators.operator import Definition
from windrow.operators.oracle.oracle import Oracle, Outcome
from windrow.operators.oracle.watermark import InputsOracle
from windrow.testing.ledger import panes_equal, values_equal
from windrow.testing.scenario import ONLY

Letter = tuple[str, Position | None]


class Broken(AssertionError):
    """A broken guarantee: something is lost, doubled or wrong."""


@dataclass
class ExpectedOutput:
    """The expected output of steps. rows: by operator; dead_letters: their (reason, position)."""

    rows: dict[str, list[Any]] = field(default_factory=dict)
    dead_letters: list[Letter] = field(default_factory=list)

    def add(self, oracle: Oracle, done: Outcome) -> None:
        """Add the output of an oracle's step."""
        for name, one in (oracle.gave or {oracle.definition.name: done}).items():
            self.rows.setdefault(name, []).extend(one.rows)
        self.dead_letters += [(letter.reason, letter.position) for letter in done.dead]

    def join(self, more: ExpectedOutput) -> None:
        """Append the output of a later step."""
        for name, rows in more.rows.items():
            self.rows.setdefault(name, []).extend(rows)
        self.dead_letters += more.dead_letters


class Judge:
    """An oracle of a whole job: it takes the steps in the order of the log and returns the expected output of each.

    definitions: of one job, on the same inputs. schemas: the columns of each input; None if they were not declared
    beforehand. Watermarks are by definition.
    """

    def __init__(
        self, definitions: Sequence[Definition], schemas: Mapping[str, pa.Schema] | None = None
    ) -> None:
        self._each = []
        for definition in definitions:
            names = {i.name: i.name if definition.by_input else ONLY for i in definition.inputs}
            known = (
                None if schemas is None else {name: schemas[input_name] for name, input_name in names.items()}
            )
            self._each.append((definition, definition.oracle(known), InputsOracle(definition)))

    def advance(
        self, watermarks_us: Mapping[str, int], now_us: int, pushed: Collection[int] = (END_OF_TIME_US,)
    ) -> ExpectedOutput:
        """Advance; raise `Broken` where a watermark is not what is due. pushed: watermarks that were set explicitly."""
        emitted = ExpectedOutput()
        for definition, oracle, marks in self._each:
            watermark_us = watermarks_us[definition.name]
            due_us = marks.advance(now_us, watermark_us if watermark_us in pushed else None)
            if due_us != watermark_us:
                raise Broken(f"the watermark of {definition.name!r} is {watermark_us}, due is {due_us}")
            emitted.add(oracle, oracle.advance(watermark_us, now_us))
        return emitted

    def ingest(
        self, messages: Sequence[tuple[str, Message]], watermarks_us: Mapping[str, int], now_us: int
    ) -> ExpectedOutput:
        """Ingest messages: each with the name of its input, at its position in the job's log."""
        emitted, counted = ExpectedOutput(), list[tuple[str, int, int]]()
        for definition, oracle, _ in self._each:
            names = [i.name for i in definition.inputs]
            by_input: dict[str, list[Message]] = {name: [] for name in names}
            for name, message in messages:
                if not definition.by_input:
                    name = names[0]
                if name in by_input:
                    by_input[name].append(message)
            if any(by_input.values()):
                emitted.add(oracle, oracle.ingest(by_input, now_us, watermarks_us[definition.name]))
                counted += oracle.counted
        for _, _, marks in self._each:
            marks.observe(counted, now_us)
        return emitted

    def overdue(self, now_us: int) -> ExpectedOutput:
        """Return the output of an advance at this moment, without a change of state."""
        after, emitted = copy.deepcopy(self), ExpectedOutput()
        for _, oracle, marks in after._each:
            emitted.add(oracle, oracle.advance(marks.advance(now_us), now_us))
        return emitted

    @property
    def duplicates(self) -> int:
        return sum(oracle.duplicates for _, oracle, _ in self._each)

    def oracle(self, name: str) -> Oracle:
        """Return the oracle of the definition of that name."""
        return next(oracle for definition, oracle, _ in self._each if definition.name == name)


# -- comparing --------------------------------------------------------------------------------------------------------


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> str | None:
    """Describe how rows of one operator in one commit differ; None if they do not. The order among shards does not matter."""
    found, wanted = sorted(found, key=_place), sorted(wanted, key=_place)
    if len(found) == len(wanted) and all(map(same, found, wanted)):
        return None
    more, less = _left(found, wanted), _left(wanted, found)
    if more or less:
        what = [f"{len(found)} rows were emitted, the oracle has {len(wanted)}"]
        what += [f"emitted is {one}, which the oracle has not" for one in more[:2]]
        what += [f"the oracle has {one}, which was not emitted" for one in less[:2]]
        return "; ".join(what)
    # Rows that differ in rounding may be sorted otherwise; panes of one window have an order.
    return (
        None if isinstance(found[0], JoinedRow) else f"the panes {found} come in another order than {wanted}"
    )


def same(a: Any, b: Any) -> bool:
    """True if two panes, or two rows, have equal values. Rows of a commit share their columns: a missing column is null."""
    if isinstance(a, JoinedRow) and isinstance(b, JoinedRow):
        return _label(a) == _label(b) and values_equal(_plain(a), _plain(b))
    return type(a) is type(b) and panes_equal(a, b)


def letters_differ(
    found: Sequence[Letter], wanted: Sequence[Letter], *, at_least: int = 1 << 60
) -> str | None:
    """Describe how dead letters differ; None if they do not. at_least: so many of a step are kept whole."""
    more, less = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    if more or (less and len(found) < at_least):
        return f"dead letters: too many are {dict(more)}, missing are {dict(less)}"
    return None


def _left(some: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Return the items of `some` without a match in `others`; each item matches one."""
    left, found = list(others), []
    for one in some:
        at = next((i for i, other in enumerate(left) if same(one, other)), None)
        if at is None:
            found.append(one)
        else:
            del left[at]
    return found


def _place(emitted: Any) -> tuple[str, ...]:
    if isinstance(emitted, JoinedRow):
        return (repr(_plain(emitted)), emitted.timing.value, emitted.kind.value)
    window = emitted.window
    return (repr(emitted.key), repr(window) if not hasattr(window, "__dict__") else repr(vars(window)))


def _label(row: JoinedRow) -> tuple[object, ...]:
    return (row.timing, row.kind, row.index, row.is_last)


def _plain(row: JoinedRow) -> dict[str, Any]:
    return {
        name: instant_us(value) if isinstance(value, datetime) and value.tzinfo is not None else value
        for name, value in sorted(row.values.items())
        if value is not None
    }
