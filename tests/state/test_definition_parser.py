"""A definition's text in a log builds that definition or nothing: a log can make its readers do no more."""

import gc
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.state.jobs import JOIN, KINDS, aggregate, begun
from windrow.checkpoint.log import FileLog
from windrow.core import aggregations, relations
from windrow.core import errors as e
from windrow.runners.state.definition_parser import BUILDERS, VALUES, evaluate

WHOLE = repr(aggregate())


RELATIONS = [
    *(getattr(wr, name)("a") for name in relations.THIRTEEN),
    wr.after("a", -wr.forever, "-3m30s"),
    ~wr.before("a.until", 0, wr.forever, this="due", bound=("-1 hour", 0)),
    wr.before(datetime(2013, 7, 1, 5, 10, tzinfo=UTC)),
]
RULES = wr.Rules(
    by=("k", "l"),
    inputs=[
        wr.Input("a", event_time="t", duration="d", duration_unit="ms", longest="1 hour", expires=wr.forever),
        wr.Input("b", event_time="t", start="s", longest="1 day", expires=wr.otherwise("1 day"), by=("m", "l")),
        wr.Input("c", event_time=None, expires=wr.at_least("1 hour")),
        wr.Input("d", event_time="t", end="e", expires=wr.forever),
        wr.Table("e", key="id", deleted="gone", event_time="since", by=()),
    ],
    rules={
        "all, that is": wr.Rule(
            when={
                "a": wr.event("a"),
                "b": wr.event("b", time=[wr.after("a"), wr.before("e", 0, "1 day")], on={"x": "a.y"}, other_than="a"),
                "e": wr.fact("e", on="a.id", wait="1 minute"),
                "no": wr.absent("d", on="a.id", time=wr.after("b", 0, "1 hour")),
                "n": wr.accumulate("d", agg={"n": wr.count()}, time=wr.before("a", 0, "1 hour"), empty={"n": 1}),
            },
            then={"x": wr.col("a.x"), "two": wr.lit(2), "n": wr.col("n.n")},
            delay="1 day",
        ),
        **{
            f"relation {i}": wr.Rule(when={"a": wr.event("d"), "b": wr.event("b", time=relation)})
            for i, relation in enumerate(RELATIONS)
        },
        "frames": wr.Rule(when={"r": wr.accumulate("c", agg={"mean": wr.avg("x")}, frame=100)}),
    },
    mode="stream",
    allowed_lateness="1 minute",
    emit=wr.Emit(late=wr.every_batch, mode="retracting"),
    null_keys="dead_letter",
    name="checks",
    dead_letter_limit=5,
    dead_letter_retention="1 day",
)  # fmt: skip


# -- what is in logs is read -------------------------------------------------------------------------------------------


def rendered() -> dict[str, Any]:
    """Definitions in which each public constructor that can stand in a log stands."""
    agg = {
        **{
            name: getattr(wr, name)("x") for name in ("sum", "min", "max", "avg", "first", "last", "earliest")
        },
        **{name: getattr(wr, name)("x") for name in ("latest", "any_value", "collect_set", "count_distinct")},
        **{name: getattr(wr, name)("x", "y") for name in ("max_by", "min_by", "weighted_avg")},
        "n": wr.count(),
        "quote ' \" \\ \n \u00e9": wr.count('it\'s "x" \\ \t \U0001f6e9'),
        "list": wr.collect_list("x", order="event_time"),
        "variance": wr.variance("x", ddof=0),
        "stddev": wr.stddev("x"),
        "sketch": wr.approx_count_distinct("x", lg_k=10),
        "median": wr.median("x"),
        "exact": wr.percentile("x", 0.95),
        "tiny": wr.percentile("x", 1e-7),
        "approx": wr.approx_percentile("x", 0.5, k=100),
        "top": wr.top_k("x", 3),
        "tops": wr.top_k_by("x", "y", 3),
        "sorted": wr.sort_list("x"),
        "sorted by": wr.sort_list("x", "y", descending=True),
    }
    on = {"watermark": "0 seconds", "agg": {"m": wr.sum("n")}}
    first = aggregate(name="first", emit=wr.Emit.append())
    left = wr.Input(
        "a", event_time="t", window=wr.sliding("1 hour", "1 minute", closed="left"), max_ahead="1 day"
    )
    right = wr.Input(
        "b", event_time="t", watermark=wr.fixed("1 hour"), positions=wr.positions("at"), static=True
    )
    return {
        **KINDS,
        "aggregations": aggregate(agg=agg),
        "keys": aggregate(by=("a", "b"), positions=wr.positions("o", partition="p", source="s"), ids=wr.ids("i", "j")),
        "once": wr.Deduplicate(by="k", event_time="t", ids=wr.ids("i"), within="1 hour"),
        "sessions": aggregate(window=wr.session("90 seconds", cut=wr.tumbling("1 day"))),
        "join window": wr.JoinWindow(
            by="user", event_time="t", window=wr.session("1 hour"), retention="1 day", join_keys=("id", "site"),
            emit=wr.Emit(early=wr.every(3)), ids="n", name="visits",
        ),
        "around": wr.Over(
            by="k", event_time="t", frame=wr.rows_between(-2, 1, closed="left", partial="null"), ttl="1 hour",
            agg={"n": wr.count(), "so far": wr.sum("x").over(), "ten": wr.stddev("x", ddof=0).over(10)}, select=("x", "y"),
        ),
        "around in time": wr.Over(event_time="t", frame=("-2 s", "1 s"), agg={"n": wr.count().over("1 hour")}),
        "around anchors": wr.Over(
            by="k", event_time="t", input="a", anchors=wr.Input("b", event_time="at"), empty="skip", retention="1 hour",
            frame=wr.between("x", "y", obsolete="x", closed="left"), agg={"n": wr.count()},
        ),
        "around ticks": wr.Over(
            event_time="t", anchors=wr.sources.clock("1 second", start=7), frame=("-2 s", 0), agg={"n": wr.count()}
        ),
        "alert": wr.Alert(
            by=("k", "s"), event_time="t", frame="5 minutes",
            agg={"mean": wr.avg("x"), "high": wr.count().where(wr.col("x") > 90).over(10)},
            variables={"jump": wr.col("high") - wr.col("mean")},
            when=(wr.col("mean") > 80) & (wr.col("jump") > 2),
            until=wr.col("mean") < 70, evaluate=wr.every("1 minute"), leaving=False, ttl="1 day", version="2",
            actions={
                "mail": wr.Action(delay="1 minute", repeat=wr.every("6 hours"), where=wr.col("count") > 1),
                "log": wr.Action(open=False, repeat=wr.every(10), cancel=False),
            },
        ),
        "latest": wr.Delivery(event_time="t", policy=wr.deliver.latest()),
        "newest": wr.Delivery(event_time="t", policy=wr.deliver.newest(3)),
        "young": wr.Delivery(by="k", event_time="t", policy=wr.deliver.within("1 hour")),
        "one an hour": aggregate(deliver=wr.deliver.throttle("1 hour", per="input", record="dead_letters")),
        "every one": wr.Delivery(event_time="t", policy=wr.deliver.all()),
        "at once": wr.Deduplicate(by="k", event_time="t", within="1 hour", deliver=wr.deliver.synchronous()),
        "no key": aggregate(by=(), time_zone="Europe/Berlin", null_keys="dead_letter", dead_letter_limit=5),
        "offset": aggregate(window=wr.tumbling("1 hour", offset="90 ms"), integer_overflow="decimal"),
        "gaps": aggregate(window=wr.hopping("1 hour", "2 hours", offset="1 us", gaps=True), max_ahead="2 hours"),
        "calendar": aggregate(window=wr.calendar("2 weeks", time_zone="UTC", week_start="sunday"), retention="90 days"),
        "global": aggregate(window=wr.global_window(), retention=wr.forever, scale="small"),
        "kept": aggregate(retention=wr.Retain("1 day", windows=3, messages=9, per="job"), allowed_lateness="1 hour"),
        "explicit": aggregate(watermark=wr.explicit()),
        "partitions": aggregate(watermark=wr.bounded("1 hour", idle="1 minute", partitions=[("s", 0), ("s", 1)])),
        "custom": aggregate(watermark=wr.custom(lambda marks, now: now, name="mine")),
        "emit": aggregate(emit=wr.Emit(early=wr.every(3), late=wr.never, mode="retracting", only_if_changed=True)),
        "emit by time": aggregate(emit=wr.Emit(early=wr.every("2 seconds"), late=wr.every_batch, on_time=False)),
        "emit by several": aggregate(
            emit=wr.Emit(
                early=wr.any_of(wr.every(3), wr.all_of(wr.every(2), wr.delay("1 s"))), late=wr.every("1 s", always=True)
            )
        ),
        "update": aggregate(emit=wr.Emit.update()),
        "periods of event time": aggregate(emit=wr.Emit(early=wr.every("10 seconds", event_time=True))),
        "the end of the window": aggregate(
            emit=wr.Emit(on_time=False, late=wr.all_of(wr.past_end, wr.every(3)))
        ),
        "final": aggregate(emit=wr.Emit.final()),
        "final, discarding": aggregate(emit=wr.Emit.final(mode="discarding")),
        "session": aggregate(window=wr.session("30 minutes", cut=wr.calendar("day", time_zone="UTC"))),
        "session of messages": aggregate(window=wr.session(messages=3), retention=wr.Retain(messages=9, per="job")),
        "sliding": wr.Join(left=left, right=right, on={"k": "key"}, how="left", retention=timedelta(days=1, microseconds=3)),
        "within": wr.Join(left=left, right=right, on=["k"], within=(timedelta(seconds=-1), "1 minute"), closed="right"),
        "rows": wr.Join(
            left=wr.Input("a", event_time="t", window=wr.rows(3, per="input")),
            right=wr.Input("b", event_time="t", window=wr.unbounded()),
            retention=wr.forever,
            emit=wr.Emit(early=wr.every("1 second"), late=wr.every_batch),
        ),
        "inherited": wr.chain(first, aggregate(name="second", event_time="window_time", **(on | {"window": wr.inherited()}))),
        "several inputs": wr.CoGroup(
            inputs=(wr.Input("a", event_time="t"), wr.Input("b", event_time="u", by="key", watermark="1 hour")),
            by="k", window=wr.tumbling("1 day"), retention="7 days", null_keys="dead_letter",
            agg={"n": wr.count(), "x": wr.sum("x").of("a"), "p": wr.percentile("y", 0.5).of("b")},
        ),
        "rules": RULES,
        "chain": wr.chain(first, aggregate(name="second", event_time="window_time", **on)),
    }  # fmt: skip


@pytest.mark.parametrize("name", rendered())
def test_a_definition_is_built_again_from_its_text(name: str) -> None:
    definition = rendered()[name]
    built = evaluate(repr(definition))
    assert (built.name, built.fingerprint) == (definition.name, definition.fingerprint)
    if name != "custom":  # whose function is nowhere in the text
        assert repr(built) == repr(definition)


def test_every_constructor_that_a_definition_can_name_is_in_the_table() -> None:
    made = {
        n
        for n, f in vars(aggregations).items()
        if inspect.isfunction(f) and f.__module__ == f"{aggregations.__name__}"
    }
    public = {
        n for n in made if not n.startswith("_") and n not in ("aggregate_function", "skipped")
    }  # which is a count
    shaped = {n for n, v in vars(wr.Emit).items() if isinstance(v, classmethod)}
    assert {f"wr.{n}" for n in public} | {f"wr.Emit.{n}" for n in shaped} <= set(BUILDERS)
    everything = " ".join(map(repr, rendered().values()))
    assert [n for n in (*BUILDERS, *VALUES) if n not in everything] == []


def test_what_names_code_of_the_users_is_asked_for() -> None:
    @wr.aggregate_function(name="span", returns=pa.float64())
    def span(table: pa.Table) -> float:
        return 0.0

    texts = [
        aggregate(agg={"x": span("x")}),
        wr.Join(left=JOIN.left, right=JOIN.right, on="k", where=wr.pairs(lambda a, b: True, name="all"), retention="1 day"),
    ]  # fmt: skip
    for definition in texts:
        with pytest.raises((ValueError, TypeError)):
            evaluate(repr(definition))


# -- nothing else is done ----------------------------------------------------------------------------------------------

HOSTILE = [
    "wr.checkpoint.layout.os.system('id')",
    "wr.checkpoint",
    "wr.checkpoint.layout",
    "wr.read_state('x')",
    "wr.read_panes('x')",
    "wr.sinks.parquet('x')",
    "wr.Kafka('x')",
    "wr.kafka_log('x', 'y')",
    "wr.aggregate_function(name='x', returns=1)",
    "wr.pairs(wr.sum, name='x')",
    "wr.Message({}, None)",
    "wr.progress_bar()",
    "wr.Aggregate.open(1)",
    "wr.Aggregate.__init__",
    "wr.Emit.append.__func__",
    "wr.Emit.mro()",
    "wr.__class__",
    "wr.sum.__globals__",
    "wr.sum.__globals__['__builtins__']['eval']('1')",
    "wr.count().where(1)",
    "wr.count().__class__",
    "wr.count()()",
    "wr.tumbling('1 hour').size_us",
    "(wr.count)()",
    "wr.count [0]",
    "wr.forever()",
    "wr. count()",
    "wr.sum",
    "wr",
    "os",
    "datetime.datetime.now()",
    "datetime.timedelta.max",
    "datetime.sys.exit()",
    "__import__('os').getcwd()",
    "open('x')",
    "eval('1')",
    "exec('1')",
    "print",
    "().__class__.__base__.__subclasses__()",
    "''.__class__",
    "'{0.__class__}'.format(wr)",
    "'x'.join(['a'])",
    "'a' 'b'",
    "'%s' % 1",
    "f'{wr}'",
    "b'x'",
    "r'x'",
    "u'x'",
    "'\\N{BULLET}'",
    "'\\U00ffffff'",
    "'''x'''",
    "'x\ny'",
    "[x for x in wr]",
    "{x: 1 for x in wr}",
    "(x for x in wr)",
    "[*wr.sum]",
    "[*(1, 2)]",
    "{**{}}",
    "wr.count(*['x'])",
    "wr.Aggregate(**{'by': 'k'})",
    "wr.count(column='x', column='y')",
    "wr.count(column='x', 'y')",
    "wr.count('x' 'y')",
    "wr.count(,)",
    "wr.count('x',,)",
    "wr.count('x'",
    "wr.count('x'))",
    "wr.count('x'];",
    "wr.count('x'); wr.count('y')",
    "wr.count('x') # x",
    "lambda: 1",
    "(lambda: 1)()",
    "(x := 1)",
    "wr.count() if 1 else 2",
    "1 if True else 2",
    "not 1",
    "~1",
    "- 1",
    "--1",
    "+1",
    "1 + 1",
    "9 ** 9 ** 9 ** 9",
    "9**9**9**9",
    "1 << 99999999",
    "'a' * 99999999999",
    "[0] * 99999999999",
    "9" * 100_000,
    "1e9999",
    "0x10",
    "1_000",
    "1j",
    "...",
    "await x",
    "yield",
    "import os",
    "{1: 2}",
    "{'a'}",
    "{[]: 1}",
    "{'a': }",
    "`x`",
    "wr.count(\x00)",
    "wr\u200b.count()",
    "\uff57\uff52.count()",
    "wr.c\u043eunt()",
    "",
    " ",
    "(" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "((((" * 20 + "))))" * 20,
    "-" * 100_000 + "1",
    "not " * 100_000 + "1",
    "wr" + ".a" * 100_000,
    "wr.count(" * 10_000 + ")" * 10_000,
    "{'a': " * 10_000,
    "lambda:" * 50_000 + "1",
    "'" + "a" * 2_000_000 + "'",
    "'" + "\\" * 99_999,
    "wr.count(" + "'x', " * 150_000 + "-)",
    "wr.tumbling('" + "9" * 100_000 + " days')",
    "wr.tumbling('1 hour', offset='" + "1s" * 10 + "\\n!')",
    "wr.calendar('day', time_zone='../../../../etc/passwd')",
    "wr.calendar('day', time_zone='/etc/passwd')",
    "wr.tuples(0)",
    "wr.tuples('x')",
    "wr.chain()",
    "wr.Aggregate()",
    WHOLE + ".open('x')",
    WHOLE + "[0]",
    WHOLE.replace("wr.count()", "wr.read_state('x')"),
    WHOLE.replace("'k'", "wr.checkpoint"),
]

#: What Python tells of before it does it.
HARMFUL = (
    "import",
    "exec",
    "compile",
    "open",
    "os.",
    "subprocess.",
    "shutil.",
    "socket.",
    "ctypes.",
    "pickle.",
    "code.",
)
_watched: list[tuple[int, list[str]]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and _watched[-1][0] == threading.get_ident() and event.startswith(HARMFUL):
        _watched[-1][1].append(f"{event} {arguments!r:.200}")


sys.addaudithook(_audit)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Record imports, reads, compilations and runs. Earlier garbage is not collected: stores flush themselves."""
    seen: list[str] = []
    gc.disable()
    _watched.append((threading.get_ident(), seen))
    try:
        yield seen
    finally:
        _watched.pop()
        gc.enable()


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:30].encode("unicode_escape").decode())
def test_a_text_that_is_no_definition_s_does_nothing(text: str) -> None:
    for said in (text, WHOLE.replace("wr.count()", text)) if text != WHOLE + ".open('x')" else (text,):
        with watched() as done, pytest.raises((ValueError, TypeError)):
            evaluate(said)
        assert done == []


def forged(location: Path, text: str) -> None:
    """The last claim of a log says this of the definition, and all else as it was."""
    log = FileLog(location / "log")
    was = log.tail().epoch
    assert was is not None
    log.open_epoch(
        opened_us=was.opened_us,
        driver="somebody",
        fingerprints=was.fingerprints,
        shards=was.shards,
        job=was.job,
        meta={**was.meta, "definitions": {"aggregate": text}},
    )


def test_a_forged_record_runs_nothing_in_a_reader(tmp_path: Path) -> None:
    begun(aggregate(), tmp_path / "job", range(30))
    trace = tmp_path / "trace"
    forged(tmp_path / "job", f"wr.checkpoint.layout.os.mkdir({str(trace)!r})")
    state = wr.read_state(str(tmp_path / "job"))
    with state, pytest.raises(e.ConfigurationError, match=r"cannot be built again .*: pass definition="):
        state.get_windows()
    assert not trace.exists()


@pytest.mark.parametrize(
    "other", [aggregate(by=()), aggregate(name="another"), JOIN, wr.tumbling("1 hour")], ids=repr
)
def test_a_text_that_gives_something_else_is_not_believed(tmp_path: Path, other: Any) -> None:
    begun(aggregate(), tmp_path / "job", range(30))
    forged(tmp_path / "job", repr(other))
    state = wr.read_state(str(tmp_path / "job"))
    with state, pytest.raises(e.ConfigurationError, match="gives something else: pass definition="):
        state.get_windows()
