"""Health commands, `windrow health` and `windrow watermark`: the state of a job, and the repair of a time that ran ahead."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from windrow.checkpoint import job_admin
from windrow.checkpoint.health import Health, size_of
from windrow.checkpoint.records import REPAIR, now_of
from windrow.console import views
from windrow.console.state import instant
from windrow.console.text import driver, modules_from_here, say_facts, say_json
from windrow.core.clock import SystemClock
from windrow.core.positions import shown_source
from windrow.core.time import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    duration_us,
    iso,
    show_duration,
    show_instant,
)
from windrow.runners.repair import Back, set_back
from windrow.runners.state.definitions import imported, location_and_log

OK, UNWELL = 0, 1


def health(options: argparse.Namespace, out: TextIO) -> int:
    """Print a job's health; 1 if it is worse than the bounds."""
    seen = _look(options.location)
    found = views.health(seen, SystemClock().now_us())
    wrong = _worse(found, options)
    facts: dict[str, Any] = {
        **views.health_facts(seen, found),
        "stateBytes": size_of(seen.folders.location) if options.size else None,
        "wrong": wrong,
    }
    if options.json:
        say_json(facts, out)
        return UNWELL if wrong else OK
    held = found.held_by
    shown = {
        "heldBy": None if held is None else f"{shown_source(held[0]) or '(no source)'} {held[1]}",
        "watermarks": "\n".join(f"{n}: {t}" for n, t in facts["watermarks"].items()),
        "ageMs": _long(found.age_us),
        "lagMs": _long(found.lag_us),
        "wrong": "\n".join(wrong),
    }
    words = {
        "ageMs": "age",
        "lagMs": "lag",
        "heldBy": "held by",
        "snapshotCommits": "since snapshot",
        "stateBytes": "bytes",
        "storeBytes": "bytes of executors' stores",
    }
    say_facts({words.get(n, n): {**facts, **shown}[n] for n in facts if n != "watermark"}, out)
    return UNWELL if wrong else OK


def _long(us: int | None) -> str | None:
    """Format a duration to the second, and a long one also in its two largest units."""
    if us is None:
        return None
    sign, rest = "-" if us < 0 else "", abs(us)
    parts = list[str]()
    for unit in (DAY_US, HOUR_US, MINUTE_US, SECOND_US):
        n, rest = divmod(rest, unit)
        if n:
            parts.append(show_duration(n * unit))
    exact = sign + show_duration(abs(us) // SECOND_US * SECOND_US)
    return exact if len(parts) < 2 else f"{exact} ({sign}{' '.join(parts[:2])})"


def _worse(found: Health, options: argparse.Namespace) -> list[str]:
    """Return the measures that are worse than their bounds."""
    wrong = []
    for what, us, bound in (
        ("the last sign of life is older", found.age_us, options.max_age),
        ("the watermark is farther behind", found.lag_us, options.max_lag),
    ):
        if bound is not None and us is not None and us > duration_us(bound, "bound"):
            wrong.append(f"{what} than {bound}: {_long(us)}")
    if options.max_age is not None and found.commit == 0:
        wrong.append(f"no commit yet, {options.max_age} are allowed")
    if options.max_unpublished is not None and found.unpublished > options.max_unpublished:
        wrong.append(
            f"{found.unpublished} commits are not known to be published, {options.max_unpublished} are allowed"
        )
    return wrong


def watermark(options: argparse.Namespace, out: TextIO) -> int:
    """Print the watermark and what holds it back; with --set or --set-now, lower what ran ahead."""
    clock_us = SystemClock().now_us()
    to = Back(
        None if options.set is None else instant(options.set),
        None
        if options.set_now is None
        else clock_us
        if options.set_now == "clock"
        else instant(options.set_now),
    )
    if to != Back():
        with modules_from_here():
            definition = None if options.definition is None else imported(options.definition)
            location, log = location_and_log(options.location)
        set_back(location, to, at_us=clock_us, driver=driver(), definition=definition, transport=log)
    seen = _look(options.location)
    last = seen.last_commit
    marks = {} if last is None else last.marks
    facts: dict[str, Any] = {
        "location": seen.where,
        "commit": 0 if last is None else last.commit,
        "now": None if last is None else iso(now_of(last)),
        "clock": iso(clock_us),
        "watermarks": {}
        if last is None
        else {n: iso(us) for n, us in last.meta.get("watermarks", {}).items()},
        "partitions": [
            {
                "source": shown_source(s),
                "partition": p,
                "event_time": iso(m.max_time_us),
                "seen": iso(m.seen_us),
            }
            for (s, p), m in sorted(marks.items(), key=lambda item: (item[1].max_time_us or 0, item[0]))
        ],
        "repair": None if last is None else last.meta.get(REPAIR),
    }
    if options.json:
        say_json(facts, out)
        return OK
    rows = [
        f"{p['source'] or '(no source)'} {p['partition']}: {p['event_time']}, last seen {p['seen']}"
        for p in facts["partitions"]
    ]
    facts |= {
        "watermarks": "\n".join(f"{n}: {t}" for n, t in facts["watermarks"].items()),
        "partitions": "\n".join(rows),
        "repair": _repair_text(facts["repair"]),
    }
    say_facts(facts, out)
    return OK


def _repair_text(repair: dict[str, Any] | None) -> str | None:
    if repair is None:
        return None
    lines = [f"by {repair['by']} at {iso(repair['at_us'])}"]
    for name in ("watermark_us", "now_us"):
        if name in repair:
            before, after = repair[name]
            lines.append(f"{name.removesuffix('_us')} from {show_instant(before)} to {show_instant(after)}")
    return "\n".join(lines)


def _look(location: str) -> job_admin.Look:
    with modules_from_here():
        return job_admin.look(*location_and_log(location))
