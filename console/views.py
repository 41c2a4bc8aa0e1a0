"""Views of a job for people: plain rows that the page, the terminal and the metrics show.

Each function reads one `State` or one log, and writes nothing. Times are microseconds since the epoch; a view for JSON says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.checkpoint import job_admin
from windrow.checkpoint.compaction import snapshots_from
from windrow.checkpoint.health import Health, alive_at, health_of
from windrow.checkpoint.records import Commit, now_of
from windrow.checkpoint.storage import FolderRecords
from windrow.core.messages import Position, TupleWindow, Window
from windrow.core.positions import shown_source
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us, iso
from windrow.operators.view import key_of, of_key
from windrow.runners.state import State
from windrow.runners.state.definitions import Definitions
from windrow.runners.state.explain import Explanation

Row = dict[str, Any]


# -- jobs and health ------------------------------------------------------------------------------------------------


def health(seen: job_admin.Look, now_us: int) -> Health:
    """Return the health from the log alone. Only the next commit records that the last is published: it is not counted."""
    definitions = Definitions(seen.epoch, seen.where)
    opened: dict[str, Any] = {d.name: d for n, d in definitions.found.items() if n not in definitions.chains}
    opened |= {c.name: c for c in definitions.chains.values()}
    known = list(opened.values()) if not definitions.missing else []
    last = seen.last_commit
    published = 0 if last is None else last.published + 1
    snapshot = snapshots_from(seen.folders, seen.epoch.shards)
    return health_of(last, known, published, now_us, alive_at(seen.folders.alive), snapshot)


def health_facts(seen: job_admin.Look, health: Health) -> Row:
    """Return a job and its health for JSON, as `windrow health --json` prints them."""
    return {
        "location": seen.where,
        "job": seen.epoch.job,
        "driver": seen.epoch.driver,
        "opened": iso(seen.epoch.opened_us),
        **health.as_json(),
        "watermarks": {n: iso(us) for n, us in watermarks(seen.last_commit).items()},
    }


def watermarks(last: Commit | None) -> Mapping[str, int]:
    """Return the watermark of each operator after a commit."""
    return {} if last is None else last.meta.get("watermarks", {})


@dataclass(frozen=True)
class OperatorRow:
    """One operator. kind: the name of its class in `wr`; text: its definition; missing: the log cannot reproduce it."""

    name: str
    kind: str
    text: str
    tables: tuple[str, ...]
    inputs: tuple[str, ...]
    watermark_us: int
    missing: str | None = None


def operators(state: State) -> list[OperatorRow]:
    """Return the operators of a job, of a chain in its order."""
    texts = state.look.epoch.meta.get("definitions", {})
    reached, errors = state.watermarks, state.missing
    rows = []
    for name in state.operators:
        if name in errors:
            rows.append(OperatorRow(name, "", texts.get(name, ""), (), (), reached[name], str(errors[name])))
            continue
        definition = state.definition(name)
        text = repr(definition)
        kind = text.partition("(")[0].removeprefix("wr.")
        inputs = tuple(i.name for i in definition.inputs)
        rows.append(OperatorRow(name, kind, text, state.tables(name), inputs, reached[name]))
    return rows


# -- commits and the watermark --------------------------------------------------------------------------------------


def offsets_row(commit: Commit) -> list[list[Any]]:
    """Return [source, partition, next offset] of each partition."""
    return [[shown_source(s), p, o] for (s, p), o in sorted(commit.next_offsets.items())]


def commit_row(commit: Commit) -> Row:
    """Return a commit for JSON, as `windrow commits --json` prints it."""
    return {
        "commit": commit.commit,
        "epoch": commit.epoch,
        "now": iso(now_of(commit) or 0),
        "steps": len(commit.steps),
        "rows": sum(step.rows for step in commit.steps),
        "panes": sum(shard.panes_rows for shard in commit.shards),
        "watermark": iso(commit.watermark_us),
        "published": commit.published,
        "next_offsets": offsets_row(commit),
        "query": commit.query_id,
        "batch": commit.batch_id,
    }


def commits(state: State, last: int | None = None) -> list[Row]:
    """Return commits, newest first, as `commit_row` has them, with two durations.

    lag_ms: from the watermark to the commit's `now`; duration_ms: from its intent to its record in the log, where the log is
    in files
    """
    kept = state.commits()
    rows = []
    for commit in reversed(kept if last is None else kept[-last:]):
        now_us, lag_ms = now_of(commit), None
        if now_us is not None and commit.watermark_us is not None:
            lag_ms = (now_us - commit.watermark_us) // 1_000
        rows.append({**commit_row(commit), "lag_ms": lag_ms, "duration_ms": duration_ms(state.look, commit)})
    return rows


def duration_ms(seen: job_admin.Look, commit: Commit) -> float | None:
    """Return the time between the files of the intent and of the commit; None where it is not known."""
    files = seen.log.files
    if not isinstance(files, FolderRecords):
        return None
    try:
        return max(0.0, (files.written_at(commit.seq) - files.written_at(commit.seq - 1)) * 1_000)
    except OSError:
        return None  # the log was truncated there


def partitions(state: State) -> list[Row]:
    """Return the partitions that the watermark follows, slowest first; `held`: it holds the watermark back."""
    record = next((c for c in reversed(state.commits())), None)
    if record is None:
        return []
    held_by = health(state.look, now_of(record) or 0).held_by
    slowest_first = sorted(record.marks.items(), key=lambda item: (item[1].max_time_us or 0, item[0]))
    return [
        {
            "source": shown_source(source),
            "partition": partition,
            "event_time": iso(mark.max_time_us),
            "seen": iso(mark.seen_us),
            "next_offset": record.next_offsets.get((source, partition)),
            "held": held_by == (source, partition),
        }
        for (source, partition), mark in slowest_first
    ]


# -- one key against the watermark ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Emission:
    """One emitted pane of a window. watermark_us: after the commit that emitted it; values: its other columns."""

    commit: int
    watermark_us: int
    timing: str
    index: int
    kind: str
    is_last: bool
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """One window of a key, in time or in numbers. status: open, fired, or gone where only its panes are kept."""

    start: int
    end: int
    status: str
    messages: int | None
    values: Mapping[str, Any]
    panes: tuple[Emission, ...]
    merged: bool = False


@dataclass(frozen=True)
class Timeline:
    """Windows of one key against the watermark, oldest first. numbered: spans are of sequence numbers, not of times."""

    operator: str
    key: Mapping[str, Any]
    watermark_us: int
    spans: tuple[Span, ...]
    numbered: bool = False


def timeline(state: State, operator: str, key: Any = None, last: int = 24) -> Timeline:
    """Return the newest windows of a key with their panes, those that were retracted or merged included."""
    by = state.definition(operator).by
    wanted = key_of(tuple(by), key) or {}
    spans: dict[tuple[int, int], Span] = {}
    numbered = "windows" in state.tables(operator) and state.timed("windows", operator) is None
    if "windows" in state.tables(operator) and by == tuple(wanted):
        for row in state.windows_table(key=wanted or None, operator=operator).to_pylist():
            start, end = _bounds(row["window"])
            values = {a: v for a, v in row.items() if a not in _OF_A_WINDOW and a not in by}
            status = "fired" if row["fired"] else "open"
            spans[start, end] = Span(start, end, status, row["messages"], values, ())
    for (start, end), panes in _emissions(state, operator, wanted).items():
        before = spans.get((start, end))
        if before is None:
            newest = panes[-1]
            merged = newest.kind != "INSERT"
            before = Span(start, end, "gone", None, newest.values, (), merged)
        spans[start, end] = Span(
            before.start,
            before.end,
            before.status,
            before.messages,
            before.values,
            tuple(panes),
            before.merged,
        )
    ordered = tuple(spans[bounds] for bounds in sorted(spans))
    return Timeline(operator, wanted, state.watermarks[operator], ordered[-last:], numbered)


def timeline_facts(found: Timeline) -> Row:
    """Return a timeline for JSON."""
    shown: Any = str if found.numbered else iso
    return {
        "operator": found.operator,
        "key": found.key,
        "watermark": iso(found.watermark_us) if found.watermark_us > START_OF_TIME_US else None,
        "windows": [
            {
                **asdict(span),
                "start": shown(span.start),
                "end": shown(span.end),
                "panes": [{**asdict(p), "watermark_us": iso(p.watermark_us)} for p in span.panes],
            }
            for span in found.spans
        ],
    }


_OF_A_WINDOW = ("window", "messages", "first", "last", "panes", "fired")


def _bounds(window: Mapping[str, Any]) -> tuple[int, int]:
    """Return start and end of a window as whole numbers."""
    start, end = window.values()
    return _bound(start, START_OF_TIME_US), _bound(end, END_OF_TIME_US)


def _bound(value: Instant | None, beyond: int) -> int:
    """Return a bound; null stands for a time that timestamps cannot hold."""
    return beyond if value is None else value if isinstance(value, int) else instant_us(value)


def _emissions(state: State, operator: str, key: Mapping[str, Any]) -> dict[tuple[int, int], list[Emission]]:
    """Return the kept panes of a key by window, oldest first."""
    panes = state.panes(operator)
    if not {"window", "pane", "commit"} <= set(panes.column_names):
        return {}
    panes = panes.filter(pa.array(of_key(panes, key)))
    reached = {c.commit: watermarks(c).get(operator, START_OF_TIME_US) for c in state.commits()}
    found: dict[tuple[int, int], list[Emission]] = {}
    for row in panes.to_pylist():
        pane = row["pane"]
        values = {n: v for n, v in row.items() if n not in ("window", "pane", "commit", "job", *key)}
        found.setdefault(_bounds(row["window"]), []).append(
            Emission(
                row["commit"],
                reached.get(row["commit"], START_OF_TIME_US),
                pane["timing"],
                pane["index"],
                pane["kind"],
                pane["is_last"],
                values,
            )
        )
    return found


# -- dead letters ---------------------------------------------------------------------------------------------------


def dead_letters(state: State) -> dict[str, pa.Table]:
    """Return the kept dead letters by reason, the most frequent reason first; oldest first within a reason."""
    table = state.dead_letters_table()
    reasons = table.column("reason")
    counted = [(v["values"], v["counts"]) for v in pc.value_counts(reasons).to_pylist()]
    return {
        reason: table.filter(pc.equal(reasons, reason))
        for reason, _ in sorted(counted, key=lambda one: (-one[1], one[0]))
    }


# -- provenance -----------------------------------------------------------------------------------------------------


def explained(one: Explanation) -> Row:
    """Return an explanation for JSON, as `windrow explain --json` prints it."""
    return {
        "operator": one.operator,
        **_what(one),
        "positions": _dicts(one.positions),
        "inputs": {name: _dicts(positions) for name, positions in one.inputs.items()},
        "outside": _dicts(one.outside),
        "rows": [explained(row) for row in one.rows],
        "commits": [
            {"commit": t.commit, "messages": t.messages, "took": [list(r) for r in t.ranges]}
            for t in one.commits
        ],
        "complete": one.complete,
        **({"reasons": list(one.reasons)} if one.reasons else {}),
    }


def _what(one: Explanation) -> Row:
    info = one.window
    if info is None:
        return {"row": one.row}
    return {
        "window": _window(info.window),
        "key": info.key,
        "messages": info.messages,
        "values": info.values,
        "panes": info.panes,
        "first": None if info.first is None else info.first._asdict(),
        "last": None if info.last is None else info.last._asdict(),
        **({} if one.joined_by is None else {"joined_by": one.joined_by._asdict()}),
    }


def _dicts(positions: Sequence[Position] | None) -> list[Row] | None:
    return None if positions is None else [p._asdict() for p in positions]


def _window(window: Window | TupleWindow) -> Row:
    if isinstance(window, TupleWindow):
        return {"first": window.first, "last": window.last}
    return {"start": iso(window.start_us), "end": iso(window.end_us)}
