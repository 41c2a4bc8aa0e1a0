"""docs/explanation/commit-protocol.md against the code: its bytes, its fields, its actions, its step numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.checkpoint.log_contract import claim, run
from windrow.checkpoint import batches, log, records, recovery, storage
from windrow.checkpoint.log import FileLog
from windrow.checkpoint.records import Commit, Epoch, Intent, Mark, Record, ShardResult, Step, decode, encode

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "commit-protocol.md").read_text(encoding="utf-8")
FLIGHTS = ("flights", 0)
OPENED_US, NOW_US = 1_372_636_800_000_000, 1_372_636_805_000_000
EXAMPLE: list[Record] = [
    Epoch(
        seq=0,
        epoch=1,
        opened_us=OPENED_US,
        driver="host:41",
        fingerprints={"delays": "9f2c"},
        shards=1,
        job="job-1",
    ),
    Intent(seq=1, epoch=1, commit=1, now_us=NOW_US, watermark_us=None, query_id="q", batch_id=0),
    Commit(
        seq=2,
        epoch=1,
        commit=1,
        query_id="q",
        batch_id=0,
        steps=(
            Step(kind="advance", now_us=NOW_US, watermark_us=None),
            Step(
                kind="ingest",
                now_us=NOW_US,
                watermark_us=None,
                first_offsets={FLIGHTS: 0},
                next_offsets={FLIGHTS: 3},
                rows=3,
            ),
        ),
        next_offsets={FLIGHTS: 3},
        marks={FLIGHTS: Mark(max_time_us=OPENED_US, seen_us=NOW_US)},
        watermark_us=OPENED_US,
        shards=(ShardResult(shard=0, segment="a1", digest="00ff", counters={"rows": 3}),),
        published=0,
    ),
]


def blocks() -> dict[str, bytes]:
    """The page's blocks of hex by name; text after | is comment."""
    matches = re.findall(r'```hex title="(\S+)"\n(.*?)```', PAGE, re.DOTALL)
    return {
        name: bytes.fromhex(" ".join(line.split("|")[0] for line in body.splitlines()))
        for name, body in matches
    }


def test_the_bytes_on_the_page_are_those_that_are_written() -> None:
    assert blocks() == {f"record-{record.seq}": encode(record) for record in EXAMPLE}


@pytest.mark.parametrize("record", EXAMPLE)
def test_the_bytes_on_the_page_are_read(record: Record) -> None:
    assert decode(blocks()[f"record-{record.seq}"]) == record


def test_the_files_on_the_page_are_a_log(tmp_path: Path) -> None:
    names = re.findall(r"`(\d{20}\.wrl)`", PAGE)
    assert names == [f"{0:020d}.wrl", f"{2:020d}.wrl"]
    for number, data in enumerate(blocks().values()):
        (tmp_path / f"{number:020d}.wrl").write_bytes(data)
    opened = FileLog(tmp_path)
    assert [opened.read(number) for number in range(4)] == [*EXAMPLE, None]
    assert opened.tail().last_commit == EXAMPLE[2]
    claim(opened)
    run(opened, 2, 2)


@pytest.mark.parametrize(
    ("title", "cls"),
    [("`epoch`", Epoch), ("`intent`", Intent), ("`commit`", Commit), ("step", Step), ("shard", ShardResult)],
)
def test_the_fields_on_the_page_are_those_that_are_written_in_that_order(title: str, cls: type) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {title} | `")]
    named = re.findall(r"`(\w+)`", row.split("|")[2])
    assert [name for name in named if name != "record"] == [*records._FIELDS[cls]]
    assert (named[0] == "record") == title.startswith("`")


@pytest.mark.parametrize("actions", [batches.BatchAction, recovery.ShardAction, recovery.PublishAction])
def test_every_action_has_its_row(actions: type[batches.BatchAction]) -> None:
    decisions = PAGE.split("## Decisions")[1].split("## Garbage collection")[0]
    rows = [line.split("|")[2] for line in decisions.splitlines() if line.startswith("|")]
    for action in actions:
        assert sum(f"`{action.name}`" in row for row in rows) == 1, action


def test_every_step_that_the_log_cites_is_on_the_page_and_the_other_way_round() -> None:
    cited: set[str] = set()
    for module in (log, storage):
        assert module.__file__ is not None
        cited |= set(re.findall(r"# ([LOT]\d)", Path(module.__file__).read_text(encoding="utf-8")))
    assert cited == set(re.findall(r"^- \*\*([LOT]\d)\*\*", PAGE, re.MULTILINE))
    for step in re.findall(r"\b\d\.\d\b", f"{recovery.__doc__} {batches.__doc__}"):
        assert f"- {step} " in PAGE, step
