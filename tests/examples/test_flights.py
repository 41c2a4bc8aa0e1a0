"""The demo, quick: its figures, and that a second run on its checkpoint does nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from tests.deep import usually

#: January and February, as a rule every 25th flight: those that left and those that were cancelled.
EVERY, FLOWN, CANCELLED = usually((25, 2_004, 75), deep=(1, 50_173, 1_782))


def contents(*folders: Path) -> dict[str, str]:
    """Digest of every file, by path."""
    files = [f for folder in folders for f in sorted(folder.rglob("*")) if f.is_file()]
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def assert_equal_to_pandas(text: str) -> None:
    for operator in ("hourly", "rolling"):
        match = re.search(
            rf"{operator} +([\d,]+) of ([\d,]+) windows matched, 0 unmatched\n +counts: 0 unequal", text
        )
        assert match is not None, text
        assert match[1] == match[2] != "0"
        assert f"{operator:8} {CANCELLED:,} dead letters of {CANCELLED:,} cancelled flights" in text
    for line in re.findall(r"largest difference in minutes: (.*)", text):
        differences = dict(part.split(" ") for part in line.split(", "))
        assert list(differences) == ["delay", "median", "p95"]
        assert all(float(d) <= 1e-9 for d in differences.values())
    assert "other dead letters (too late, out of retention): 0" in text
    assert "pandas equality: EQUAL\n" in text
    assert "second run: NOTHING CHANGED\n" in text


@pytest.mark.slow
def test_the_demo_equals_pandas_and_a_second_run_does_nothing(
    run: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "flights"
    demo = partial(run, "flights", "--quick", "--every", str(EVERY), "--out", str(out))
    first = demo("--fresh")
    assert_equal_to_pandas(first)
    assert f"{FLOWN + CANCELLED:,} flights in " in first
    counts = re.findall(
        r"^(?:hourly|rolling) +([\d,]+) +([\d,]+) +([\d,]+) +[\d,]+ +[\d,]+$", first, re.MULTILINE
    )
    assert len(counts) == 2
    assert all(n != "0" for timings in counts for n in timings), "EARLY, ON_TIME and LATE panes, all of them"
    assert (out / "window.png").read_bytes().startswith(b"\x89PNG")

    folders = (out / "panes", out / "dead_letters", out / "feed", out / "checkpoint" / "windrow" / "panes")
    before = contents(*folders)
    assert any("_manifests" in name for name in before)
    if not usually(False, deep=True):
        return  # the demo has run its query twice
    second = demo("--keep")
    assert "Nothing new since the last run: 0 flights processed." in second
    assert_equal_to_pandas(second)
    assert contents(*folders) == before


@pytest.fixture
def flights(module: Callable[[str], ModuleType]) -> ModuleType:
    """The demo as a module."""
    return module("flights")


def test_other_data_on_the_same_checkpoint_is_refused(
    flights: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "flights"
    (out / "feed").mkdir(parents=True)
    (out / "feed" / "feed.json").write_text(
        '{"months": 12, "rows": 0, "flown": 0, "cancelled": 0, "files": [], "rows_of": [], "landed": []}'
    )
    assert flights.main(["--quick", "--out", str(out)]) == 2
    assert "holds a run over 12 months, not 2" in capsys.readouterr().out


TRUTH = pd.DataFrame(
    {
        "start": pd.to_datetime(["2013-01-01 10:00", "2013-01-01 11:00"], utc=True),
        "origin": ["EWR", "JFK"],
        "carrier": ["UA", "B6"],
        "flights": [4, 5],
        "delay": [-1.25, -1.6],
        "median": [-1.5, -2.0],
        "p95": [1.55, -0.2],
    }
)


def test_the_check_takes_what_is_equal(flights: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert flights.compare("hourly", TRUTH.copy(), TRUTH)
    assert flights.compare("hourly", TRUTH.assign(p95=TRUTH.p95 + 5e-10), TRUTH)
    assert "2 of 2 windows matched, 0 unmatched" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(TRUTH.assign(flights=[4, 6]), id="a count off by one"),
        pytest.param(TRUTH.assign(p95=TRUTH.p95 + 2e-9), id="a float off by more than 1e-9"),
        pytest.param(TRUTH.assign(delay=[-1.25, None]), id="a null"),
        pytest.param(TRUTH.head(1), id="a window too few"),
        pytest.param(pd.concat([TRUTH, TRUTH.head(1).assign(origin="LGA")]), id="a window too many"),
        pytest.param(TRUTH.head(0), id="nothing"),
    ],
)
def test_the_check_refuses_what_is_not_equal(flights: ModuleType, wrong: pd.DataFrame) -> None:
    assert not flights.compare("hourly", wrong, TRUTH)
