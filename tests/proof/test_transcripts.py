"""Every transcript against the operator of the embedded runner, in every variation."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deep import usually
from tests.transcribed import FOLDER, TRANSCRIPTS
from windrow.operators.operator import Definition
from windrow.testing.clock import ManualClock
from windrow.testing.driver import TestDriver
from windrow.testing.transcripts import CUT, EXACT, Driver, Fed, OracleDriver, Transcript, check

#: Each scenario in one of these, its neighbours in the others: "two a step" lies between the cuts. "reversed" is in lives of
#: two actions besides: what one of them leaves in memory is there, and what the next one reads. The oracle always has all of
#: them, and the order as it is written (tests/oracle/test_transcripts.py).
TURNS = usually((("reversed",), ("one a step",), ("reversed",), ("all at once",)), deep=((*EXACT, *CUT),) * 4)
RUNS = [
    pytest.param(transcript, variation, id=f"{file.stem}: {transcript.name} [{variation}]")
    for file, loaded in TRANSCRIPTS.items()
    for n, transcript in enumerate(loaded)
    for variation in transcript.variations
    if variation in TURNS[n % 4] or transcript.must_fail
]


class Lives(TestDriver):
    """A driver that dies after the first action, and then after every other."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._actions = 0

    def _act(self) -> None:
        if self._actions % 2 == 1:
            self.restart()
        self._actions += 1

    def feed(self, messages: Fed, input: str | None = None) -> None:
        self._act()
        super().feed(messages, input)

    def advance_watermark(self, to_us: int, input: str | None = None) -> None:
        self._act()
        super().advance_watermark(to_us, input)

    def timeout(self) -> None:
        self._act()
        super().timeout()

    def drain(self) -> None:
        self._act()
        super().drain()


class Drivers:
    """Makes drivers, closes them, and compares each with the oracle at the end.

    cut: what is cut in another way is compared with what the oracle says uncut, and is nothing to a store
    """

    def __init__(self) -> None:
        self.known_schema: list[TestDriver] = []
        self.cut = False
        self._asked = 0

    def __call__(self, definition: Definition, start_us: int) -> Driver:
        self._asked += 1
        if self.cut and self._asked == 1:
            return OracleDriver(definition, start_us)
        made, store = (TestDriver, "memory") if self.cut else (usually(Lives, deep=TestDriver), "rocksdb")
        self.known_schema.append(made(definition, clock=ManualClock(start_us), store=store))
        return self.known_schema[-1]


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    drivers = Drivers()
    yield drivers
    for driver in drivers.known_schema:
        driver.close()


@pytest.mark.parametrize(("transcript", "variation"), RUNS)
def test_the_operator_does_what_the_transcript_says(
    transcript: Transcript, variation: str, drivers: Drivers
) -> None:
    drivers.cut = variation not in EXACT
    check(transcript, drivers, variation)
    if not transcript.must_fail:
        for driver in drivers.known_schema:
            driver.check(dead_letters=True)
            asked = "windows" in driver.definition.tables and not driver.definition.by_input
            if "alerts" in driver.definition.tables:
                continue  # their statuses stay when event time is over
            if not asked or not driver.windows():  # nothing can be asked for any more
                driver.assert_state_zero()


def test_every_kind_of_join_has_a_scenario() -> None:
    joins = [t for t in TRANSCRIPTS[FOLDER / "joins" / "joins.yaml"] if not t.must_fail]
    expressions = " ".join(t.body["operator"] for t in joins)
    assert all(f'how="{how}"' in expressions for how in ("left", "full", "semi", "anti", "asof"))
    assert len(joins) >= 10
