"""Checker of a job's topic against all that its source holds: nothing lost, nothing twice, every result right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.connectors.kafka.encoding import json_rows
from windrow.connectors.kafka.reading import Fetched, cluster_of
from windrow.connectors.kafka.sink import KafkaSink, read_all
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core.errors import ConfigurationError
from windrow.core.messages import Kind, Message, Pane, Position, Window
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import MALFORMED_ROW, OFFSET, ORDINAL, PARTITION, RAW, SOURCE
from windrow.testing.ledger import values_equal

#: Records that are decoded at once.
PORTION = 10_000
#: The number of findings of each kind that a report shows.
SHOWN = 5
_OURS = (SOURCE, PARTITION, OFFSET, ORDINAL, MALFORMED_ROW, RAW)

#: (window, key fields), both as JSON.
Cell = tuple[str, str]
Record = dict[str, Any]


@dataclass
class Report:
    """The findings of a check; `str` of it is for people.

    records_in: records of the source. set_aside: those among them that cannot be decoded, or are dead letters. panes_out: rows
    on the topic, retractions too. commits: those that panes or tokens name. windows: how many (key, window) there must be.
    lost, twice, wrong, unknown, broken: findings, each a line; see `check_topics`.
    """

    records_in: int = 0
    set_aside: int = 0
    panes_out: int = 0
    commits: int = 0
    windows: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def findings(self) -> dict[str, list[str]]:
        return {name: getattr(self, name) for name in ("lost", "twice", "wrong", "unknown", "broken")}

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not any(self.findings.values())

    def __str__(self) -> str:
        lines = [
            f"{'right' if self.ok else 'WRONG'}: {self.records_in} records in, {self.set_aside} of them set aside; "
            f"{self.panes_out} panes out in {self.commits} commits, {self.windows} windows; "
            + ", ".join(f"{name} {len(found)}" for name, found in self.findings.items())
        ]
        for name, found in self.findings.items():
            lines += [f"  {name}: {line}" for line in found[:SHOWN]]
            if len(found) > SHOWN:
                lines.append(f"  {name}: {len(found) - SHOWN} more")
        return "\n".join(lines)


def check_topics(
    definition: Definition,
    source: KafkaStream,
    sink: KafkaSink,
    *,
    dead_letters: KafkaSink | None = None,
) -> Report:
    """Compare a drained job's topic with the plain oracle over everything that its source holds.

    definition: the job's
    source, sink: as the job has them; the topic is this operator's alone
    dead_letters: the sink of its dead letters; without it every record that can be decoded has to be counted

    Returns a report; `report.ok` is True if nothing was found. Its lists of findings:

    lost: a (key, window) without a result, a pane whose successor is there, panes that a commit's token counts
    twice: a pane that is there more than once, in one commit or two; a token, likewise
    wrong: a result that is not the oracle's
    unknown: a result of a (key, window) that the source has no record of
    broken: a retraction without its pane, a second result for one window, a pane after the last, commits out of order or
        without a token

    Raises `ConfigurationError` (WR100) where topics do not show the final result of a window.
    """
    _check_kinds(definition, sink)
    report = Report()
    rows = list(_written(sink))
    tokens = [json.loads(r.value()) for r in _records(sink, sink.tokens) if r.value() is not None]
    tokens = [t for t in tokens if t["operator"] == definition.name]
    report.panes_out = len(rows)
    report.commits = len({r["commit"] for r in rows} | {t["commit"] for t in tokens})
    _check_tokens(report, rows, tokens)

    by_cell: dict[Cell, list[Record]] = {}
    for row in rows:
        by_cell.setdefault(_cell(definition, row), []).append(row)
    wanted = _expected(definition, source, dead_letters, report)
    report.windows = len(wanted)
    for cell in sorted({*wanted, *by_cell}):
        current = _follow(report, definition, cell, by_cell.get(cell, []))
        _compare(report, definition, cell, current, wanted.get(cell))
    return report


def _check_kinds(definition: Definition, sink: KafkaSink) -> None:
    why_not = definition.unsettled()
    if why_not is not None:
        raise ConfigurationError(why_not)
    if sink.mode != "append" or sink.encode is not None:
        raise ConfigurationError(
            f"{sink!r} does not have every pane as JSON: check a topic with mode='append' and without encode="
        )


# -- what must be there ---------------------------------------------------------------------------------------------


def _expected(
    definition: Definition, source: KafkaStream, dead_letters: KafkaSink | None, report: Report
) -> dict[Cell, Record]:
    """Return the oracle's last pane of each (key, window), as the sink would write it."""
    messages, schema = _taken(source.in_zone(definition.inputs[0].time_zone), dead_letters, report)
    if not messages:
        return {}
    oracle = definition.oracle()
    # No record is ahead of its `now`: the job has set such records aside itself.
    step = oracle.ingest(messages, END_OF_TIME_US, START_OF_TIME_US)
    panes = step.rows + oracle.advance(END_OF_TIME_US, END_OF_TIME_US).rows
    last = {(p.window, tuple(p.key.items())): p for p in panes if p.kind is Kind.INSERT}
    return {_cell(definition, row): row for row in _as_written(definition, list(last.values()), schema)}


def _taken(
    source: KafkaStream, dead_letters: KafkaSink | None, report: Report
) -> tuple[list[Message], pa.Schema]:
    """Return all messages that can be decoded and are no dead letters, and their columns."""
    dead = set() if dead_letters is None else set(_dead_positions(dead_letters))
    messages, schema = [], pa.schema([])
    for table in _read(source):
        names = [n for n in table.column_names if n not in _OURS]
        schema = pa.unify_schemas([schema, table.select(names).schema], promote_options="permissive")
        for row in table.to_pylist():
            report.records_in += 1
            position = Position(row[SOURCE], row[PARTITION], row[OFFSET])
            if row.get(MALFORMED_ROW) is not None or position in dead:
                report.set_aside += 1
            else:
                messages.append(Message({name: row[name] for name in names}, position))
    return messages, schema


def _as_written(definition: Definition, panes: Sequence[Pane], schema: pa.Schema) -> Iterator[Record]:
    target = definition.logic().schema({definition.inputs[0].name: schema})
    rows = [
        {
            "window": _ends(p),
            **p.key,
            **p.values,
            "pane": {"timing": p.timing.value, "index": p.index, "is_last": p.is_last, "kind": p.kind.value},
            "commit": 0,
        }
        for p in panes
    ]
    yield from map(json.loads, json_rows(pa.Table.from_pylist(rows, target)))


def _ends(pane: Pane) -> dict[str, int | None]:
    """Return the window as Arrow's times; null where it has no end."""
    assert isinstance(pane.window, Window)
    start, end = pane.window.start_us, pane.window.end_us
    return {
        "start": None if start <= START_OF_TIME_US else start,
        "end": None if end >= END_OF_TIME_US else end,
    }


def _read(source: KafkaStream) -> Iterator[pa.Table]:
    """Read all that the topics hold, decoded."""
    for topic, extent in sorted(source.extents(cluster_of(source.kafka), {}).items()):
        for partition in sorted(extent.high):
            portion = Fetched(source.attributes)
            for record in read_all(source.kafka, topic, partition):
                portion.add([record])
                if len(portion) == PORTION:
                    yield source.rows(portion, topic, extent.id, partition)
                    portion = Fetched(source.attributes)
            if len(portion):
                yield source.rows(portion, topic, extent.id, partition)


def _dead_positions(sink: KafkaSink) -> Iterator[Position]:
    for record in _records(sink, sink.topic):
        emitted: Mapping[str, bytes] = dict(record.headers() or [])
        if "windrow.source" in emitted:
            yield Position(
                emitted["windrow.source"].decode(),
                int(emitted["windrow.partition"]),
                int(emitted["windrow.offset"]),
            )


# -- what is there --------------------------------------------------------------------------------------------------


def _records(sink: KafkaSink, topic: str) -> Iterator[Any]:
    """Read all committed records of a topic; none where it was never made."""
    for partition in sink.kafka.partitions(topic):
        yield from read_all(sink.kafka, topic, partition)


def _written(sink: KafkaSink) -> Iterator[Record]:
    for record in _records(sink, sink.topic):
        yield json.loads(record.value())


def _cell(definition: Definition, row: Record) -> Cell:
    return json.dumps(row["window"]), json.dumps({b: row[b] for b in definition.by})


def _place(row: Record) -> tuple[int, int, bool]:
    """Return a row's place among those of its (key, window): pane 0, its retraction, pane 1."""
    return row["commit"], row["pane"]["index"], row["pane"]["kind"] == "RETRACT"


def _check_tokens(report: Report, rows: Sequence[Record], tokens: Sequence[Record]) -> None:
    """Check that each commit is there once, in order, with all its rows. Old tokens may be gone: the topic is compacted."""
    there = Counter(row["commit"] for row in rows)
    newest: dict[str, int] = {}
    for token in tokens:
        job, commit = token["job"], token["commit"]
        before = newest.get(job, -1)
        if commit == before:
            report.twice.append(f"the token of commit {commit}")
        elif commit < before:
            report.broken.append(f"the token of commit {commit} comes after that of {before}")
        newest[job] = max(commit, before)
        if there[commit] < token["rows"]:
            report.lost.append(f"{token['rows'] - there[commit]} of {token['rows']} rows of commit {commit}")
        elif there[commit] > token["rows"]:
            report.twice.append(f"commit {commit} has {there[commit]} rows, its token counts {token['rows']}")
    last = max(newest.values(), default=-1)
    report.broken += [f"commit {c} has rows and no token" for c in sorted(there) if c > last]


def _follow(report: Report, definition: Definition, cell: Cell, rows: Sequence[Record]) -> Record | None:
    """Return the current pane of a (key, window): inserts minus retracts."""
    current: Record | None = None
    ended, following = False, 0
    seen: set[tuple[int, str]] = set()
    for row in sorted(rows, key=_place):
        index, kind = row["pane"]["index"], row["pane"]["kind"]
        what = f"{kind} {index} of {_shown(cell)} in commit {row['commit']}"
        if (index, kind) in seen:
            report.twice.append(what)
            continue
        seen.add((index, kind))
        if kind == "RETRACT":
            if current is None or current["pane"]["index"] != index or not _same(definition, current, row):
                report.broken.append(f"{what} takes back what is not there")
            current = None
            continue
        if index > following:
            report.lost.append(f"INSERT {following} of {_shown(cell)}: {what} is there")
        elif index < following:
            report.broken.append(f"{what} comes after INSERT {following - 1}")
        if ended:
            report.broken.append(f"{what} comes after a pane marked as the last")
        if definition.emission_mode == "retracting" and current is not None:
            report.broken.append(f"{what} comes while INSERT {current['pane']['index']} is current")
        current, ended, following = row, row["pane"]["is_last"], index + 1
    return current


def _compare(
    report: Report, definition: Definition, cell: Cell, found: Record | None, wanted: Record | None
) -> None:
    if wanted is None:
        if found is not None:
            report.unknown.append(f"{_shown(cell)}: {_values(definition, found)}")
    elif found is None:
        report.lost.append(f"the result of {_shown(cell)}: {_values(definition, wanted)}")
    elif not _same(definition, found, wanted):
        report.wrong.append(
            f"{_shown(cell)} is {_values(definition, found)} instead of {_values(definition, wanted)}"
        )


def _values(definition: Definition, row: Record) -> Record:
    emitted = definition.output_columns or ()
    return {name: row[name] for name in emitted if name not in definition.by}


def _same(definition: Definition, a: Record, b: Record) -> bool:
    return values_equal(_values(definition, a), _values(definition, b))


def _shown(cell: Cell) -> str:
    window, key = map(json.loads, cell)
    return f"[{window['start']}, {window['end']}) {key}"
