"""What it takes to fire a window of many keys in one advance, each time in a process of its own; and to take what it told."""

from __future__ import annotations

import json
import subprocess
import sys

from .harness import Context, Row, median

KEYS, MANY = 1_000_000, 20_000_000
MOST_S, MOST_MIB, MANY_MOST_MIB = 3.0, 400, 1024


def firing(context: Context) -> list[Row]:
    """Seconds and MiB of one advance that fires a million keys, and of each way to take the results."""
    keys = KEYS // (20 if context.quick else 1)
    return [*_fired(context, keys, False, MOST_S, MOST_MIB), *_fired(context, keys, True, MOST_S, MOST_MIB)]


def firing_many(context: Context) -> list[Row]:
    """The same with 20 million keys, once."""
    keys = MANY // (100 if context.quick else 1)
    one = Context(context.quick, 1, context.bar)
    return [*_fired(one, keys, False, None, MANY_MOST_MIB), *_fired(one, keys, True, None, MANY_MOST_MIB)]


def _fired(context: Context, keys: int, gone: bool, most_s: float | None, most_mib: int) -> list[Row]:
    told: dict[str, list[float]] = {}
    for i in range(context.rounds):
        context.step(f"{keys:,} keys, round {i + 1}")
        command = [sys.executable, "-m", "benchmarks.fired", str(keys), *(["gone"] if gone else [])]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for name, value in json.loads(said.splitlines()[-1]).items():
            told.setdefault(name, []).append(value)
    what = f"firing: {keys:,} keys in one advance, " + ("nothing kept" if gone else "kept for late data")
    named = {
        "fire_s": ("s", what, most_s),
        "fire_mib": ("MiB", f"{what}: peak beyond what there was", most_mib),
        "fire_mapped_mib": ("MiB", f"{what}: that with mapped files", None),
        "table_s": ("s", f"{what}: result_table()", None),
        "pandas_s": ("s", f"{what}: get_result().to_pandas()", None),
        "panes_s": ("s", f"{what}: each pane of get_result()", None),
        "windows_s": ("s", f"{what}: each of get_windows()", None),
        "windows_mib": ("MiB", f"{what}: each of get_windows(), peak", None),
        "key_s": ("s", f"{what}: get_windows(key=)", None),
    }
    return [
        Row(
            text,
            unit,
            median(told[name]),
            bound="" if most is None else f"required <= {most:g} {unit}",
            meets=None if most is None else median(told[name]) <= most,
            samples={"windrow": told[name]},
        )
        for name, (unit, text, most) in named.items()
        if name in told
    ]
