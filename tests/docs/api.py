"""The page of every public name, written from signatures and docstrings."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import windrow as wr
from windrow import testing
from windrow.runners.state import State

HEAD = """# Every public name

<!-- Written by `make pages` from signatures and docstrings. -->

`import windrow as wr`. What `help(wr.avg)` says, in one page. Durations are text such as `"10 seconds"`, or a `timedelta`;
moments are aware datetimes, or microseconds since the epoch. Codes in brackets are [errors](errors.md).
"""
#: The names of `windrow`, in the order of the page. A test sees to it that none is missing.
GROUPS: dict[str, tuple[str, ...]] = {
    "Operators": (
        "Aggregate",
        "CoGroup",
        "Join",
        "JoinWindow",
        "Deduplicate",
        "Delivery",
        "Over",
        "Process",
        "Input",
        "pairs",
        "chain",
        "Chain",
        "open",
        "foreach_batch",
        "together",
        "writeStream",
    ),
    "Windows": ("tumbling", "hopping", "calendar", "session", "tuples", "global_window", "inherited"),
    "Windows of a join's inputs": ("sliding", "rows", "unbounded"),
    "Frames around messages": ("rows_between", "range_between", "between"),
    "Aggregations": (
        "count",
        "sum",
        "avg",
        "min",
        "max",
        "variance",
        "stddev",
        "weighted_avg",
        "skipped",
        "median",
        "percentile",
        "approx_percentile",
        "count_distinct",
        "approx_count_distinct",
        "first",
        "last",
        "earliest",
        "latest",
        "any_value",
        "max_by",
        "min_by",
        "top_k",
        "top_k_by",
        "collect_list",
        "sort_list",
        "collect_set",
        "aggregate_function",
        "reduce",
        "col",
        "lit",
    ),
    "Emission": ("Emit", "every", "every_batch", "after", "when", "any_of", "all_of", "past_end", "never"),
    "Watermarks and retention": ("bounded", "fixed", "explicit", "custom", "Retain", "forever"),
    "Which message is which": ("positions", "ids"),
    "Messages, panes, rows": (
        "Message",
        "Position",
        "Window",
        "TupleWindow",
        "Pane",
        "JoinedRow",
        "DeadLetter",
        "Token",
    ),
    "Reading": ("read_state", "read_panes", "progress_bar"),
    "Kafka": ("Kafka", "KafkaSource", "kafka_log", "kafka_offsets"),
    "Errors": ("WindrowError", "ConfigurationError"),
}
MODULES = {
    "Sources": (wr.sources, ("kafka", "clock")),
    "Delivery policies": (wr.deliver, ("latest", "newest", "within", "throttle", "synchronous")),
    "Sinks": (
        wr.sinks,
        ("parquet", "kafka", "memory", "console", "callback", "Sink", "PaneFiles", "pane_files"),
    ),
    "Decoders": (wr.decoders, ("json", "msgpack", "avro", "protobuf", "raw", "decoder", "Decoder")),
}
#: Methods that are shown: what users call. Of other classes the fields say all.
METHODS: dict[str, tuple[str, ...]] = {
    "Aggregate": ("open", "run", "foreach_batch", "writeStream", "apply", "then"),
    "CoGroup": (),
    "Deduplicate": (),
    "Delivery": (),
    "Over": (),
    "JoinWindow": (),
    "Process": (),
    "Join": ("open", "run", "together", "foreach_batch", "writeStream", "apply", "then"),
    "Chain": ("open", "run", "together", "foreach_batch", "writeStream", "apply", "then"),
    "Emit": ("append", "update", "final"),
    "Kafka": ("create_topic",),
    "Sink": ("publish", "last_commit"),
    "PaneFiles": ("table", "panes"),
    "ManualClock": ("advance", "set"),
    "TestDriver": (
        "feed",
        "add",
        "advance_event_time",
        "advance_clock",
        "timeout",
        "drain",
        "crash",
        "restart",
        "lose_messages",
        "panes",
        "dead_letters",
        "windows",
        "check",
        "assert_state_zero",
    ),
    "KafkaBroker": ("stop", "start", "restart", "kill", "pause", "unpause"),
}
TESTING = (
    "ManualClock",
    "TestDriver",
    "JoinDriver",
    "CommitPoint",
    "Scenario",
    "simulate",
    "interrupt",
    "SeedFailed",
    "KafkaBroker",
    "SimulatedKafka",
    "check_topics",
    "panes_equal",
    "all_panes_equal",
)
_OPTION = re.compile(r"^( *)([a-z_]+(?:, [a-z_]+)*|[A-Z_]+):(?: (.*))?$")
_LONG = 96


def signature(name: str, what: Any) -> str:
    """How it is called, without the types of modules that are nobody's business."""
    if isinstance(what, type) and issubclass(what, enum.Enum):
        return name
    given = inspect.signature(what)
    shown = []
    star = False
    for parameter in given.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(
            parameter.kind, ""
        ) + parameter.name
        if parameter.default is not parameter.empty:
            text += f"={default(parameter.default)}"
        shown.append(text)
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= _LONG else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


def default(value: Any) -> str:
    text = repr(value)
    return "..." if "<" in text or text.startswith(("FileTransport", "datetime")) else text


def rendered(docstring: str) -> Iterator[str]:
    """A docstring as Markdown: lines `name: text` are a list, examples are blocks."""
    example: list[str] = []
    before = ""
    for line in [*docstring.splitlines(), ""]:
        if line.startswith(">>> ") or (example and line):
            example.append(line)
            continue
        if example:
            yield "```pycon\n" + "\n".join(example) + "\n```"
            example = []
        option = _OPTION.match(line)
        if option:
            indent = "    " * (1 if option[1] else 0)
            names = ", ".join(f"`{name}`" for name in option[2].split(", "))
            if before and not before.lstrip().startswith("- "):
                yield ""
            before = f"{indent}- {names}: {option[3] or ''}".rstrip()
            yield before
        elif line.startswith("    ") and before.lstrip().startswith("- "):
            yield "  " + line
        else:
            before = line.strip()
            yield before


def entry(title: str, call: str, what: Any, level: int) -> str:
    """One name: how it is called, and what its docstring says."""
    said = "\n".join(rendered(inspect.getdoc(what) or "")).strip()
    said = re.sub(r"\n{3,}", "\n\n", said)
    shown = f"```text\n{call}\n```\n\n" if callable(what) and not isinstance(what, type(None)) else ""
    return f"\n{'#' * level} {title}\n\n{shown}{said}\n"


def entries(prefix: str, name: str, what: Any) -> Iterator[str]:
    """A name, and the methods that users call."""
    dotted = f"{prefix}.{name}"
    called = isinstance(what, type) or inspect.isroutine(what)
    yield entry(dotted, signature(dotted, what) if called else dotted, what, 3)
    for method in METHODS.get(name, ()):
        yield entry(
            f"{name}.{method}", signature(f".{method}", getattr(what, method)), getattr(what, method), 4
        )


def page() -> str:
    text = [HEAD]
    for group, names in GROUPS.items():
        text.append(f"\n## {group}\n")
        for name in names:
            text += entries("wr", name, getattr(wr, name))
        if group == "Operators":
            text += opened()
        if group == "Reading":
            text.append("\n### A state\n\nWhat `wr.read_state` gives.\n")
            text += methods_of(State, "state")
    for group, (module, names) in MODULES.items():
        text.append(f"\n## {group}\n")
        for name in names:
            text += entries(f"wr.{module.__name__.rpartition('.')[2]}", name, getattr(module, name))
    text.append(
        "\n## For tests of jobs\n\nFrom `windrow.testing`; [how to use them](../howto/testing-a-job.md).\n"
    )
    for name in TESTING:
        text += entries("windrow.testing", name, getattr(testing, name))
    return "".join(text)


def methods_of(kind: type, title: str) -> Iterator[str]:
    """The methods and properties of what users get from a call."""
    for name in dict.fromkeys(name for base in kind.__mro__[:-1] for name in vars(base)):
        what = inspect.getattr_static(kind, name)
        what = getattr(what, "fget", what)
        if name.startswith("_") or not callable(what) or not inspect.getdoc(what):
            continue
        call = (
            f".{name}"
            if isinstance(inspect.getattr_static(kind, name), property)
            else signature(f".{name}", what)
        )
        yield entry(f"{title}.{name}", call, what, 4)


def opened() -> Iterator[str]:
    """What the verbs of a definition give."""
    from windrow.runners.embedded import Embedded
    from windrow.runners.spark.query import WindowQuery
    from windrow.runners.spark.stream import WindowStreamWriter

    yield "\n### An open operator\n\nWhat `open` gives. Of a join, messages and queries name their `input`.\n"
    yield from methods_of(Embedded, "op")
    yield "\n### A stream writer\n\nWhat `writeStream` gives; each verb gives the writer back.\n"
    yield from methods_of(WindowStreamWriter, "writer")
    yield "\n### A running query\n\nWhat `start` gives. What is not listed is as in Spark's `StreamingQuery`.\n"
    yield from methods_of(WindowQuery, "query")


def public() -> set[str]:
    """The names of `windrow` that are nobody's module."""
    modules = ("core", "stores", "operators", "checkpoint", "connectors", "runners", "console", "testing")
    return {
        n
        for n in vars(wr)
        if not n.startswith("_") and n not in (*modules, "sources", "sinks", "decoders", "deliver")
    }


def options(what: Callable[..., Any]) -> set[str]:
    """The parameters of a function or class."""
    return {p for p in inspect.signature(what).parameters if p not in ("self", "cls", "args", "kwargs")}
