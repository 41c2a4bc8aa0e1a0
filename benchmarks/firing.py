"""Cost of firing a window of many keys in one advance, and of taking its panes; each run in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from .harness import Context, Row, median

KEYS, MANY = 1_000_000, 20_000_000
MOST_S, MOST_MIB, MANY_MOST_MIB = 3.0, 400, 1024
#: What the figures are called, and the words of the process.
KEPT = ("firing: {keys:,} keys in one advance, kept for late data",)
GONE = ("firing: {keys:,} keys in one advance, nothing kept", "gone")


def firing(context: Context) -> list[Row]:
    """Seconds and MiB of one advance that fires a million keys, and of each way to take the results."""
    keys = KEYS // (20 if context.quick else 1)
    return [*fired(context, keys, KEPT, MOST_S, MOST_MIB), *fired(context, keys, GONE, MOST_S, MOST_MIB)]


def firing_many(context: Context) -> list[Row]:
    """The same with 20 million keys, once."""
    keys = MANY // (100 if context.quick else 1)
    one = Context(context.quick, 1, context.bar)
    return [*fired(one, keys, KEPT, None, MANY_MOST_MIB), *fired(one, keys, GONE, None, MANY_MOST_MIB)]


def fired(
    context: Context, keys: int, what: tuple[str, ...], most_s: float | None, most_mib: int
) -> list[Row]:
    """what: the words of the process, after those of the figures."""
    spent: dict[str, list[float]] = {}
    for i in range(context.rounds):
        context.step(f"{keys:,} keys, round {i + 1}")
        command = [sys.executable, "-m", "benchmarks.fired", str(keys), *what[1:]]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for name, value in json.loads(said.splitlines()[-1]).items():
            spent.setdefault(name, []).append(value)
    name = what[0].format(keys=keys)
    named = {
        "fire_s": ("s", name, most_s),
        "fire_mib": ("MiB", f"{name}: peak beyond what there was", most_mib),
        "fire_mapped_mib": ("MiB", f"{name}: that with mapped files", None),
        "table_s": ("s", f"{name}: result_table()", None),
        "pandas_s": ("s", f"{name}: get_result().to_pandas()", None),
        "panes_s": ("s", f"{name}: each pane of get_result()", None),
        "windows_s": ("s", f"{name}: each of get_windows()", None),
        "windows_mib": ("MiB", f"{name}: each of get_windows(), peak", None),
        "key_s": ("s", f"{name}: get_windows(key=)", None),
    }
    return [
        Row(
            text,
            unit,
            median(spent[name]),
            bound="" if most is None else f"required <= {most:g} {unit}",
            meets=None if most is None else median(spent[name]) <= most,
            samples={"windrow": spent[name]},
        )
        for name, (unit, text, most) in named.items()
        if name in spent
    ]
