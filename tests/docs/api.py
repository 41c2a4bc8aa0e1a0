"""docs/reference/api: a page for each public class, and one for each group of functions, from signatures and docstrings."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import windrow as wr
from windrow import testing
from windrow.runners.state import State

FOLDER = "reference/api"
WRITTEN = "<!-- Written by `make pages` from signatures and docstrings. -->"
HEAD = f"""# Every public name

{WRITTEN}

`import windrow as wr`. A page says what `help(wr.avg)` says. Durations are text such as `"10 seconds"`, or a `timedelta`;
moments are aware datetimes, or microseconds since the epoch. Codes in brackets are [errors](../errors.md).
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
        "Rules",
        "Alert",
        "Action",
        "Input",
        "pairs",
        "chain",
        "Chain",
        "open",
        "foreach_batch",
        "together",
        "writeStream",
    ),
    "Patterns of rules": ("Rule", "event", "fact", "absent", "accumulate", "Table", "at_least", "otherwise"),
    "Temporal operators of rules": (
        "after",
        "before",
        "coincides",
        "during",
        "includes",
        "finishes",
        "finished_by",
        "meets",
        "met_by",
        "overlaps",
        "overlapped_by",
        "starts",
        "started_by",
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
    "Emission": ("Emit", "every", "every_batch", "delay", "when", "any_of", "all_of", "past_end", "never"),
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
    "Kafka clusters": ("Kafka", "KafkaSource", "kafka_log", "kafka_offsets"),
    "Errors": ("WindrowError", "ConfigurationError"),
}
MODULES = {
    "Sources": (wr.sources, ("kafka", "clock")),
    "Delivery policies": (wr.deliver, ("latest", "newest", "within", "throttle", "synchronous")),
    "Sinks": (
        wr.sinks,
        (
            "parquet",
            "kafka",
            "memory",
            "console",
            "callback",
            "route",
            "webhook",
            "email",
            "Sink",
            "PaneFiles",
            "pane_files",
        ),
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
    "Alert": (),
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
    """Return the signature, without the types of private modules."""
    if isinstance(what, type) and issubclass(what, enum.Enum):
        return name
    declared = inspect.signature(what)
    shown = []
    star = False
    for parameter in declared.parameters.values():
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


def entries(prefix: str, name: str, what: Any, level: int = 2) -> str:
    """Show a name, and the methods that users call."""
    dotted = f"{prefix}.{name}"
    called = isinstance(what, type) or inspect.isroutine(what)
    methods = (
        entry(f"{name}.{m}", signature(f".{m}", getattr(what, m)), getattr(what, m), level + 1)
        for m in METHODS.get(name, ())
    )
    return entry(dotted, signature(dotted, what) if called else dotted, what, level) + "".join(methods)


@dataclass(frozen=True)
class Section:
    """A group of names: the prefix that users type, its names, and an introduction."""

    title: str
    prefix: str
    module: Any
    names: tuple[str, ...]
    note: str = ""


def groups() -> list[Section]:
    """List all groups of names, in the order of the index."""
    tests = "From `windrow.testing`; [how to use them](../../howto/testing-a-job.md)."
    return [
        *(Section(title, "wr", wr, names) for title, names in GROUPS.items()),
        *(
            Section(title, f"wr.{module.__name__.rpartition('.')[2]}", module, names)
            for title, (module, names) in MODULES.items()
        ),
        Section("For tests of jobs", "windrow.testing", testing, TESTING, tests),
    ]


def has_page(what: Any) -> bool:
    """True for classes that users make or hold, which have pages of their own."""
    return isinstance(what, type) and not issubclass(what, enum.Enum | BaseException)


def slug(title: str) -> str:
    """Turn a title into the name of a page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def anchor(title: str) -> str:
    """Turn a heading into what a link to it names."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def first_sentence(what: Any) -> str:
    """Give the first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(what) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0].replace("|", "\\|")


def pages() -> dict[str, Callable[[], str]]:
    """List the pages, by their paths below docs."""
    written: dict[str, Callable[[], str]] = {f"{FOLDER}/README.md": index}
    for group in groups():
        if any(not has_page(getattr(group.module, name)) for name in group.names):
            written[f"{FOLDER}/{slug(group.title)}.md"] = partial(group_page, group)
        for name in group.names:
            if has_page(getattr(group.module, name)):
                written[f"{FOLDER}/{name}.md"] = partial(class_page, group, name)
    for title, note, kind, name in handles():
        written[f"{FOLDER}/{slug(title)}.md"] = partial(handle_page, title, note, kind, name)
    return written


def group_page(group: Section) -> str:
    """Write the page of the functions and values of a group."""
    shown = (name for name in group.names if not has_page(getattr(group.module, name)))
    text = [f"# {group.title}\n\n{WRITTEN}\n", f"\n{group.note}\n" if group.note else ""]
    return "".join(text) + "".join(entries(group.prefix, n, getattr(group.module, n)) for n in shown)


def class_page(group: Section, name: str) -> str:
    """Write the page of a class."""
    text = entries(group.prefix, name, getattr(group.module, name), level=1)
    title, _, rest = text.lstrip("\n").partition("\n")
    return f"{title}\n\n{WRITTEN}\n{rest}"


def handle_page(title: str, note: str, kind: type, name: str) -> str:
    """Write the page of an object that a call returns."""
    return f"# {title}\n\n{WRITTEN}\n\n{note}\n" + "".join(methods_of(kind, name))


def index() -> str:
    """Write the page that lists every name with its first sentence."""
    text = [HEAD]
    for group in groups():
        text.append(f"\n## {group.title}\n\n| name | |\n|---|---|\n")
        for name in group.names:
            what = getattr(group.module, name)
            dotted = f"{group.prefix}.{name}"
            target = f"{name}.md" if has_page(what) else f"{slug(group.title)}.md#{anchor(dotted)}"
            text.append(f"| [`{dotted}`]({target}) | {first_sentence(what)} |\n")
    text.append("\n## What calls return\n\n| object | |\n|---|---|\n")
    text += [f"| [{title}]({slug(title)}.md) | {note} |\n" for title, note, _, _ in handles()]
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
        yield entry(f"{title}.{name}", call, what, 2)


def handles() -> list[tuple[str, str, type, str]]:
    """List the objects that calls return: title, introduction, class, and the variable that examples use."""
    from windrow.runners.embedded import Embedded
    from windrow.runners.spark.query import WindowQuery
    from windrow.runners.spark.stream import WindowStreamWriter

    named = "Of an operator with several inputs, messages and queries name their `input`."
    return [
        ("An open operator", f"`open` returns it. {named}", Embedded, "op"),
        (
            "A stream writer",
            "`writeStream` returns it; each verb returns the writer.",
            WindowStreamWriter,
            "writer",
        ),
        (
            "A running query",
            "`start` returns it. The rest is as in Spark's `StreamingQuery`.",
            WindowQuery,
            "query",
        ),
        ("A state", "`wr.read_state` returns it.", State, "state"),
    ]


def public() -> set[str]:
    """The names of `windrow` that are nobody's module."""
    modules = (
        "drawing",
        "core",
        "stores",
        "operators",
        "checkpoint",
        "connectors",
        "runners",
        "console",
        "testing",
    )
    return {
        n
        for n in vars(wr)
        if not n.startswith("_") and n not in (*modules, "sources", "sinks", "decoders", "deliver")
    }


def options(what: Callable[..., Any]) -> set[str]:
    """The parameters of a function or class."""
    return {p for p in inspect.signature(what).parameters if p not in ("self", "cls", "args", "kwargs")}
