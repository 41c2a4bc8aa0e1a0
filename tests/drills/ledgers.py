"""Rows on a topic, without those that were retracted, against the oracle over all messages of the source.

For what `check_topics` does not follow window by window: sessions, whose windows grow and become one, and rows around messages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from windrow.connectors.kafka.encoding import json_rows
from windrow.core.messages import Kind, Message, Pane
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.testing import Report, checker

#: What a row is beside how, and in which commit, it was told.
_LABELS = ("pane", "commit")


def check_ledger(definition: Definition, source: Any, sink: Any) -> Report:
    """As `check_topics`, of a job that takes back whatever it corrects, of which nothing is ever too late."""
    report = Report()
    rows = list(checker._written(sink))
    tokens = [json.loads(r.value()) for r in checker._records(sink, sink.tokens) if r.value() is not None]
    report.panes_out, report.commits = len(rows), len(tokens)
    checker._check_tokens(report, rows, tokens)
    there: Counter[str] = Counter()
    for row in sorted(rows, key=lambda row: row["commit"]):
        there[_content(row)] += 1 if row["pane"]["kind"] == Kind.INSERT.value else -1
    wanted = Counter(map(_content, _wanted(definition, source, report)))
    report.windows = wanted.total()
    for content in sorted({*there, *wanted}):
        count, due = there[content], wanted[content]
        if count < due:
            (report.broken if count < 0 else report.lost).append(f"{due - count} times {content}")
        elif count > due:
            (report.twice if due else report.unknown).append(f"{count - due} times {content}")
    return report


def _content(row: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in row.items() if name not in _LABELS}, sort_keys=True)


def _wanted(definition: Definition, source: Any, report: Report) -> Iterator[Mapping[str, Any]]:
    """Return the oracle's rows for all messages of each key at once, as the sink would write them."""
    messages, schema = checker._taken(source, None, report)
    by_key: dict[tuple[Any, ...], list[Message]] = {}
    for message in messages:
        by_key.setdefault(tuple(message.payload[name] for name in definition.by), []).append(message)
    panes: list[Any] = []
    for rows in by_key.values():  # lists and loops: all keys together would take their number squared
        oracle = definition.oracle()
        panes += oracle.ingest(rows, END_OF_TIME_US, START_OF_TIME_US).rows
        panes += oracle.advance(END_OF_TIME_US, END_OF_TIME_US).rows
    standing: Counter[str] = Counter()
    shown: dict[str, Mapping[str, Any]] = {}
    target = definition.logic().schema({definition.inputs[0].name: schema})
    for row in map(json.loads, json_rows(pa.Table.from_pylist([_row(one) for one in panes], target))):
        content = _content(row)
        shown[content] = row
        standing[content] += 1 if row["pane"]["kind"] == Kind.INSERT.value else -1
    for content, n in standing.items():
        yield from [shown[content]] * n


def _row(pane: Any) -> dict[str, Any]:
    window = {"window": checker._ends(pane), **pane.key} if isinstance(pane, Pane) else {}
    label = {
        "timing": pane.timing.value,
        "index": pane.index,
        "is_last": pane.is_last,
        "kind": pane.kind.value,
    }
    return {**window, **pane.values, "pane": label, "commit": 0}
