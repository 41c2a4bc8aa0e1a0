"""Contents of the views of a job: plain data for JSON, and what the templates show of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.console import views
from windrow.console.state import instant, offsets_of
from windrow.console.text import long
from windrow.console.ui.cells import (
    PAYLOAD_CHARACTERS,
    Cell,
    Links,
    aligned,
    between,
    cell,
    key_from,
    key_parameters,
    moment,
    source_name,
    time,
    timing_of,
)
from windrow.console.ui.timeline_pictures import commits_picture, timeline_of
from windrow.core.errors import ConfigurationError
from windrow.core.messages import Position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us
from windrow.operators.view import StoredTable
from windrow.runners.paging import Page, page_of
from windrow.runners.state import State

#: Rows of one page of a table, commits of the list, payloads of a reason.
ROWS, COMMITS, LETTERS = 50, 100, 50
#: So many operators have the newest rows of a table on the overview, so many.
PREVIEWS, PREVIEW = 3, 8
PANES = "panes"
#: A number in an address has at most so many digits.
DIGITS = 12
Parameters = Mapping[str, str]


@dataclass(frozen=True)
class Content:
    """A view of a job. template: its file; data: for JSON; shown: for the template only; title: of the document."""

    title: str
    template: str
    data: Any
    shown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. numeric: its cells are aligned right; href: orders by it; sorted: ascending, descending."""

    name: str
    numeric: bool = False
    href: str = ""
    sorted: str = ""


# -- the job --------------------------------------------------------------------------------------------------------


def overview(state: State, links: Links, parameters: Parameters) -> Content:
    """Return the operators of a job with their tables, and its last commits."""
    rows = views.operators(state)
    operators = [
        {
            "name": row.name,
            "kind": row.kind,
            "definition": row.text,
            "watermark": time(row.watermark_us) if row.watermark_us > START_OF_TIME_US else "",
            "missing": row.missing,
            "tables": _table_links(links, row),
            "preview": _preview(state, row, links) if number < PREVIEWS and row.tables else None,
        }
        for number, row in enumerate(rows)
    ]
    data = {"operators": [{n: v for n, v in o.items() if n not in ("tables", "preview")} for o in operators]}
    recent = views.commits(state, COMMITS)
    return Content(
        "Overview", "overview.html", data, {"operators": operators, "chart": commits_picture(recent)}
    )


def _table_links(links: Links, row: views.OperatorRow) -> list[tuple[str, str]]:
    """Return the addresses of an operator's tables, one for each input where it has several, and of its timeline."""
    found = []
    for table in (*row.tables, PANES):
        several = table in ("windows", "messages") and len(row.inputs) > 1
        for name in row.inputs if several else (None,):
            label = table if name is None else f"{table} of {name}"
            found.append((label, links.to("table", operator=row.name, table=table, input=name)))
    return [
        *found,
        *([("timeline", links.to("timeline", operator=row.name))] if "windows" in row.tables else []),
    ]


def _siblings(state: State, links: Links, operator: str) -> list[tuple[str, str]]:
    return [one for row in views.operators(state) if row.name == operator for one in _table_links(links, row)]


def _preview(state: State, row: views.OperatorRow, links: Links) -> dict[str, Any]:
    """Return the newest rows of an operator's first table."""
    table, input = row.tables[0], row.inputs[0] if len(row.inputs) > 1 else None
    page = state.page(table, operator=row.name, input=input, descending=True, limit=PREVIEW)
    by = state.definition(row.name).by
    columns = [Column(f.name, _is_number(f.type)) for f in page.rows.schema]
    rows = _rows(page.rows, by, links, row.name, table)
    return {"table": table, "columns": columns, "rows": rows, "total": page.total}


def commits(state: State, links: Links, parameters: Parameters) -> Content:
    """Return commits, newest first, with rows, lag and duration."""
    rows = views.commits(state)
    page, after = number_in(parameters, "page", 1), 0
    after = (page - 1) * COMMITS
    page_rows = rows[after : after + COMMITS]
    lines = [
        [
            Cell(
                str(r["commit"]), "number", href=links.to("table", as_of=r["commit"], **_first_table(state))
            ),
            Cell(time(instant_us(r["now"]))),
            cell(r["rows"]),
            cell(r["panes"]),
            Cell("" if r["watermark"] is None else time(instant_us(r["watermark"]))),
            Cell(long(None if r["lag_ms"] is None else r["lag_ms"] * 1_000), "number"),
            Cell("" if r["duration_ms"] is None else f"{r['duration_ms']:,.0f} ms", "number"),
            Cell("" if r["query"] is None else f"{r['query']} / {r['batch']}"),
        ]
        for r in page_rows
    ]
    names = ("commit", "now", "rows", "panes", "watermark", "lag", "duration", "query / batch")
    keep = [i for i, _ in enumerate(names) if i < 7 or any(line[i].text for line in lines)]
    columns = [Column(names[i], names[i] in ("commit", "rows", "panes", "lag", "duration")) for i in keep]
    shown = {
        "columns": columns,
        "rows": [[line[i] for i in keep] for line in lines],
        "pages": _pages(links, "commits", {}, page, len(rows), COMMITS),
        "chart": commits_picture(page_rows),
        "total": len(rows),
    }
    return Content("Commits", "commits.html", {"commits": page_rows, "total": len(rows)}, shown)


def _first_table(state: State) -> dict[str, Any]:
    """Return the parameters of some table of the job, for a look back."""
    for row in views.operators(state):
        if row.tables:
            return {
                "operator": row.name,
                "table": row.tables[0],
                "input": row.inputs[0] if len(row.inputs) > 1 else None,
            }
    return {}


def watermark(state: State, links: Links, parameters: Parameters) -> Content:
    """Return the watermark by operator, and by partition which one holds it back."""
    rows = views.partitions(state)
    lines = [
        [
            Cell(source_name(r["source"])),
            cell(r["partition"]),
            Cell("" if r["event_time"] is None else time(instant_us(r["event_time"]))),
            Cell("" if r["seen"] is None else time(instant_us(r["seen"]))),
            cell(r["next_offset"]),
            Cell("holds it back" if r["held"] else "", "held"),
        ]
        for r in rows
    ]
    names = ("source", "partition", "newest event time", "last seen", "next offset", "watermark")
    marks = {n: us for n, us in state.watermarks.items()}
    shown = {
        "columns": [Column(n, n in ("partition", "next offset")) for n in names],
        "rows": lines,
        "marks": [
            (n, time(us) if START_OF_TIME_US < us < END_OF_TIME_US else _ends(us)) for n, us in marks.items()
        ],
    }
    return Content("Watermark", "watermark.html", {"watermarks": marks, "partitions": rows}, shown)


def _ends(us: int) -> str:
    return "no message yet" if us <= START_OF_TIME_US else "the end of time: drained"


# -- tables ---------------------------------------------------------------------------------------------------------


def table(state: State, links: Links, parameters: Parameters) -> Content:
    """Return a page of an operator's table, in the order of the address."""
    operator, name, input = parameters.get("operator"), parameters.get("table"), parameters.get("input")
    if name is None:
        raise ConfigurationError("no table is named: choose one on the overview")
    order, descending = parameters.get("order", "start"), parameters.get("down") == "1"
    if name == PANES and "order" not in parameters:
        descending = True  # the newest first
    page, contains = number_in(parameters, "page", 1), parameters.get("contains") or None
    key = None if name == PANES else key_from(parameters, state.key_types(operator, input, name))
    found = _page(state, operator, name, input, key, order, descending, (page - 1) * ROWS, contains)
    by = state.definition(operator).by
    asked = {"operator": operator, "table": name, "input": input, **key_parameters(key or {})}
    kept = {**asked, "contains": contains}
    columns = []
    for f in found.rows.schema:
        ordered_by = ("first", "last", "stored", *(["window"] if name != PANES else []))
        nested = pa.types.is_nested(f.type) and f.name not in ordered_by
        column = "start" if f.name in ("window", "stored") else f.name
        is_order = column == order
        down = not descending if is_order else _is_number(f.type)
        href = "" if nested else links.to("table", **kept, order=column, down=down)
        columns.append(
            Column(f.name, _is_number(f.type), href, ("descending" if descending else "ascending") * is_order)
        )
    rows = _rows(found.rows, by, links, operator, name)
    ordered = {**kept, "order": order if order != "start" or name == PANES else None, "down": descending}
    shown = {
        "operator": state.definition(operator).name,
        "siblings": _siblings(state, links, state.definition(operator).name),
        "table": name,
        "input": input,
        "key": key,
        "contains": contains or "",
        "hidden": {n: v for n, v in {**links.kept, **asked}.items() if v is not None},
        "columns": columns,
        "rows": rows,
        "total": found.total,
        "first": found.after + 1,
        "pages": _pages(links, "table", ordered, page, found.total, ROWS),
        "all": links.to("table", **{**asked, **dict.fromkeys(key_parameters(key or {}))}),
    }
    data = {"table": name, "total": found.total, "after": found.after, "rows": found.rows.to_pylist()}
    return Content(name.capitalize(), "table.html", data, shown)


def _page(
    state: State,
    operator: str | None,
    name: str,
    input: str | None,
    key: Any,
    order: str,
    descending: bool,
    after: int,
    contains: str | None,
) -> Page:
    if name != PANES:
        return state.page(
            name,
            order=order,
            descending=descending,
            after=after,
            limit=ROWS,
            contains=contains,
            key=key,
            operator=operator,
            input=input,
        )
    panes = state.panes(operator)
    by = [b for b in state.definition(operator).by if b in panes.column_names]
    return page_of(
        StoredTable(panes),
        by,
        order=order,
        descending=descending,
        after=after,
        limit=ROWS,
        contains=contains,
    )


def _rows(
    found: pa.Table, by: Sequence[str], links: Links, operator: str | None, table: str
) -> list[list[Cell]]:
    """Return the cells of rows, with the decimals of a column below each other."""
    rows = [_row(row, by, links, operator, table) for row in found.to_pylist()]
    return [list(row) for row in zip(*map(aligned, zip(*rows, strict=True)), strict=True)]


def _row(
    row: Mapping[str, Any], by: Sequence[str], links: Links, operator: str | None, table: str
) -> list[Cell]:
    """Return the cells of a row. A window leads to its explanation, and a key to its timeline."""
    key = {b: row[b] for b in by if b in row}
    us = _at(row)
    cells = []
    for name, value in row.items():
        one = cell(value)
        if name in ("window", "match_time") and us is not None and table in ("windows", PANES):
            at = moment(us, numbers="first" in row.get("window", {}))
            href = links.to("explain", operator=operator, at=at, **key_parameters(key))
            one = Cell(one.text, one.kind, one.more, href)
        elif name in by and "window" in row:
            one = Cell(
                one.text, one.kind, one.more, links.to("timeline", operator=operator, **key_parameters(key))
            )
        cells.append(one)
    return cells


def _at(row: Mapping[str, Any]) -> int | None:
    """Return when a row can be explained: where its window starts, or its own time."""
    window = row.get("window")
    value = (
        next(iter(window.values()), None)
        if isinstance(window, Mapping)
        else row.get("match_time", row.get("time"))
    )
    return value if value is None or isinstance(value, int) else instant_us(value)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def number_in(parameters: Parameters, name: str, default: int) -> int:
    """Return a positive number of the address."""
    text = parameters.get(name, str(default))
    if not text.isdecimal() or len(text) > DIGITS or int(text) == 0:
        raise ConfigurationError(f"{name}={text!r}: write a number from 1 on")
    return int(text)


def _pages(
    links: Links, view: str, asked: Mapping[str, Any], page: int, total: int, each: int
) -> dict[str, Any]:
    """Return where the pages before and after a page are."""
    last = max(1, -(-total // each))
    to = {n: links.to(view, **asked, page=p if p > 1 else None) for n, p in (("first", 1), ("last", last))}
    before = links.to(view, **asked, page=min(page, last + 1) - 1 or None) if page > 1 else ""
    after = links.to(view, **asked, page=page + 1) if page < last else ""
    return {"page": page, "last_page": last, "before": before, "after": after, **to}


# -- one key, one window --------------------------------------------------------------------------------------------


def timeline(state: State, links: Links, parameters: Parameters) -> Content:
    """Return the windows of a key against the watermark; without a key, keys to choose from."""
    operator = state.definition(parameters.get("operator")).name
    types = state.key_types(operator, _an_input(state, operator), "windows")
    key = key_from(parameters, types)
    shown: dict[str, Any] = {
        "operator": operator,
        "siblings": _siblings(state, links, operator),
        "names": [(n, parameters.get(f"k.{n}", "")) for n in types],
        "hidden": {**links.kept, "operator": operator},
        "keys": [],
        "picture": "",
        "spans": [],
    }
    if types and key is None:
        rows = state.page("windows", operator=operator, descending=True, limit=200).rows
        distinct = {repr(k): k for k in rows.select(list(types)).to_pylist()}
        shown["keys"] = [
            (
                ", ".join(cell(v).text for v in k.values()),
                links.to("timeline", operator=operator, **key_parameters(k)),
            )
            for k in list(distinct.values())[:40]
        ]
        return Content("Timeline", "timeline.html", {"operator": operator, "key": None, "windows": []}, shown)
    found = views.timeline(state, operator, key)
    shown["picture"], shown["spans"] = (
        timeline_of(found),
        [_span_row(s, found, links) for s in found.spans[::-1]],
    )
    shown["key"] = ", ".join(f"{n} {cell(v).text}" for n, v in found.key.items())
    return Content("Timeline", "timeline.html", views.timeline_facts(found), shown)


def _an_input(state: State, operator: str) -> str | None:
    inputs = state.definition(operator).inputs
    return inputs[0].name if len(inputs) > 1 else None


def _span_row(span: views.Span, found: views.Timeline, links: Links) -> dict[str, Any]:
    bounds = [str(b) if found.numbered else time(b) for b in (span.start, span.end)]
    href = links.to(
        "explain",
        operator=found.operator,
        at=moment(span.start, numbers=found.numbered),
        **key_parameters(found.key),
    )
    return {
        "window": between(*bounds),
        "href": href if span.status != "gone" else "",
        "status": span.status,
        "messages": "" if span.messages is None else span.messages,
        "values": [(n, cell(v)) for n, v in span.values.items()],
        "panes": [
            {
                "label": f"{timing_of(p.timing)} #{p.index}",
                "kind": "retracted" if p.kind != "INSERT" else "",
                "commit": p.commit,
                "values": ", ".join(f"{n} {cell(v).text}" for n, v in p.values.items()),
            }
            for p in span.panes
        ],
    }


def explain(state: State, links: Links, parameters: Parameters) -> Content:
    """Return why a window or a row holds what it holds, or why rules have no match."""
    operator = state.definition(parameters.get("operator")).name
    tables = state.tables(operator)
    input = _an_input(state, operator)
    types = state.key_types(operator, input, "windows") if "windows" in tables else {}
    if not types:
        by = state.definition(operator).by
        types = (
            {b: t for b, t in state.key_types(operator, input, tables[0]).items() if b in by}
            if tables
            else {}
        )
    at, why_not = parameters.get("at", ""), parameters.get("why_not", "")
    shown: dict[str, Any] = {
        "operator": operator,
        "operators": state.operators,
        "names": [(n, parameters.get(f"k.{n}", "")) for n in types],
        "hidden": dict(links.kept),
        "at": at,
        "why_not": why_not,
        "rules": "pending" in tables,
        "lines": [],
        "found": [],
    }
    data: dict[str, Any] = {"operator": operator, "explanations": [], "why_not": []}
    if why_not:
        shown["lines"] = data["why_not"] = state.why_not(offsets_of(why_not), operator=operator)
    elif at:
        numbers = "windows" in tables and state.timed("windows", operator, input) is None
        found = state.explain(
            instant(at, numbers=numbers), key=key_from(parameters, types), operator=operator
        )
        data["explanations"] = [views.explained(one) for one in found]
        shown["found"] = [_explained(one) for one in data["explanations"]]
    return Content("Explain", "explain.html", data, shown)


def _explained(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an explanation for the template."""
    window, row = one.get("window"), one.get("row")
    values = one.get("values") if row is None else row
    by_input = one["inputs"] or {"positions": one["positions"]}
    return {
        "window": "" if window is None else _range(window),
        "key": [(n, cell(v)) for n, v in (one.get("key") or {}).items()],
        "values": [(n, cell(v)) for n, v in (values or {}).items()],
        "messages": one.get("messages"),
        "panes": one.get("panes"),
        "positions": [
            (
                name,
                None if positions is None else [cell(p).text for p in positions[:500]],
                len(positions or ()),
            )
            for name, positions in by_input.items()
        ],
        "ends": [(n, cell(one[n])) for n in ("first", "last", "joined_by") if one.get(n)],
        "commits": [
            (
                c["commit"],
                c["messages"],
                [f"{s or '(no source)'}/{p} {a} to {b - 1}" for s, p, a, b in c["took"]],
            )
            for c in one["commits"]
        ],
        "complete": one["complete"],
        "reasons": one.get("reasons", []),
        "rows": [_explained(inner) for inner in one["rows"][:50]],
        "operator": one["operator"],
    }


def _range(window: Mapping[str, Any]) -> str:
    """Return the bounds of a window that is explained: its times are ISO 8601, or none at the ends of time."""
    bounds = [
        "\u221e" if b is None else str(b) if isinstance(b, int) else time(instant_us(b))
        for b in window.values()
    ]
    return between(*bounds)


# -- dead letters ---------------------------------------------------------------------------------------------------


def dead_letters(state: State, links: Links, parameters: Parameters) -> Content:
    """Return dead letters by reason, the newest first, with payload."""
    by_reason = views.dead_letters(state)
    wanted, page = parameters.get("reason"), number_in(parameters, "page", 1)
    if wanted is not None and wanted not in by_reason and by_reason:
        raise ConfigurationError(f"reason {wanted!r} is none of {list(by_reason)}")
    reason = wanted if wanted is not None else next(iter(by_reason), None)
    letters: list[dict[str, Any]] = []
    if reason in by_reason:
        rows = by_reason[reason]
        places = range(len(rows) - 1, -1, -1)[(page - 1) * LETTERS : page * LETTERS]
        letters = rows.take(pa.array([*places], pa.int64())).to_pylist()
    counts = {name: len(rows) for name, rows in by_reason.items()}
    shown = {
        "reasons": [(n, c, links.to("dead-letters", reason=n), n == reason) for n, c in counts.items()],
        "letters": [_letter(one) for one in letters],
        "pages": _pages(
            links, "dead-letters", {"reason": reason}, page, counts.get(reason or "", 0), LETTERS
        ),
    }
    data = {"reasons": counts, "reason": reason, "letters": letters}
    return Content("Dead letters", "dead_letters.html", data, shown)


def _letter(one: Mapping[str, Any]) -> dict[str, Any]:
    has_place = one["offset"] is not None
    at = (
        Position(one["source"], one["partition"], one["offset"], one["ordinal"] or 0)._asdict()
        if has_place
        else None
    )
    return {
        "commit": one["commit"],
        "operator": one["operator"] or "",
        "input": one["input"] or "",
        "position": "" if at is None else cell(at).text,
        "time": time(one["event_time_us"]),
        "detail": cell((one["detail"] or "").strip().splitlines()[-1] if one["detail"] else "", 1_000),
        "payload": cell(one["payload"], PAYLOAD_CHARACTERS),
    }


VIEWS = {
    "": overview,
    "table": table,
    "timeline": timeline,
    "explain": explain,
    "commits": commits,
    "watermark": watermark,
    "dead-letters": dead_letters,
}
