"""Every transcript against the oracle, in every variation; and the runner itself: it must be able to fail."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests import transcribed
from windrow.core.messages import Message, Pane
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.testing.transcript_parser import TranscriptError, parse
from windrow.testing.transcripts import CUT, VARIATIONS, OracleDriver, Transcript, check, load

TRANSCRIPTS = [
    (file.stem, transcript) for file, loaded in transcribed.TRANSCRIPTS.items() for transcript in loaded
]
GOOD = [(stem, transcript) for stem, transcript in TRANSCRIPTS if not transcript.must_fail]
RUNS = [
    pytest.param(transcript, variation, id=f"{stem}: {transcript.name} [{variation}]")
    for stem, transcript in TRANSCRIPTS
    for variation in transcript.variations
]

COUNTS = """
wr.Aggregate(event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour",
             watermark=wr.explicit(), emit=wr.Emit(early=wr.every(2), late=wr.every_batch))
"""


def scenario(*steps: object, **more: object) -> Transcript:
    body = {"name": "made here", "operator": COUNTS, "steps": list(steps), **more}
    return Transcript("made here", body)


def pane(n: int, timing: str, **more: object) -> dict[str, object]:
    return {"window": [0, 10], "values": {"n": n}, "timing": timing, **more}


COUNTED = scenario(
    {"add": [{"t": 1}]},
    {"add": [{"t": 2}]},
    {"expect": [pane(2, "EARLY")]},
    {"add": [{"t": 3}]},
    {"watermark": 10},
    {"expect": [pane(3, "ON_TIME")]},
)


@pytest.mark.parametrize(("transcript", "variation"), RUNS)
def test_the_oracle_does_what_the_transcript_says(transcript: Transcript, variation: str) -> None:
    check(transcript, variation=variation)


def test_there_are_many_scenarios_and_their_names_differ() -> None:
    names = [transcript.name for _, transcript in TRANSCRIPTS]
    assert len(GOOD) >= 80
    assert len(names) - len(GOOD) >= 30
    assert len(set(names)) == len(names)


def test_every_scenario_that_must_fail_says_why() -> None:
    assert [t.name for _, t in TRANSCRIPTS if t.must_fail is True] == []


@pytest.mark.parametrize(
    "transcript",
    [pytest.param(t, id=t.name) for _, t in GOOD if "depends_on_batching" in t.body],
)
def test_a_scenario_is_excused_from_other_cuts_only_where_they_end_differently(
    transcript: Transcript,
) -> None:
    body = {name: value for name, value in transcript.body.items() if name != "depends_on_batching"}
    with pytest.raises(TranscriptError):
        for variation in CUT:
            check(Transcript(transcript.name, body), variation=variation)


def test_a_scenario_that_should_be_rejected_and_passes_is_an_error() -> None:
    good = scenario({"add": [{"t": 1}]}, must_fail=True)
    with pytest.raises(TranscriptError, match="should be rejected, but passed"):
        check(good)


def test_a_scenario_that_is_rejected_for_another_reason_is_an_error() -> None:
    bad = scenario({"add": [{"t": 1}]}, {"expect": [pane(1, "EARLY")]}, must_fail="unexpected pane")
    with pytest.raises(TranscriptError, match="should be rejected for 'unexpected pane', but"):
        check(bad)


def test_a_variation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of straight"):
        check(COUNTED, variation="sideways")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: a\nsteps: []\nsteps: []\n", "'steps' is given twice"),
        ("- just\n- a list\n", "a mapping with a name"),
        ("steps: []\n", "a mapping with a name"),
        ("name: a\n---\nname: a\n", "two scenarios 'a'"),
        ("", "holds no scenario"),
        ("name: a\nsteps:\n  - add: [{t: 1, t: 2}]\n", "'t' is given twice"),
    ],
)
def test_a_file_that_is_not_well_made_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(TranscriptError, match=reason):
        load(file)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"operator": 5}, "use an expression"),
        ({"operator": "1 + 1"}, "use wr.Aggregate"),
        ({"operator": "wr.Agregate()"}, "Agregate"),
        ({"operator": "wr.Aggregate("}, "operator: "),
        ({"operator": "open('x')"}, "operator: "),
        ({"steps": {"add": []}}, "is not a list"),
        ({"steps": ["time out"]}, "mapping with one key"),
        ({"steps": [{"add": [7]}]}, "a message is a mapping"),
        ({"steps": [{"add": []}, {"expect": [pane(1, "SOON")]}]}, "'SOON': use one of EARLY"),
        ({"steps": [{"add": []}, {"expect": [pane(1, "LATE", window=[0])]}]}, "use \\[start, end\\]"),
        ({"steps": [{"add": []}, {"expect": ["LATE"]}]}, "is not a mapping"),
    ],
)
def test_a_scenario_that_is_not_well_made_is_refused(more: dict[str, object], reason: str) -> None:
    with pytest.raises(TranscriptError, match=reason):
        check(Transcript("made here", {**COUNTED.body, **more}))


def test_names_of_ones_own_can_be_used() -> None:
    own = scenario({"add": [{"t": 1}]}, operator="mine")
    made: list[AggregateDefinition] = []

    def remember(definition: AggregateDefinition, start_us: int) -> OracleDriver:
        made.append(definition)
        return OracleDriver(definition, start_us)

    check(COUNTED, remember)
    check(own, names={"mine": made[0]})


class Forgetful(OracleDriver):
    """Loses its log, and so its state, with the process."""

    def restart(self) -> None:
        self._log = []
        self._forget()


class Repeating(OracleDriver):
    """Sends again after a restart what was sent before."""

    def restart(self) -> None:
        super().restart()
        self._panes += self._sent


class Eager(OracleDriver):
    """Takes the messages of a step one by one."""

    def feed(self, messages: Sequence[Message]) -> None:
        for message in messages:
            super().feed([message])


class Double(OracleDriver):
    """Counts the first message of a step twice if there are two."""

    def feed(self, messages: Sequence[Message]) -> None:
        super().feed([*messages, *messages[:1]] if len(messages) > 1 else messages)


class Unnumbered(OracleDriver):
    """Every pane is the first."""

    def panes(self) -> list[Pane]:
        return [replace(pane, index=0) for pane in super().panes()]


class Backwards(OracleDriver):
    """Takes messages as they come, whatever their positions."""

    def feed(self, messages: Sequence[Message]) -> None:
        super().feed([replace(m, position=None) for m in messages])


LISTED = scenario(
    {"add": [{"t": 1, "v": 1}, {"t": 1, "v": 2}]},
    {"watermark": 10},
    {"expect": [{"window": [0, 10], "values": {"v": [1, 2]}, "timing": "ON_TIME"}]},
    operator=COUNTS.replace('"n": wr.count()', '"v": wr.collect_list("v")').replace("every(2)", "every(3)"),
)
TOGETHER = scenario({"add": [{"t": 1}, {"t": 2}, {"t": 3}]}, {"expect": [pane(3, "EARLY")]})


@pytest.mark.parametrize(
    ("broken", "transcript", "caught_by"),
    [
        (Forgetful, COUNTED, {"restarted"}),
        (Repeating, COUNTED, {"restarted"}),
        (Eager, TOGETHER, {"straight", "restarted", "reversed", *CUT}),
        (Double, COUNTED, {"two a step", "all at once"}),
        (Unnumbered, COUNTED, set(VARIATIONS)),
        (Backwards, LISTED, {"reversed"}),
    ],
)
def test_a_broken_job_is_caught_in_the_variation_that_is_for_it(
    broken: type[OracleDriver], transcript: Transcript, caught_by: set[str]
) -> None:
    caught = set()
    for variation in VARIATIONS:
        try:
            check(transcript, broken, variation)
        except TranscriptError:
            caught.add(variation)
    assert caught == caught_by


def test_a_replay_of_the_log_that_gives_other_panes_is_noticed() -> None:
    driver = OracleDriver(parse(COUNTED.body, {}).definition, 0)
    driver.feed([Message({"t": 1_000_000}), Message({"t": 2_000_000})])
    driver.restart()
    driver._log[0][0][""].pop()
    with pytest.raises(AssertionError, match="the log replays to"):
        driver.restart()
