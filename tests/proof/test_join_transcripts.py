"""Every scenario of a join against the embedded runner, in every variation; and each run against the oracle."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from windrow.operators.join.definition import JoinDefinition
from windrow.testing import JoinDriver, ManualClock
from windrow.testing.join_transcripts import JOIN_VARIATIONS, check_join
from windrow.testing.transcript_parser import TranscriptError
from windrow.testing.transcripts import Transcript, load

FOLDER = Path(__file__).resolve().parents[1] / "transcripts" / "joins"
SCENARIOS = [transcript for file in sorted(FOLDER.glob("*.yaml")) for transcript in load(file)]
RUNS = [
    pytest.param(transcript, variation, id=f"{transcript.name} [{variation}]")
    for transcript in SCENARIOS
    for variation in (JOIN_VARIATIONS if not transcript.must_fail else JOIN_VARIATIONS[:1])
]


class Drivers:
    """Makes drivers and closes them."""

    def __init__(self) -> None:
        self.made: list[JoinDriver] = []

    def __call__(self, definition: JoinDefinition, start_us: int) -> JoinDriver:
        self.made.append(JoinDriver(definition, clock=ManualClock(start_us)))
        return self.made[-1]


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    drivers = Drivers()
    yield drivers
    for driver in drivers.made:
        driver.close()


@pytest.mark.proves("Joins: scenarios as data, in any cut and order")
@pytest.mark.parametrize(("transcript", "variation"), RUNS)
def test_the_join_does_what_the_transcript_says(
    transcript: Transcript, variation: str, drivers: Drivers
) -> None:
    check_join(transcript, drivers, variation)
    if not transcript.must_fail:
        for driver in drivers.made:
            driver.check()


def test_every_kind_of_join_has_a_scenario() -> None:
    expressions = " ".join(t.body["join"] for t in SCENARIOS if not t.must_fail)
    assert all(f'how="{how}"' in expressions for how in ("left", "full", "semi", "anti", "asof"))
    assert len([t for t in SCENARIOS if not t.must_fail]) >= 10
    assert [t.name for t in SCENARIOS if t.must_fail is True] == []


def test_a_scenario_is_excused_from_other_cuts_only_where_they_end_differently(drivers: Drivers) -> None:
    for transcript in SCENARIOS:
        if "depends_on_batching" in transcript.body:
            body = {name: value for name, value in transcript.body.items() if name != "depends_on_batching"}
            with pytest.raises(TranscriptError, match="ends with"):
                for variation in JOIN_VARIATIONS:
                    check_join(Transcript(transcript.name, body), drivers, variation)
