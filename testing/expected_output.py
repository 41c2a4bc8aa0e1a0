"""What a job must tell: the oracles of its operators, over the steps of its log."""

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
    """What is promised was not kept: something is lost, doubled or wrong."""


@dataclass
class ExpectedOutput:
    """What steps tell. rows: by operator; letters: (reason, position) of what was buried."""

    rows: dict[str, list[Any]] = field(default_factory=dict)
    dead_letters: list[Letter] = field(default_factory=list)

    def add(self, oracle: Oracle, done: Outcome) -> None:
        """What a step of an oracle gave."""
        for name, one in (oracle.gave or {oracle.definition.name: done}).items():
            self.rows.setdefault(name, []).extend(one.rows)
        self.dead_letters += [(letter.reason, letter.position) for letter in done.dead]

    def join(self, more: ExpectedOutput) -> None:
        """And what a later step told."""
        for name, rows in more.rows.items():
            self.rows.setdefault(name, []).extend(rows)
        self.dead_letters += more.dead_letters


class Judge:
    """Steps are given to it as the log has them, and it says what each had to tell.

    definitions: of one job, on the same inputs. schemas: the columns of each input; None where nobody told them beforehand.
    Watermarks are by definition.
    """

    def __init__(
        self, definitions: Sequence[Definition], schemas: Mapping[str, pa.Schema] | None = None
    ) -> None:
        self._each = []
        for definition in definitions:
            names = {i.name: i.name if definition.by_input else ONLY for i in definition.inputs}
            known = None if schemas is None else {name: schemas[given] for name, given in names.items()}
            self._each.append((definition, definition.oracle(known), InputsOracle(definition)))

    def advance(
        self, watermarks_us: Mapping[str, int], now_us: int, pushed: Collection[int] = (END_OF_TIME_US,)
    ) -> ExpectedOutput:
        """Raises `Broken` where a watermark is not what is due. pushed: where somebody has asked it to go."""
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
        """messages: each with the name of its input, at the position under which the job files it."""
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
        """What an advance at this moment would tell. Nothing moves by it."""
        after, emitted = copy.deepcopy(self), ExpectedOutput()
        for _, oracle, marks in after._each:
            emitted.add(oracle, oracle.advance(marks.advance(now_us), now_us))
        return emitted

    @property
    def duplicates(self) -> int:
        return sum(oracle.duplicates for _, oracle, _ in self._each)

    def oracle(self, name: str) -> Oracle:
        """That of the definition of that name."""
        return next(oracle for definition, oracle, _ in self._each if definition.name == name)


# -- comparing --------------------------------------------------------------------------------------------------------


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> str | None:
    """How rows of one operator in one commit differ; None where they do not. Shards tell theirs in any order."""
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
    """True if two panes, or two rows, say the same. Rows of a commit share their columns: what one lacks is null."""
    if isinstance(a, JoinedRow) and isinstance(b, JoinedRow):
        return _label(a) == _label(b) and values_equal(_plain(a), _plain(b))
    return type(a) is type(b) and panes_equal(a, b)


def letters_differ(
    found: Sequence[Letter], wanted: Sequence[Letter], *, at_least: int = 1 << 60
) -> str | None:
    """How dead letters differ; None where they do not. at_least: so many of a step are kept whole."""
    more, less = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    if more or (less and len(found) < at_least):
        return f"dead letters: too many are {dict(more)}, missing are {dict(less)}"
    return None


def _left(some: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """What of some is not among others, each of which is like one of them."""
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
