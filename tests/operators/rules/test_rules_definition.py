"""Rules are checked when they are built: names, distances, contradictions, bounds; and they say what they will do."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.docs import api
from windrow.core import errors as e
from windrow.core.relations import THIRTEEN

E, A = wr.event, wr.absent


def rules(**options: Any) -> wr.Rules:
    """Rules over two inputs of points and a table."""
    arguments: dict[str, Any] = {
        "inputs": [wr.Input("a", event_time="t"), wr.Input("b", event_time="t"), wr.Table("f", key="k")]
    }
    return wr.Rules(**{**arguments, **options})


def rule(delay: Any = None, **when: Any) -> Callable[..., wr.Rules]:
    return lambda **options: rules(rules={"x": wr.Rule(when=when, delay=delay)}, **options)


SOON = wr.after("a", 0, "10 seconds")
KEPT = [wr.Input(name, event_time="t", expires="1 hour") for name in "ab"]
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "three distances": (lambda: wr.during("b", "1 s", "2 s", "3 s"), e.BadRelation, ["3 distances", "0, 1, 2 or 4"]),
    "a negative distance": (lambda: wr.meets("b", "-1 s"), e.BadRelation, ["wr.meets('b', '-1 s')", "wr.after and wr.before"]),
    "a reversed range": (lambda: wr.during("b", "5 s", "2 s"), e.BadRelation, ["turn them round"]),
    "a distance that is a number": (lambda: wr.after("b", 5), e.BadRelation, ["5 is no distance", "'10 seconds'"]),
    "a range beyond all times": (lambda: wr.after("b", wr.forever), e.BadRelation, ["never true"]),
    "an interval of a point": (lambda: wr.during("f.until"), e.BadRelation, ["is a point", "wr.coincides"]),
    "an own interval of a point": (lambda: wr.meets("f", this="until"), e.BadRelation, ["is a point", "wr.coincides"]),
    "an own column of another": (lambda: wr.after("f", this="b.until"), e.BadRelation, ["this='b.until'", "'deadline'"]),
    "a bound of an interval": (lambda: wr.after("f", bound=("1 s", "2 s")), e.BadRelation, ["bound=('1 s', '2 s')"]),
    "a bound turned round": (lambda: wr.after("f.u", bound=("2 s", "1 s")), e.BadRelation, ["turn it round"]),
    "a time without a zone": (lambda: wr.before(datetime(2013, 7, 1)), e.NaiveDatetime, ["time zone"]),
    "no operator": (lambda: E("a", time="after"), e.BadRelation, ["time='after'", "wr.after('fire', 0, '10 seconds')"]),
    "where of text": (lambda: E("a", where="x > 0"), e.BadRule, ["where='x > 0'"]),
    "on without a binding": (lambda: E("a", on="card"), e.BadRule, ["'card'", "'a.card'"]),
    "no aggregation": (lambda: wr.accumulate("a", agg={}), e.BadAggregate, ["agg={}"]),
    "an aggregation as text": (lambda: wr.accumulate("a", agg={"x": "avg"}), e.BadAggregate, ["'avg'", "wr.avg('x')"]),
    "an alias with a dot": (lambda: wr.accumulate("a", agg={"x.y": wr.count()}), e.BadAggregate, ["'x.y'"]),
    "an aggregation of an input": (lambda: wr.accumulate("a", agg={"n": wr.count().of("a")}), e.BadAggregate, ["no input"]),
    "near and of late": (
        lambda: wr.accumulate("a", agg={"n": wr.count()}, time=SOON, frame=3), e.BadRule, ["time=", "frame=3"],
    ),
    "empty of nothing": (
        lambda: wr.accumulate("a", agg={"n": wr.count()}, empty={"m": 0}), e.BadRule, ["'m'", "['n']"],
    ),
    "a negative wait": (lambda: wr.fact("f", wait="-1 s"), e.BadDuration, ["'-1 s'"]),
    "no patterns": (lambda: wr.Rule(when={}), e.BadRule, ["when={}"]),
    "a pattern of text": (lambda: wr.Rule(when={"a": "a"}), e.BadRule, ["when['a']='a'", "wr.event"]),  # type: ignore[dict-item]
    "a binding with a dot": (lambda: wr.Rule(when={"a.b": E("a")}), e.BadRule, ["'a.b'"]),
    "then of text": (lambda: wr.Rule(when={"a": E("a")}, then={"x": "a.x"}), e.BadRule, ["then['x']", "wr.lit('a.x')"]),  # type: ignore[dict-item]
    "then as a list": (lambda: wr.Rule(when={"a": E("a")}, then=["x"]), e.BadRule, ["then=['x']"]),  # type: ignore[arg-type]
    "then of ours": (lambda: wr.Rule(when={"a": E("a")}, then={"__x": wr.lit(1)}), e.BadRule, ["'__x'"]),
    "a negative delay": (lambda: wr.Rule(when={"a": E("a")}, delay="-1 s"), e.BadDuration, ["'-1 s'"]),
    "no rules": (lambda: rules(rules={}), e.BadRule, ["rules={}"]),
    "a rule without a name": (lambda: rules(rules={" ": wr.Rule(when={"a": E("a")})}), e.BadRule, ["' '"]),
    "a rule of patterns": (lambda: rules(rules={"x": {"a": E("a")}}), e.BadRule, ["'x'", "wr.Rule(when="]),
    "no inputs": (lambda: rule(a=E("a"))(inputs=[]), e.ConfigurationError, ["inputs=[]"]),
    "an input of text": (lambda: rule(a=E("a"))(inputs=["a"]), e.ConfigurationError, ["'a' of inputs="]),
    "an input twice": (lambda: rule(a=E("a"))(inputs=[*KEPT, KEPT[0]]), e.ConfigurationError, ["['a', 'b', 'a']"]),
    "a window of an input": (
        lambda: rule(a=E("a"))(inputs=[wr.Input("a", event_time="t", window=wr.sliding("1 s"))]),
        e.ConfigurationError, ["is for joins"],
    ),
    "a static input": (
        lambda: rule(a=E("a"))(inputs=[wr.Input("a", event_time="t", static=True)]),
        e.ConfigurationError, ["wr.Table('a', key=...)"],
    ),
    "keys of an input": (
        lambda: rule(a=E("a"))(by="k", inputs=[wr.Input("a", event_time="t", by=("k", "l"))]),
        e.ConfigurationError, ["('k', 'l')", "as many columns"],
    ),
    "two kinds of watermark": (
        lambda: rule(a=E("a"))(inputs=[KEPT[0], wr.Input("b", event_time="t", watermark=wr.explicit())]),
        e.BadWatermark, ["wr.explicit()", "all of them"],
    ),
    "by twice": (lambda: rule(a=E("a"))(by=("k", "k")), e.ConfigurationError, ["('k', 'k')", "once"]),
    "by of ours": (lambda: rule(a=E("a"))(by="rule"), e.ReservedColumn, ["'rule'", "rename"]),
    "no mode": (lambda: rule(a=E("a"))(mode="pseudo"), e.ConfigurationError, ["'pseudo'", "'cloud'"]),
    "no null keys": (lambda: rule(a=E("a"))(null_keys="drop"), e.ConfigurationError, ["'drop'"]),
    "negative lateness": (lambda: rule(a=E("a"))(allowed_lateness="-1 s"), e.BadDuration, ["'-1 s'"]),
    "a trigger of a match": (
        lambda: rule(a=E("a"))(emit=wr.Emit(early=wr.every(3))), e.BadTrigger, ["wr.Emit.append()", "mode='retracting'"],
    ),
    "an unknown input": (rule(a=E("c")), e.BadRule, ["rule 'x', 'a'", "'c'", "['a', 'b', 'f']"]),
    "an event of a table": (rule(a=E("f")), e.BadRule, ["a wr.Table", "wr.fact"]),
    "a fact of an input": (rule(a=wr.fact("a")), e.BadRule, ["a wr.Input", "wr.event"]),
    "facts alone": (rule(f=wr.fact("f")), e.BadRule, ["no event pattern", "frame="]),
    "an unknown binding": (rule(a=E("a", where=wr.col("z.x") > 1)), e.BadRule, ["'z'", "['a']"]),
    "an unknown binding in time": (rule(a=E("a", time=wr.after("z"))), e.BadRule, ["'z'", "['a']"]),
    "an unknown binding in then": (
        lambda: rules(rules={"x": wr.Rule(when={"a": E("a")}, then={"n": wr.col("z.x")})}), e.BadRule, ["'z'", "then['n']"],
    ),
    "then of an absence": (
        lambda: rules(rules={"x": wr.Rule(when={"a": E("a"), "no": A("b", time=SOON)}, then={"n": wr.col("no.x")})}),
        e.BadRule, ["'no' is an absence"],
    ),
    "then of a column of every row": (
        lambda: rules(rules={"x": wr.Rule(when={"a": E("a")}, then={"rule": wr.lit(1)})}), e.ReservedColumn, ["then['rule']"],
    ),
    "near an absence": (rule(a=E("a"), no=A("b", time=SOON), c=E("b", time=wr.after("no"))), e.BadRule, ["'no'", "absence"]),
    "near itself": (rule(a=E("a", time=wr.after("a"))), e.BadRule, ["itself"]),
    "near a fact without time": (rule(a=E("a", time=wr.after("f")), f=wr.fact("f")), e.BadRule, ["'f', which has no time"]),
    "a fact without time near": (rule(a=E("a"), f=wr.fact("f", time=SOON)), e.BadRule, ["event_time=", "this='since'"]),
    "frame and event": (
        rule(a=E("a"), r=wr.accumulate("b", agg={"n": wr.count()}, frame=3)), e.BadRule, ["'r' has frame=", "'a' is an event"],
    ),
    "a contradiction": (
        rule(a=E("a"), b=E("b", time=[wr.after("a", "10 seconds"), wr.before("a")])),
        e.BadRule, ["'x' cannot be true", "b after a 10 seconds", "b before a"],
    ),
    "a contradiction of three": (
        rule(a=E("a"), b=E("b", time=wr.after("a", 0, "1 s")), c=E("a", time=[wr.after("b"), wr.before("a", 0, "1 day")])),
        e.BadRule, ["cannot be true", "c before a"],
    ),
    "no bound": (
        rule(a=E("a"), b=E("b", time=wr.after("a"))), e.BadRule, ["input 'a'", "kept for good as 'a'", "'b'", "expires="],
    ),
    "no bound of an absence": (rule(a=E("a"), no=A("b")), e.BadRule, ["input 'b'", "kept for good as 'no'", "'a'"]),
    "no bound but at least": (
        lambda: rule(a=E("a"), b=E("b", time=wr.after("a")))(
            inputs=[wr.Input(name, event_time="t", expires=wr.at_least("1 hour")) for name in "ab"]
        ),
        e.BadRule, ["wr.at_least('1 hour')", "wr.otherwise"],
    ),
    "a delay that is over too early": (
        rule(delay="5 s", a=E("a"), no=A("b", time=SOON)), e.BadRule, ["delay='5 seconds'", "'10 seconds' or more"],
    ),
    "a frame in a cloud": (
        lambda: rule(r=wr.accumulate("b", agg={"n": wr.count()}, frame=3))(mode="cloud"), e.BadRule, ["mode='stream'"],
    ),
    "a delay in a cloud": (lambda: rule(delay="5 s", a=E("a"))(mode="cloud"), e.BadRule, ["delay=", "mode='stream'"]),
    "an expiry in a cloud": (lambda: rule(a=E("a"))(mode="cloud", inputs=KEPT), e.BadRule, ["'1 hour'", "leave it out"]),
    "two ends": (
        lambda: wr.Input("a", event_time="t", end="e", start="s"), e.ConfigurationError, ["start='s', end='e'", "one way"],
    ),
    "constants of two types": (
        lambda: wr.Rules(
            by="k", inputs=[wr.Input("a", event_time="t")],
            rules={n: wr.Rule(when={"x": wr.event("a")}, then={"v": wr.lit(v)}) for n, v in (("r", 1), ("s", "one"))},
        ),
        e.BadRule, ["'s'", "then['v']", "string", "int64", "'r'", "rename"],
    ),
    "a unit of nothing": (lambda: wr.Input("a", event_time="t", duration_unit="ms"), e.ConfigurationError, ["duration="]),
    "no unit": (
        lambda: wr.Input("a", event_time="t", duration="d", duration_unit="min"), e.ConfigurationError, ["'min'", "'ms'"],  # type: ignore[arg-type]
    ),
    "the longest point": (lambda: wr.Input("a", event_time="t", longest="1 s"), e.ConfigurationError, ["points"]),
    "longest of nothing": (lambda: wr.Input("a", event_time="t", end="e", longest="0 s"), e.BadDuration, ["'0 s'"]),
    "a negative expiry": (lambda: wr.Input("a", event_time="t", expires="-1 s"), e.BadDuration, ["'-1 s'"]),
    "deleted without a key": (lambda: wr.Table("f", deleted="gone"), e.ConfigurationError, ["'gone'", "key="]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_with_names_and_remedy(name: str) -> None:
    build, error, words = REFUSED[name]
    with pytest.raises(error) as raised:
        build()
    assert [word for word in words if word not in str(raised.value)] == []


INTERVALS = [
    wr.Input("a", event_time="t", duration="d"),
    wr.Input("a", event_time="t", end="e", longest="1 hour"),
    wr.Input("a", event_time="t", expires="1 hour"),
    wr.Input("a", event_time=None),
    wr.Table("a", key="k"),
]
OTHERS: dict[str, Callable[[Any], Any]] = {
    "wr.Join": lambda interval: wr.Join(
        left=interval, right=wr.Input("z", event_time="t"), on="k", within=("0 s", "1 s")
    ),
    "wr.CoGroup": lambda interval: wr.CoGroup(
        inputs=[interval], window=wr.tumbling("1 s"), agg={"n": wr.count()}, retention="1 s"
    ),
    "wr.Over": lambda interval: wr.Over(
        event_time="t", input="z", anchors=interval, frame=("-1 s", 0), agg={"n": wr.count()}
    ),
}


@pytest.mark.parametrize("operator", OTHERS)
def test_other_operators_refuse_what_rules_alone_take(operator: str) -> None:
    for interval in INTERVALS:
        with pytest.raises(e.ConfigurationError, match=f"{operator} has .*only wr.Rules"):
            OTHERS[operator](interval)


WARNED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "an expiry that loses matches": (
        lambda: rule(a=E("a"), b=E("b", time=SOON))(
            inputs=[wr.Input("a", event_time="t", expires="5 s"), wr.Input("b", event_time="t")]
        ),
        ["'x'", "'a'", "5 seconds", "10 seconds", "wr.at_least"],
    ),
    "a heartbeat that suppresses itself": (
        rule(a=E("a"), no=A("a", time=SOON)),
        ["suppresses itself", "other_than='a'"],
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_probably_not_meant_is_warned_of(name: str) -> None:
    build, words = WARNED[name]
    with pytest.warns(UserWarning) as caught:
        build()
    assert [word for word in words if word not in str(caught[0].message)] == []


def test_what_is_meant_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rule(a=E("a"), no=A("a", time=SOON, other_than="a"))()
        rule(a=E("a"), no=A("a", time=wr.after("a", "1 us", "10 s")))()
        rule(a=E("a"), b=E("b", time=SOON))(
            inputs=[wr.Input(name, event_time="t", expires=wr.at_least("5 s")) for name in "ab"]
        )
        rule(a=E("a"), b=E("b", time=wr.after("a")))(
            inputs=[wr.Input(name, event_time="t", expires=wr.otherwise("5 s")) for name in "ab"]
        )
        rule(a=E("a"), no=A("b"))(
            inputs=[wr.Input(name, event_time="t", expires=wr.forever) for name in "ab"]
        )
        rule(delay="10 s", a=E("a"), no=A("b", time=SOON))()


def test_a_definition_is_a_value() -> None:
    one, other = (rule(a=E("a"), b=E("b", time=wr.after("a", 0, n)))() for n in ("1 s", "2 s"))
    again = rule(a=E("a"), b=E("b", time=wr.after("a", 0, "1 s")))()
    assert one == again == copy.deepcopy(one) == pickle.loads(pickle.dumps(one))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    plain = rules(rules={"x": wr.Rule(when={"a": E("a")})})
    columns = rules(rules={"x": wr.Rule(when={"a": E("a")}, then={"n": wr.col("a.n")})})
    assert plain != columns and plain.fingerprint == columns.fingerprint


def test_reversed_bounds_are_turned_round() -> None:
    for made in (wr.after, wr.before):
        assert made("b", "-2 minutes", "-3m30s") == made("b", "-3m30s", "-2 minutes")
        assert made("b", 0, -wr.forever) == made("b", -wr.forever, 0)


PLAN = """
two countries  by card
  a       payments  kept 1 hour
  b       payments  kept 0 seconds
  flight  flights   kept 1 hour    range [a - 1 hour, a + 1 hour] and [b - 1 hour, b]; decided at b
  c       cards     current rows, waited for 1 minute
  times b - a in [0 seconds, 1 hour]
  joins new a: b in [a, a + 1 hour]
  joins new b: a in [b - 1 hour, b]
no water  by card
  f   payments  not kept
  no  flights   kept 10 seconds    range [f, f + 10 seconds]; decided at f + 10 seconds
expiry  payments 1 hour, flights 1 hour; allowed lateness 1 minute is added to each
"""


def test_a_plan_says_what_is_kept_read_and_decided() -> None:
    planned = wr.Rules(
        by="card",
        allowed_lateness="1 minute",
        inputs=[
            wr.Input("payments", event_time="at"),
            wr.Input("flights", event_time="at"),
            wr.Table("cards", key="card"),
        ],
        rules={
            "two countries": wr.Rule(
                when={
                    "a": E("payments"),
                    "b": E("payments", other_than="a", time=wr.after("a", 0, "1 hour")),
                    "flight": A(
                        "flights", time=[wr.after("a", "-1 hour", "1 hour"), wr.before("b", 0, "1 hour")]
                    ),
                    "c": wr.fact("cards", wait="1 minute"),
                }
            ),
            "no water": wr.Rule(
                when={"f": E("payments"), "no": A("flights", time=wr.after("f", 0, "10 seconds"))}
            ),
        },
    )
    assert planned.plan() == PLAN.strip()


def test_a_plan_of_a_cloud_has_no_times() -> None:
    assert (
        rule(a=E("a"), no=A("b", time=SOON))(mode="cloud")
        .plan()
        .splitlines()[2]
        .endswith("at the end of the step")
    )


# -- public names -------------------------------------------------------------------------------------------------------


def test_no_public_name_has_two_meanings() -> None:
    """A name is in one group of the index, and no function of it is another one's under a name of both modules."""
    listed = [name for names in api.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(set(listed))
    public = {
        name: value
        for name, value in vars(wr).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    meanings: dict[int, set[str]] = {}
    for name, value in public.items():
        meanings.setdefault(id(value), set()).add(name)
    assert [names for names in meanings.values() if len(names) > 1] == []
    triggers = {"every", "every_batch", "delay", "when", "any_of", "all_of", "past_end", "never"}
    assert triggers <= public.keys() and not triggers & set(THIRTEEN)
    for name in THIRTEEN:
        assert repr(public[name]("b")) == f"wr.{name}('b')"


def test_documents_use_no_temporal_operator_as_a_trigger() -> None:
    root = Path(__file__).parents[3]
    pages = [
        p
        for folder in ("docs", "examples", "benchmarks", "testing")
        for p in (root / folder).rglob("*")
        if p.is_file()
    ]
    wrong = [f"{kind}=wr.{name}(" for kind in ("early", "late") for name in THIRTEEN]
    texts = {p: p.read_text() for p in [*pages, root / "README.md"] if p.suffix in (".md", ".py")}
    assert [(p.name, w) for p, text in texts.items() for w in wrong if w in text] == []
    assert len(texts) > 50


def test_rows_that_go_with_every_partition_are_copied_to_every_shard() -> None:
    when = {"a": E("a"), "f": wr.fact("f")}
    inputs = [wr.Input("a", event_time="t"), wr.Table("f", key="k", by=())]
    everywhere = wr.Rules(by="k", inputs=inputs, rules={"x": wr.Rule(when=when)})
    assert everywhere.one_shard() is None and everywhere.copied == {"f"}
    window = {"window": wr.tumbling("1 s"), "retention": "1 s", "agg": {"n": wr.count()}}
    chain = everywhere.then(wr.Aggregate(by="k", event_time="match_time", **window))
    assert "every row of table 'f' goes with all keys" in str(chain.one_shard())
    assert rules(by="k", rules={"x": wr.Rule(when=when)}).one_shard() is None
    assert "by=()" in str(rules(rules={"x": wr.Rule(when=when)}).one_shard())
