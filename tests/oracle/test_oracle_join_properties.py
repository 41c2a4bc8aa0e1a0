"""The oracle of joins against all pairs: what it lets go could not have matched, and what it keeps could have."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.deep import examples
from tests.operators.join.cases import JoinCase, cases, rows
from windrow.core.messages import Message
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.join.oracle_pairs import fits, latest_partner

PROFILE = examples(60, deep=2_000)


def ledger_of(case: JoinCase, messages: list[Message], times: list[int], cut: int) -> list[str]:
    """The rows of all messages, some to a step, the watermark as far behind as what follows needs."""
    oracle, watermark_us, made = case.definition.oracle(case.schemas), START_OF_TIME_US, []
    for at in range(0, len(messages), cut):
        step: dict[str, list[Message]] = {}
        for message in messages[at : at + cut]:
            assert message.position is not None
            step.setdefault(message.position.source.partition(":")[0], []).append(message)
        taken = oracle.ingest(step, at, watermark_us)
        assert {letter.reason for letter in taken.dead} <= {"malformed"}  # a gap that is null
        made += taken.rows
        watermark_us = max(watermark_us, min(times[at + cut :], default=START_OF_TIME_US))
        made += oracle.advance(watermark_us, at).rows
    made += oracle.advance(END_OF_TIME_US, len(messages)).rows
    assert oracle.is_empty
    return sorted(repr(row.values) for row in made)


@given(
    case=cases(rows=False), drawn=st.lists(rows(good=True), min_size=1, max_size=12), cut=st.integers(1, 5)
)
@PROFILE
def test_where_nothing_is_too_late_all_in_one_step_gives_the_same(
    case: JoinCase, drawn: list[dict[str, Any]], cut: int
) -> None:
    kept = case.definition.retention
    assume(kept.messages is None and kept.windows is None)  # what goes by number goes between steps
    messages = [case.message(row, i) for i, row in enumerate(drawn) if row["t"] * case.unit_us < 30 * 10**6]
    times = [row["t"] * case.unit_us + row["jitter"] for row in drawn]
    assert ledger_of(case, messages, times, cut) == ledger_of(case, messages, times, len(messages))


@given(case=cases(hows=("inner", "full"), unit_us=1), time_us=st.integers(-20, 20))
@PROFILE
def test_no_partner_lies_beyond_the_latest_time_that_one_could_have(case: JoinCase, time_us: int) -> None:
    for side in ("left", "right"):
        pairs = [(time_us, o) if side == "left" else (o, time_us) for o in range(time_us - 90, time_us + 90)]
        fitting = [sum(pair) - time_us for pair in pairs if fits(case.definition, *pair)]
        latest = latest_partner(case.definition, side, time_us)
        assert all(other <= latest for other in fitting)
        windows = [source.window for source in case.definition.inputs]
        if fitting and latest < time_us + 90 and all(getattr(w, "closed", "both") == "both" for w in windows):
            assert max(fitting) == latest
