"""A flipped byte anywhere below a location, or in a Parquet sink, is detected, or it changes nothing."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow as wr
from tests.deep import usually
from windrow.checkpoint.verify import verify
from windrow.connectors import manifests
from windrow.core.errors import CorruptState, WindrowError
from windrow.testing import ManualClock

JOB = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "m": wr.median("x")},
    watermark="1 second",
    retention="30 seconds",
    name="n",
)
#: How many bytes are flipped in each kind of file.
FLIPS = usually(2, deep=40)
#: Where a job is cut short, with panes that its sink refuses, and where it ends.
CUT, END = 37, 60


class Refuses:
    """A sink that takes nothing: what is in its job is published by the next driver."""

    def publish(self, token: Any, panes: Any) -> None:
        raise ConnectionError("refused")

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


def feed(op: Any, end: int) -> None:
    """Feed from where the job is, a commit every four messages; each seventh is followed by one that is too late."""
    messages = []
    for n in range(END):
        messages.append(wr.Message({"k": "ab"[n % 2], "t": n * 1_000_000, "x": float(n)}))
        if n % 7 == 6:
            messages.append(wr.Message({"k": "a", "t": 0, "x": 0.0}))
    begin = op.next_offsets().get(("s", 0), 0)
    for offset, message in list(enumerate(messages))[begin:end]:
        op.add_message(wr.Message(message.payload, wr.Position("s", 0, offset)))
        if offset % 4 == 3:
            op.timeout()


def opened(folder: Path, sink: Any) -> Any:
    return JOB.open(str(folder / "job"), clock=ManualClock(60_000_000), sink=sink, dead_letters=sink)


def result(folder: Path) -> Any:
    """All that the job gives when it has gone on to its end."""
    with opened(folder, wr.sinks.parquet(str(folder / "out"))) as op:
        op.timeout()
        feed(op, END)
        op.drain()
        letters = [(str(d.reason), d.position) for d in op.dead_letters()]
    panes = wr.read_panes(str(folder / "out"), "n").drop_columns("commit").to_pylist()
    return panes, wr.read_panes(str(folder / "out"), "dead_letters").num_rows, letters


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose last commit is not published, and its sink."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 3)
        with opened(folder, wr.sinks.parquet(str(folder / "out"))) as op:
            feed(op, CUT)
        with pytest.raises(WindrowError), opened(folder, Refuses()) as op:
            feed(op, END - 8)
    return folder


def kind_of(path: Path) -> str:
    """The kind of a file, by its folder: numbers and random names are left out."""
    *folders, name = path.parts
    return "/".join(
        [*folders[:2], *(f for f in folders[2:] if "~" not in f), "base" if "base" in name else ""]
    )


def judged(folder: Path, wanted: Any) -> str:
    """Whether the damage is detected, or nothing comes of it, also where nobody verifies. Raises where neither is so."""
    verdict = "verify: wrong" if verify(str(folder / "job")).wrong else "verify: whole"
    sink = "sink: wrong" if manifests.verify(str(folder / "out"))[1] else "sink: whole"
    try:
        assert result(folder) == wanted
    except WindrowError as error:
        return f"{verdict}, {sink}, {type(error).__name__}"
    return f"{verdict}, {sink}, the same"


@pytest.mark.timeout(1200)
def test_a_flipped_byte_is_detected_or_changes_nothing(template: Path, tmp_path: Path) -> None:
    shutil.copytree(template, tmp_path / "whole")
    wanted = result(tmp_path / "whole")
    chance, outcomes = random.Random(26), Counter[str]()
    by_kind: dict[str, list[Path]] = {}
    for path in sorted(p for p in template.rglob("*") if p.is_file() and p.stat().st_size):
        by_kind.setdefault(kind_of(path.relative_to(template)), []).append(path)
    for kind, paths in by_kind.items():
        for _ in range(FLIPS):
            path = chance.choice(paths)
            folder = Path(shutil.copytree(template, tmp_path / "damaged"))
            damaged = folder / path.relative_to(template)
            data = bytearray(damaged.read_bytes())
            at = chance.randrange(len(data))
            data[at] ^= 1 << chance.randrange(8)
            damaged.write_bytes(data)
            try:
                outcomes[f"{kind}: {judged(folder, wanted)}"] += 1
            except BaseException as error:
                raise AssertionError(f"byte {at} of {path.relative_to(template)}") from error
            shutil.rmtree(folder)
    print(*sorted(outcomes.items()), sep="\n")


@pytest.mark.timeout(1200)
def test_a_damaged_pane_file_is_not_published(template: Path, tmp_path: Path) -> None:
    """A flipped value would still be Parquet: the footer's own numbers are all that Parquet checks."""
    folder = Path(shutil.copytree(template, tmp_path / "damaged"))
    path = max((folder / "job" / "panes").iterdir())
    whole, values = path.read_bytes(), 0
    for at in range(4, len(whole), len(whole) // usually(8, deep=250)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            pq.read_table(path)
            values += 1
        except (OSError, pa.ArrowException):
            pass
        with (
            pytest.raises(CorruptState, match=f"{path} is damaged: it has digest"),
            opened(folder, wr.sinks.parquet(str(folder / "out"))) as op,
        ):
            op.timeout()
    assert values > 0
    path.write_bytes(whole)
    result(folder)
