"""`windrow watermark`: a time that ran ahead is seen, and set back by an audited record."""

from collections.abc import Callable
from pathlib import Path

import pytest

import windrow as wr
from tests.console.small_jobs import SECOND, Said, counts
from windrow.checkpoint import job_admin
from windrow.checkpoint.records import REPAIR
from windrow.core.errors import Fenced
from windrow.core.time import to_datetime
from windrow.testing import ManualClock

Run = Callable[..., Said]
NOW_US = ManualClock("2020-01-01 00:00Z").now_us()
YEAR_US = 365 * 86_400 * SECOND


def at(second: int, i: int, key: str = "a") -> wr.Message:
    return wr.Message({"k": key, "t": NOW_US + second * SECOND, "x": 1}, wr.Position("topic", 0, i))


def brief(op: wr.runners.embedded.Embedded) -> list[tuple[int, str, str, int]]:
    panes = [
        ((p.window.start_us - NOW_US) // SECOND, p.key["k"], p.timing.value, p["n"]) for p in op.get_result()
    ]
    op.flush()
    return panes


def run_ahead(place: Path, definition: wr.Aggregate) -> None:
    """A job that counts, until one message is of ten years later."""
    with definition.open(str(place), clock=ManualClock("2020-01-01 00:00Z")) as op:
        for i in range(0, 40):
            op.add_message(at(i, i))
        assert brief(op) == [(0, "a", "ON_TIME", 10), (10, "a", "ON_TIME", 10), (20, "a", "ON_TIME", 10)]
        op.add_message(at(10 * 365 * 86_400, 40, "wrong"))
        assert brief(op) == [(30, "a", "ON_TIME", 10)]
        op.add_message(at(41, 41))
        op.timeout()
        assert [d.reason for d in op.dead_letters()] == ["out_of_retention"]


EMITTING = {"watermark": "0 seconds", "max_ahead": wr.forever}


@pytest.mark.parametrize(
    "agg", [{}, {"agg": {"n": wr.count(), "mid": wr.median("x")}}], ids=["counts", "keeps messages"]
)
def test_a_watermark_that_ran_ahead_is_set_back_and_what_comes_is_counted(
    windrow: Run, tmp_path: Path, agg: dict[str, object]
) -> None:
    definition = counts(**EMITTING, **agg)
    run_ahead(tmp_path / "job", definition)
    [before] = windrow("watermark", tmp_path / "job", "--json").lines
    assert before["watermarks"]["aggregate"].startswith("2029-12-2") and before["repair"] is None
    assert before["partitions"][0]["source"] == "topic"

    back = to_datetime(NOW_US + 41 * SECOND)
    code, out, err = windrow("watermark", tmp_path / "job", "--set", back.isoformat())
    assert (code, err) == (0, "")
    assert "watermark from 2029-12-29 00:00:00 to 2020-01-01 00:00:41" in out.replace("00:00 ", "00:00:00 ")

    with definition.open(str(tmp_path / "job"), clock=ManualClock("2020-01-01 00:00Z")) as op:
        assert op.next_offsets() == {("topic", 0): 42}
        for i in range(42, 62):
            op.add_message(at(i, i))
        assert brief(op) == [(40, "a", "ON_TIME", 8), (50, "a", "ON_TIME", 10)]
        assert op.dead_letters() == [d for d in op.dead_letters() if d.position.offset == 41]
        held = {(w.window.start_us - NOW_US) // SECOND for w in op.get_windows()}
        assert 60 in held and 10 * 365 * 86_400 in held  # the wrong one waits for its time
    with wr.read_state(str(tmp_path / "job")) as state:
        assert state.watermark == NOW_US + 61 * SECOND
    assert windrow("verify", tmp_path / "job").code == 0


def test_the_record_says_who_when_from_where_and_to_where_and_fences_who_runs_the_job(
    windrow: Run, tmp_path: Path
) -> None:
    definition = counts(**EMITTING)
    run_ahead(tmp_path, definition)
    op = definition.open(str(tmp_path), clock=ManualClock("2020-01-01 00:00Z"))
    assert windrow("watermark", tmp_path, "--set", "2020-01-01 00:00:41").code == 0
    op.add_message(at(50, 42))
    with pytest.raises(Fenced):
        op.timeout()
    last = job_admin.look(str(tmp_path)).last_commit
    assert last is not None and last.steps == ()
    repair = last.meta[REPAIR]
    assert repair["by"].startswith("windrow:") and repair["at_us"] > NOW_US
    assert repair["watermark_us"] == [NOW_US + 10 * YEAR_US, NOW_US + 41 * SECOND]


def test_a_now_that_ran_ahead_is_set_back_and_periods_tick_again(windrow: Run, tmp_path: Path) -> None:
    definition = counts(emit=wr.Emit(early=wr.every("10 seconds")))
    clock = ManualClock("2020-01-01 00:00Z")
    with definition.open(str(tmp_path), clock=clock) as op:
        op.add_message(at(0, 0))
        clock.advance("365 days")  # somebody set it
        op.timeout()
        assert brief(op) == [(0, "a", "EARLY", 1)]
    assert windrow("watermark", tmp_path, "--set-now", "2020-01-01 00:00:05").code == 0
    clock = ManualClock(NOW_US + 5 * SECOND)
    with definition.open(str(tmp_path), clock=clock) as op:
        op.add_message(at(1, 1))
        op.timeout()
        assert brief(op) == []
        clock.advance("6 seconds")
        op.timeout()
        assert brief(op) == [(0, "a", "EARLY", 2)]


def test_what_cannot_be_set_back_is_refused_and_nothing_is_claimed(windrow: Run, tmp_path: Path) -> None:
    run_ahead(tmp_path / "job", counts(**EMITTING))
    epoch = job_admin.look(str(tmp_path / "job")).epoch.epoch
    code, _, err = windrow("watermark", tmp_path / "job", "--set", "2040-01-01")
    assert code == 1 and "is not before it" in err
    code, _, err = windrow("watermark", tmp_path / "job", "--set-now")
    assert code == 1 and "the now is 2020-01-01" in err
    assert job_admin.look(str(tmp_path / "job")).epoch.epoch == epoch


@pytest.mark.parametrize("scale", ["small", "large"])
def test_of_a_join_no_match_follows_a_row_that_said_there_was_none(
    windrow: Run, tmp_path: Path, scale: str
) -> None:
    side = {"event_time": "t", "max_ahead": wr.forever}
    pairs = wr.Join(
        left=wr.Input("l", **side), right=wr.Input("r", **side), on="k", within=("0 seconds", "10 seconds"),
        how="left", retention="1000 days", allowed_lateness="0 seconds", scale=scale,
    )  # fmt: skip

    def found(op: wr.runners.embedded.Embedded) -> list[tuple[int, str]]:
        rows = [((r["l_t"] - to_datetime(NOW_US)).total_seconds(), r.timing.value) for r in op.get_result()]
        op.flush()
        return rows

    with pairs.open(str(tmp_path), clock=ManualClock("2020-01-01 00:00Z")) as op:
        op.add_message(at(0, 0), "l")
        for name in "lr":
            op.add_message(at(365 * 86_400, 1, "wrong"), name)
        assert (0, "ON_TIME") in found(op)
    assert windrow("watermark", tmp_path, "--set", "2020-01-01 00:00:00").code == 0
    with pairs.open(str(tmp_path), clock=ManualClock("2020-01-01 00:00Z")) as op:
        op.add_message(at(1, 2), "r")
        assert found(op) == []
        op.add_message(at(1, 3), "l")
        assert found(op) == [(1, "EARLY")]
        assert op.dead_letters() == []
    assert windrow("verify", tmp_path).code == 0
