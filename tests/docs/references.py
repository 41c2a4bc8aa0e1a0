"""Pages of the reference that are written from the code: errors by code, and the command line."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator

from windrow.console import main
from windrow.console.metrics import SERVED, exposed
from windrow.core import errors
from windrow.runners.telemetry import METRICS

ERRORS = """# Errors by code

<!-- Written by `make pages` from the docstrings in core/errors.py. -->

Every error of windrow begins with its code, `[WR205] driver ...`, so that it can be found under thirty lines of Java. Codes
are stable across releases. The message names what does not go together, and the remedy for just this case; below is what to do
in general. [Troubleshooting](../howto/troubleshooting.md) tells the longer stories.

All are in `windrow.core.errors` and derive from `wr.WindrowError`, whose attribute `code` is the code. `wr.ConfigurationError`
(WR1xx) is a `ValueError` too, and `DiskFailed` an `OSError`.
"""
FAMILIES = {
    "1": "Definitions and calls",
    "2": "State",
    "3": "Input",
    "4": "Operators and sinks",
    "5": "Spark",
    "6": "Kafka",
}
COMMANDS = """# The command line

<!-- Written by `make pages` from the commands themselves. -->

`pip install` brings the command `windrow`. It looks at jobs, copies them and clears them; none of its commands runs one. All
but `completion` and `ui` take `--json`.

`LOCATION` is the folder where a job was opened; with `writeStream`, the folder `windrow` in its `checkpointLocation`. Of a job
with its log in Kafka it is `log:SERVERS/NAME`; if servers ask for passwords, or the log is elsewhere, `log:MODULE:NAME`,
which names a `wr.kafka_log(...)` or another transport.

Exit codes: 0 done, and for `health`, `verify` and `doctor` nothing wrong; 1 refused, failed, or found wrong; 2 wrong usage.
"""


def kinds() -> list[type[errors.WindrowError]]:
    """Every class of errors, by code."""
    members = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.WindrowError)
    ]
    return sorted(members, key=lambda kind: kind.code)


def meaning(kind: type[errors.WindrowError]) -> tuple[str, str]:
    """Return what an error's docstring says: its meaning and the remedy."""
    paragraphs = [" ".join(text.split()) for text in (inspect.getdoc(kind) or "").split("\n\n")]
    return paragraphs[0], "".join(p.removeprefix("Remedy: ") for p in paragraphs if p.startswith("Remedy: "))


def longer(kind: type[errors.WindrowError]) -> str:
    """A code, with a link to its longer story where there is one: of errors that come while a job runs."""
    if kind.code[2] == "1" or kind.code.endswith("00"):
        return kind.code
    return f"[{kind.code}](../howto/troubleshooting.md#{kind.code.lower()}-{kind.__name__.lower()})"


def errors_page() -> str:
    text = [ERRORS]
    for digit, family in FAMILIES.items():
        text.append(f"\n## {family}\n\n| code | error | means | what to do |\n|---|---|---|---|\n")
        for kind in kinds():
            if kind.code.startswith(f"WR{digit}"):
                said, remedy = meaning(kind)
                text.append(f"| {longer(kind)} | `{kind.__name__}` | {said} | {remedy} |\n")
    return "".join(text)


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and what it takes."""
    for action in main.parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def arguments(command: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Describe a command: its arguments, as one types them, and its effect."""
    for action in command._actions:
        if isinstance(action, argparse._HelpAction) or action.dest == "location":
            continue
        name = action.option_strings[-1] if action.option_strings else action.dest.upper()
        value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
        if action.option_strings and value:
            name += f" [{value}]" if action.nargs == "?" else f" {value}"
        choices = f" One of {', '.join(f'`{c}`' for c in action.choices)}." if action.choices else ""
        yield name, cell(f"{action.help or ''}{choices}")


def usage(name: str, command: argparse.ArgumentParser) -> str:
    """A command with what it must be given."""
    lines = [
        n if a.nargs != "?" else f"[{n}]"
        for a in command._actions
        for n in [a.dest.upper()]
        if not a.option_strings
    ]
    options = any(a.option_strings and not isinstance(a, argparse._HelpAction) for a in command._actions)
    return " ".join(["windrow", name, *lines, *(["[options]"] if options else [])])


def commands_page() -> str:
    text = [COMMANDS, "\n| command | |\n|---|---|\n"]
    text += [f"| [`{name}`](#windrow-{name}) | {cell(c.description or '')} |\n" for name, c in commands()]
    for name, command in commands():
        text.append(f"\n## windrow {name}\n\n    {usage(name, command)}\n\n{command.description}\n\n")
        text.append("| | |\n|---|---|\n")
        text += [f"| `{argument}` | {does} |\n" for argument, does in arguments(command)]
    return "".join(text)


def mentioned(page: str) -> set[str]:
    """The codes that a page names."""
    return set(re.findall(r"\bWR\d{3}\b", page))


def metrics_page() -> str:
    """Return docs/reference/metrics.md, from what commits record and `windrow metrics` serves."""
    lines = [
        "# Metrics",
        "",
        "<!-- Written by `make pages` from runners/telemetry.py and console/metrics.py. -->",
        "",
        "Numbers of a job, [recorded by OpenTelemetry's API or served to Prometheus](../howto/metrics.md). All have "
        "the attribute `job`, but for `windrow.up`, which has `location`.",
        "",
        "| name | for Prometheus | kind | unit | attributes | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for name, metric in {**METRICS, **SERVED}.items():
        ending = {"counter": "_total", "histogram": "_bucket"}.get(metric.kind, "")
        attributes = ", ".join(f"`{a}`" for a in metric.attributes)
        alone = "; only from `windrow metrics`" if name in SERVED else ""
        lines.append(
            f"| `{name}` | `{exposed(name)}{ending}` | {metric.kind} | {metric.unit.strip('{}')} | {attributes} | "
            f"{metric.meaning}{alone} |"
        )
    return "\n".join([*lines, ""])
