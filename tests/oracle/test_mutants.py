"""The transcripts are worth something if an oracle that is wrong in one place does not get through them."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.transcribed import FOLDER, TRANSCRIPTS
from windrow.core.emit import EveryPeriod
from windrow.core.messages import Message, Position, Timing
from windrow.core.policy import UNBOUNDED_US
from windrow.operators.aggregate import oracle as module
from windrow.operators.aggregate.oracle import AggregateOracle
from windrow.operators.oracle.oracle import Outcome
from windrow.operators.oracle.watermark import WatermarkOracle
from windrow.operators.oracle.windows import tuple_windows_of, windows_of
from windrow.testing.transcript_parser import TranscriptError
from windrow.testing.transcripts import check

GOOD = [t for file, loaded in TRANSCRIPTS.items() if file.parent == FOLDER for t in loaded if not t.must_fail]

Patch = Callable[[pytest.MonkeyPatch], None]


def method(name: str, make: Callable[[Any], Any], owner: type = AggregateOracle) -> Patch:
    """Replace a method by what `make` makes of it."""
    original = getattr(owner, name)
    return lambda patch: patch.setattr(owner, name, make(original))


def function(name: str, replacement: Any, owner: ModuleType = module) -> Patch:
    assert hasattr(owner, name)
    return lambda patch: patch.setattr(owner, name, replacement)


def keeps_pending(emit: Any) -> Any:
    def mutant(self: Any, cell: Any, timing: Timing, is_last: bool, closing: bool = False) -> Any:
        pending = cell.pending
        panes = emit(self, cell, timing, is_last, closing)
        cell.pending = pending
        return panes

    return mutant


def unsorted(in_order: Any) -> Any:
    def mutant(self: Any, messages: list[Message]) -> list[tuple[Position, Message]]:
        return [(m.position or Position("", 0, i), m) for i, m in enumerate(messages)]

    return mutant


def emits(**wrong: Any) -> Patch:
    """Panes with something wrong about timing, last or closing."""

    def make(emit: Any) -> Any:
        def mutant(self: Any, cell: Any, timing: Timing, is_last: bool, closing: bool = False) -> Any:
            flags = {"timing": timing, "is_last": is_last, "closing": closing} | wrong
            return emit(self, cell, **flags)

        return mutant

    return method("_emit", make)


MUTANTS: dict[str, Patch] = {
    "a pane does not reset what is pending": method("_emit", keeps_pending),
    "all panes are early": emits(timing=Timing.EARLY),
    "no pane is the last": emits(is_last=False),
    "closing panes are like late ones": emits(closing=False),
    "late panes are like closing ones": emits(closing=True),
    "messages are not put in order": method("_in_order", unsorted),
    "a window closes one microsecond late": function(
        "past", lambda end, by, watermark: by < UNBOUNDED_US and end + by < watermark
    ),
    "lateness without bound has one": function(
        "past", lambda end, by, watermark: end + min(by, 10**15) <= watermark
    ),
    "every step ticks": function("ticks", lambda trigger, before, now: True),
    "no step ticks": function("ticks", lambda trigger, before, now: False),
    "a tick needs a whole period": function(
        "ticks",
        lambda trigger, before, now: isinstance(trigger, EveryPeriod) and now - before >= trigger.period_us,
    ),
    "nothing is dropped by size": method("_drop_by_size", lambda _: lambda self, before, watermark: []),
    "nothing expires": method("_expired", lambda _: lambda self, cell, watermark: False),
    "whatever is open is early": method("_is_early", lambda _: lambda self, cell, watermark: True),
    "malformed times are now": function(
        "event_time_us", lambda value, zone, now, *_: value if isinstance(value, int) else now, module
    ),
    "values are always the same": function("same", lambda a, b: True),
    "values are never the same": function("same", lambda a, b: False),
    "only the newest window takes a message": function(
        "windows_of", lambda spec, time, original=windows_of: original(spec, time)[-1:]
    ),
    "only the oldest tuple window takes a message": function(
        "tuple_windows_of", lambda spec, number, original=tuple_windows_of: original(spec, number)[:1]
    ),
    "panes are in order of key, then window": function("place", lambda cell: (repr(cell.key), cell.end_us)),
    "partitions are never idle": method("_idle", lambda _: lambda self, p, now: False, WatermarkOracle),
    "the fastest partition moves the watermark": method(
        "_bounded",
        lambda _: lambda self, now: max(self._marks_us.values(), default=None),
        WatermarkOracle,
    ),
    "a watermark moves without delay": method(
        "_candidate",
        lambda original: lambda self, now: (original(self, now) or 0) + self._definition.delay_us,
        WatermarkOracle,
    ),
}


def failures() -> Iterator[str]:
    for transcript in GOOD:
        try:
            check(transcript)
        except (TranscriptError, ValueError, TypeError):
            yield transcript.name


def test_the_oracle_as_it_is_gets_through() -> None:
    assert list(failures()) == []


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_does_not_get_through(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    assert any(failures())


class Amnesiac(AggregateOracle):
    """Forgets with each advance what was sent before."""

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        for cell in self._cells.values():
            cell.sent = None
        return super().advance(watermark_us, now_us)


def test_an_oracle_that_forgets_what_it_sent_does_not_get_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AggregateOracle", Amnesiac)
    assert any(failures())
