"""Pane command, `windrow panes`: the content of a Parquet sink."""

from __future__ import annotations

import argparse
import os
from typing import Any, TextIO

from windrow.connectors.manifests import FOLDER, manifests
from windrow.connectors.sinks import read_panes
from windrow.console.text import say_json, say_table, shown
from windrow.core.errors import ConfigurationError, JobMismatch
from windrow.core.location import local_path
from windrow.runners.panes import latest


def show(options: argparse.Namespace, out: TextIO) -> int:
    """Print panes, oldest first."""
    options.directory = local_path(options.directory, "directory")
    if not os.path.isdir(os.path.join(options.directory, FOLDER)):
        raise JobMismatch(
            f"{options.directory} holds no panes (it has no folder {FOLDER!r}): give the directory of wr.sinks.parquet"
        )
    operators = sorted({m.operator for m in manifests(options.directory)})
    if options.operator is not None and options.operator not in operators:
        raise ConfigurationError(f"operator {options.operator!r} is none of {operators}")
    if options.operator is None and len(operators) > 1:
        raise ConfigurationError(
            f"{options.directory} has the panes of {operators}: choose one with --operator"
        )
    panes = read_panes(options.directory, options.operator)
    if options.latest:
        panes = latest(panes)
    rows = panes.to_pylist()
    rows = rows if options.last is None else rows[-options.last :]
    if options.json:
        for row in rows:
            say_json(row, out)
        return 0
    if not rows:
        return 0
    flat = [_flat(row) for row in rows]
    say_table(list(flat[0]), (list(row.values()) for row in flat), out)
    return 0


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten a pane, a row of a join or a dead letter to one line: `window` and `pane` are spread out."""
    line: dict[str, Any] = {}
    for name, value in row.items():
        if name == "window" and isinstance(value, dict):
            line |= {n: shown(v) for n, v in value.items()}
        elif name == "pane" and isinstance(value, dict):
            last, kind = ["last"] * value["is_last"], value["kind"]
            line[name] = " ".join(
                [value["timing"], f"#{value['index']}", *last, *[kind] * (kind != "INSERT")]
            )
        else:
            line[name] = shown(value)
    return line
