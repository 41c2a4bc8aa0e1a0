"""Job commands, `windrow describe`, `commits`, `backup`, `fork` and `reset`, from the jobs' logs."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from windrow.checkpoint import backup as backups
from windrow.checkpoint import job_admin
from windrow.checkpoint.health import size_of
from windrow.checkpoint.records import Commit, now_of
from windrow.console.text import driver, modules_from_here, say_facts, say_json, say_table
from windrow.console.views import commit_row, offsets_row
from windrow.core.clock import SystemClock
from windrow.core.time import iso, show_instant
from windrow.runners.state.definitions import location_and_log


def describe(options: argparse.Namespace, out: TextIO) -> int:
    """Print a job's definition and progress."""
    facts = _facts(_look(options.location), iso if options.json else show_instant)
    if options.json:
        say_json(facts, out)
        return 0
    shown = {
        **facts,
        "operators": "\n".join(f"{n}: {d}" for n, d in facts["operators"].items()),
        "next_offsets": "\n".join(f"{s or '(no source)'} {p}: {o}" for s, p, o in facts["next_offsets"]),
        "watermarks": "\n".join(f"{n}: {t}" for n, t in facts["watermarks"].items()),
        "counters": "\n".join(f"{n}: {v}" for n, v in facts["counters"].items()),
    }
    say_facts(shown, out)
    return 0


def _look(location: str) -> job_admin.Look:
    with modules_from_here():
        return job_admin.look(*location_and_log(location))


def _facts(seen: job_admin.Look, show: Callable[[int], str | None]) -> dict[str, Any]:
    epoch, last = seen.epoch, seen.last_commit
    definitions = epoch.meta.get("definitions", {})
    facts: dict[str, Any] = {
        "location": seen.where,
        "job": epoch.job,
        "operators": {name: definitions.get(name, name) for name in epoch.fingerprints},
        "fingerprints": dict(epoch.fingerprints),
        "shards": epoch.shards,
        "epoch": epoch.epoch,
        "opened": show(epoch.opened_us),
        "driver": epoch.driver,
        "forked_from": epoch.meta.get("forked_from"),
        "forked_at": epoch.meta.get("forked_at"),
        "commit": 0 if last is None else last.commit,
        "now": None,
        "published": 0,
        "watermarks": {},
        "next_offsets": [],
        "counters": {},
    }
    if last is not None:
        facts |= {
            "now": show(now_of(last) or 0),
            "published": last.published,
            "watermarks": {n: show(t) for n, t in last.meta.get("watermarks", {}).items()},
            "next_offsets": offsets_row(last),
            "counters": {n: v for n, v in sorted(last.counters.items()) if not n.startswith("panes_file.")},
        }
    if last is not None and last.query_id is not None:
        facts |= {"query": last.query_id, "batch": last.batch_id}
    here = os.path.isdir(seen.folders.location)
    facts["bytes"] = size_of(seen.folders.location) if here else None
    return facts


def commits(options: argparse.Namespace, out: TextIO) -> int:
    """Print a line for each commit, oldest first."""
    kept = deque(_look(options.location).log.commits(), maxlen=options.last)
    if options.json:
        for commit in kept:
            say_json(commit_row(commit), out)
        return 0
    names = ("commit", "now", "steps", "rows", "panes", "watermark", "query", "batch")
    say_table(names, ([row[n] for n in names] for row in map(_shown, kept)), out)
    return 0


def _shown(commit: Commit) -> dict[str, Any]:
    """Return a commit with times as people write them."""
    mark = commit.watermark_us
    now = show_instant(now_of(commit) or 0)
    return {**commit_row(commit), "now": now, "watermark": None if mark is None else show_instant(mark)}


def fork(options: argparse.Namespace, out: TextIO) -> int:
    """Copy a job."""
    last = job_admin.fork(
        options.location, options.new_location, now_us=SystemClock().now_us(), driver=driver()
    )
    facts = _facts(job_admin.look(options.new_location), iso)
    if options.json:
        say_json(facts, out)
        return 0
    print(
        f"{facts['job']} at {facts['location']} goes on from commit {last.commit} of {facts['forked_from']}",
        file=out,
    )
    if last.query_id is not None:
        print(
            "Start it as a new query over a source with positions; without positions, also copy Spark's own checkpoint.",
            file=out,
        )
    return 0


def backup(options: argparse.Namespace, out: TextIO) -> int:
    """Copy a job's files."""
    made = backups.backup(options.location, options.folder)
    if options.json:
        say_json({"location": options.folder, **dataclasses.asdict(made)}, out)
        return 0
    print(
        f"{options.folder} holds {made.job} as of commit {made.commit}: {made.files} files, {made.bytes} bytes. It is the same "
        "job: open it in place of the original, or fork it.",
        file=out,
    )
    return 0


def reset(options: argparse.Namespace, out: TextIO) -> int:
    """Clear a job after a confirmation."""
    seen = job_admin.look(options.location)
    commit = 0 if seen.last_commit is None else seen.last_commit.commit
    if not options.yes and not _confirmed(
        f"Delete the state of {seen.epoch.job} at {seen.folders.location} ({commit} commits, last opened "
        f"{show_instant(seen.epoch.opened_us)} by {seen.epoch.driver})? [y/N] "
    ):
        print("windrow reset: nothing was deleted", file=sys.stderr)
        return 1
    job = job_admin.reset(options.location, now_us=SystemClock().now_us(), driver=driver())
    if options.json:
        say_json({"location": seen.folders.location, "job": job, "was": seen.epoch.job}, out)
        return 0
    print(f"{seen.folders.location} is empty; the next job there is {job}", file=out)
    if seen.last_commit is not None and seen.last_commit.query_id is not None:
        print(
            "Delete Spark's checkpoint of the query too, or Spark goes on after what was deleted.", file=out
        )
    return 0


def _confirmed(question: str) -> bool:
    """True if a person confirms; False at the end of input."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
