"""Definitions are values: they print as what builds them, compare, pickle, refuse with both values and a remedy."""

import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.core.raises import raises_in
from windrow.core import aggregations, check, emit, policy, positions, windows
from windrow.core import errors as e
from windrow.core.policy import UNBOUNDED_US
from windrow.operators.aggregate import definition


@wr.aggregate_function(name="spread", version=2, returns=pa.float64())
def spread(messages: pa.Table) -> float:
    return float(max(messages["x"].to_pylist()) - min(messages["x"].to_pylist()))


@wr.aggregate_function(name="product", returns=pa.int64())
class Product:
    def initial(self) -> int:
        return 1

    def add(self, state: int, value: int) -> int:
        return state * value

    def merge(self, left: int, right: int) -> int:
        return left * right

    def finish(self, state: int) -> int:
        return state


def define(**changed: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": ("origin", "carrier"),
        "event_time": "departure",
        "window": wr.tumbling("1 hour"),
        "agg": {"flights": wr.count(), "delay": wr.avg("dep_delay")},
        "retention": "7 days",
        "watermark": "2 hours",
    }
    return wr.Aggregate(**(options | changed))


def last_seen(marks: dict[tuple[str, int], int], now_us: int) -> int | None:
    return max(marks.values(), default=None)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one key": {"by": "origin"},
    "no key": {"by": ()},
    "event time": {"event_time": "arrival"},
    "hopping": {"window": wr.hopping("1 hour", "5 minutes")},
    "calendar": {"window": wr.calendar("month", time_zone="Europe/Berlin")},
    "tuples": {"window": wr.tuples(10), "retention": wr.Retain(windows=5)},
    "global": {"window": wr.global_window(), "retention": wr.forever},
    "percentile": {"agg": {"p": wr.percentile("x", 0.95)}},
    "sketches": {
        "agg": {"p": wr.approx_percentile("x", 0.5, k=100), "d": wr.approx_count_distinct("x", lg_k=10)}
    },
    "ordered": {
        "agg": {
            "l": wr.collect_list("x", order="event_time"),
            "m": wr.max_by("x", "y"),
            "t": wr.top_k("x", 3),
        }
    },
    "population": {
        "agg": {"v": wr.variance("x", ddof=0), "s": wr.stddev("x"), "w": wr.weighted_avg("x", "y")}
    },
    "retain": {"retention": wr.Retain("1 day", windows=3, messages=1000, per="job")},
    "forever": {"retention": wr.forever},
    "fixed": {"watermark": wr.fixed("1 minute")},
    "explicit": {"watermark": wr.explicit()},
    "idle": {"watermark": wr.bounded("1 s", idle="1 minute", partitions=[("flights", 0), ("flights", 1)])},
    "lateness": {"allowed_lateness": "1 day"},
    "early": {"emit": wr.Emit(early=wr.every("10 seconds"), late=wr.every(5))},
    "append": {"emit": wr.Emit.append()},
    "final": {"emit": wr.Emit.final(), "allowed_lateness": "1 hour"},
    "final, retracting": {"emit": wr.Emit.final(mode="retracting"), "allowed_lateness": "1 hour"},
    "no late panes": {"emit": wr.Emit(late=wr.never), "allowed_lateness": "1 hour"},
    "update": {"emit": wr.Emit.update()},
    "retracting": {"emit": wr.Emit(mode="retracting", early=wr.every_batch, late=wr.never)},
    "discarding": {"emit": wr.Emit(mode="discarding")},
    "other emission": {"emit": wr.Emit(on_time=False, only_if_changed=True, closing_pane=True)},
    "name": {"name": "delays"},
    "null keys": {"null_keys": "dead_letter"},
    "time zone": {"time_zone": "America/New_York"},
    "seconds": {"event_time_unit": "s"},
    "max ahead": {"max_ahead": "2 days"},
    "any time ahead": {"max_ahead": wr.forever},
    "letters": {"dead_letter_retention": "2 days"},
    "all letters": {"dead_letter_retention": wr.forever},
    "small": {"scale": "small"},
    "decimal": {"integer_overflow": "decimal"},
    "positions": {"positions": wr.positions("offset", partition="part", source="topic")},
    "ids": {"ids": wr.ids("order_id")},
    "several ids": {"ids": wr.ids("order", "line")},
    "dead letter limit": {"dead_letter_limit": 10},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_definition_prints_as_the_expression_that_builds_it(name: str) -> None:
    made = define(**VARIANTS[name])
    again = eval(repr(made), {"wr": wr})
    assert again == made
    assert repr(again) == repr(made)
    assert again.fingerprint == made.fingerprint


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_definitions_are_equal_hash_alike_and_differ_from_all_others(name: str) -> None:
    made = define(**VARIANTS[name])
    assert made == define(**VARIANTS[name]) and hash(made) == hash(define(**VARIANTS[name]))
    assert [other for other in VARIANTS if define(**VARIANTS[other]) == made] == [name]
    assert made != name


@pytest.mark.parametrize("name", VARIANTS)
def test_a_definition_survives_pickle(name: str) -> None:
    made = define(**VARIANTS[name])
    again = pickle.loads(pickle.dumps(made))
    assert again == made and type(again) is wr.Aggregate and again.fingerprint == made.fingerprint
    with pytest.raises(TypeError):
        again.agg["more"] = wr.count()


def test_a_definition_is_frozen() -> None:
    made = define()
    with pytest.raises(AttributeError):
        made.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        made.agg["more"] = wr.count()  # type: ignore[index]


def test_the_dict_that_was_given_may_change_afterwards() -> None:
    agg = {"n": wr.count()}
    made = define(agg=agg)
    agg["more"] = wr.sum("x")
    assert list(made.agg) == ["n"]


def test_a_function_of_the_user_s_prints_by_name_and_is_distinguished_by_version() -> None:
    made = define(agg={"s": spread("x"), "p": Product("x")})
    assert "agg={'s': spread('x'), 'p': product('x')}" in repr(made)
    assert eval(repr(made), {"wr": wr, "spread": spread, "product": Product}) == made
    newer = wr.aggregate_function(name="spread", version=3, returns=pa.float64())(spread.body)
    assert define(agg={"s": newer("x")}) != define(agg={"s": spread("x")})
    assert define(agg={"s": newer("x")}).fingerprint != define(agg={"s": spread("x")}).fingerprint


def test_the_body_of_a_function_is_no_part_of_its_identity() -> None:
    other = wr.aggregate_function(name="spread", version=2, returns=pa.float64())(lambda messages: 0.0)
    assert define(agg={"s": other("x")}).fingerprint == define(agg={"s": spread("x")}).fingerprint


def test_a_watermark_of_the_user_s_is_distinguished_by_name() -> None:
    made = define(watermark=wr.custom(last_seen, name="last seen"))
    assert "wr.custom(name='last seen')" in repr(made)
    assert made == define(watermark=wr.custom(lambda marks, now: None, name="last seen"))
    assert made != define(watermark=wr.custom(last_seen, name="other"))
    assert pickle.loads(pickle.dumps(made)) == made


def test_filters_are_part_of_the_value() -> None:
    late = wr.count().where(wr.col("x") > 15)
    assert late == wr.count().where(wr.col("x") > 15) and hash(late) == hash(
        wr.count().where(wr.col("x") > 15)
    )
    assert late != wr.count().where(wr.col("x") > 16)
    assert late != wr.count()
    both = late.where(wr.col("y") < 3)
    assert both == wr.count().where((wr.col("x") > 15) & (wr.col("y") < 3))
    assert pickle.loads(pickle.dumps(define(agg={"n": both}))) == define(agg={"n": both})


# -- what shapes state ----------------------------------------------------------------------------------------------

SHAPES_STATE = {
    "one key", "no key", "event time", "hopping", "calendar", "tuples", "global", "percentile", "sketches",
    "ordered", "population", "discarding", "null keys", "time zone", "seconds", "small", "ids", "several ids",
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_the_fingerprint_changes_exactly_with_what_shapes_state(name: str) -> None:
    changed = define(**VARIANTS[name]).fingerprint != define().fingerprint
    assert changed is (name in SHAPES_STATE)


@pytest.mark.parametrize(
    "agg",
    [
        {"flights": wr.count(), "delay": wr.max("dep_delay")},
        {"flights": wr.count(), "delay": wr.avg("arr_delay")},
        {"flights": wr.count(), "other": wr.avg("dep_delay")},
        {"flights": wr.count()},
        {"flights": wr.count().where(wr.col("x") > 1), "delay": wr.avg("dep_delay")},
        {"flights": wr.count(), "delay": wr.avg(wr.col("dep_delay") * 2)},
    ],
)
def test_the_fingerprint_changes_with_every_part_of_an_aggregation(agg: dict[str, Any]) -> None:
    assert define(agg=agg).fingerprint != define().fingerprint


def test_the_order_in_which_aggregations_are_named_shapes_nothing() -> None:
    turned = {"delay": wr.avg("dep_delay"), "flights": wr.count()}
    assert define(agg=turned).fingerprint == define().fingerprint


def test_fingerprints_are_the_same_in_every_process_and_release() -> None:
    # Written down: if this changes, every job in the world refuses its state. Say so in CHANGELOG.md.
    assert define().fingerprint == "0a95a5b5d2a12b69c2ba784bbe117b4f"


# -- defaults -------------------------------------------------------------------------------------------------------


def test_allowed_lateness_is_the_retention_unless_it_is_given() -> None:
    assert define().allowed_lateness_us == 7 * 86_400_000_000
    assert define(retention=wr.forever).allowed_lateness_us == UNBOUNDED_US
    assert define(allowed_lateness="1 hour").allowed_lateness_us == 3_600_000_000
    assert define(emit=wr.Emit.append()).allowed_lateness_us == 0
    assert define(emit=wr.Emit.final()).allowed_lateness_us == 7 * 86_400_000_000
    assert "emit=wr.Emit.final()" in repr(define(emit=wr.Emit.final()))


def test_where_no_pane_emits_late_messages_the_default_lateness_is_zero() -> None:
    assert define(emit=wr.Emit(late=wr.never)).allowed_lateness_us == 0
    assert define(emit=wr.Emit(late=wr.never), allowed_lateness="1 hour").allowed_lateness_us == 3_600_000_000
    assert define(emit=wr.Emit(late=wr.never, closing_pane=True)).allowed_lateness_us == 7 * 86_400_000_000


def test_a_message_may_lie_a_day_ahead_of_now_where_messages_move_the_watermark() -> None:
    assert define().max_ahead_us == define(max_ahead="1 day").max_ahead_us == 86_400_000_000
    assert define(max_ahead=wr.forever).max_ahead_us is None
    assert (
        define(watermark=wr.fixed("1 s")).max_ahead_us is define(watermark=wr.explicit()).max_ahead_us is None
    )
    assert "max_ahead" not in repr(define()) and "max_ahead=wr.forever" in repr(define(max_ahead=wr.forever))
    assert wr.Input("i", event_time="t").max_ahead_us == 86_400_000_000
    assert wr.Input("i", event_time="t", static=True).max_ahead_us is None


def test_durations_may_be_timedeltas() -> None:
    assert define(retention=timedelta(days=7), watermark=timedelta(hours=2)) == define()


def test_only_percentiles_and_functions_of_the_messages_keep_messages() -> None:
    assert define(agg={"m": wr.median("x")}).full_state
    assert define(agg={"m": wr.percentile("x", 0.5)}).full_state
    assert define(agg={"m": spread("x")}).full_state
    assert not define(agg={"m": Product("x")}).full_state
    assert not define().full_state


@pytest.mark.parametrize("emit", [wr.Emit.append(), wr.Emit.update()])
@pytest.mark.parametrize(
    "window", [wr.tumbling("1 hour"), wr.session("5 minutes"), wr.calendar("day", time_zone="UTC")]
)
def test_what_takes_nothing_late_needs_no_retention(emit: wr.Emit, window: Any) -> None:
    alone = define(emit=emit, window=window, retention=None)
    assert (alone.retention.time_us, alone.allowed_lateness_us) == (0, 0)
    assert alone == define(emit=emit, window=window, retention="0 seconds") == eval(repr(alone), {"wr": wr})
    for unbounded in ({"window": wr.global_window()}, TUPLES):
        with pytest.raises(e.RetentionMissing):
            define(emit=emit, retention=None, **unbounded)


# -- refusals -------------------------------------------------------------------------------------------------------

TUPLES = {"window": wr.tuples(3)}
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "a key twice": (lambda: define(by=("a", "a")), e.ConfigurationError, ["('a', 'a')", "twice", "once"]),
    "no window": (lambda: define(window="1 hour"), e.BadWindow, ["'1 hour'", "wr.tumbling"]),
    "a name with a slash": (lambda: define(name="a/b"), e.ConfigurationError, ["'a/b'", "1 to 64 letters"]),
    "no aggregation": (lambda: define(agg={}), e.BadAggregate, ["empty", "wr.count()"]),
    "not an aggregation": (lambda: define(agg={"n": len}), e.BadAggregate, ["'n'", repr(len), "wr.count()"]),
    "a key called window": (lambda: define(by="window"), e.ReservedColumn, ["'window'", "rename"]),
    "an aggregate called pane": (lambda: define(agg={"pane": wr.count()}), e.ReservedColumn, ["'pane'", "rename"]),
    "an aggregate called commit": (lambda: define(agg={"commit": wr.count()}), e.ReservedColumn, ["'commit'"]),
    "key and aggregate": (lambda: define(agg={"origin": wr.count()}), e.ReservedColumn, ["'origin'", "rename"]),
    "no retention": (lambda: define(retention=None), e.RetentionMissing, ["tumbling('1 hour')", "'7 days'", "wr.forever"]),
    "no retention by count": (
        lambda: define(**TUPLES, retention=None), e.RetentionMissing, ["wr.tuples(3)", "windows=100", "wr.forever"],
    ),
    "tuples by time": (
        lambda: define(**TUPLES, retention="1 day"), e.RetentionMissing, ["wr.tuples(3)", "'1 day'", "windows=100"],
    ),
    "global by time": (
        lambda: define(window=wr.global_window()), e.RetentionMissing, ["wr.global_window()", "wr.forever"],
    ),
    "no retention, global": (
        lambda: define(window=wr.global_window(), retention=None),
        e.RetentionMissing, ["wr.global_window()", "never ends", "retention=wr.forever"],
    ),
    "retention below lateness": (
        lambda: define(retention="1 hour", allowed_lateness="1 day"),
        e.RetentionTooShort, ["'1 hour'", "'1 day'", "retention='1 day'"],
    ),
    "lateness in Spark's modes": (
        lambda: define(emit=wr.Emit.append(), allowed_lateness="1 day"),
        e.RetentionTooShort, ["'1 day'", "wr.Emit.append()", "leave allowed_lateness out"],
    ),
    "negative lateness": (
        lambda: define(allowed_lateness="-1 day"), e.BadDuration, ["'-1 day'", "negative", "'0 seconds' or more"],
    ),
    "negative retention": (
        lambda: define(retention="-1 day"), e.BadDuration, ["'-1 day'", "negative", "'0 seconds' or more, or wr.forever"],
    ),
    "retention of no windows": (lambda: wr.Retain(windows=0), e.ConfigurationError, ["0 windows", "1 or more"]),
    "retention of no messages": (lambda: wr.Retain(messages=-1), e.ConfigurationError, ["-1 messages", "1 or more"]),
    "retention of nothing": (lambda: wr.Retain(), e.RetentionMissing, ["limits nothing", "wr.Retain('7 days')", "wr.forever"]),
    "retention per what": (lambda: wr.Retain(windows=1, per="shard"), e.ConfigurationError, ["'shard'", "'key' or 'job'"]),
    "negative letters": (lambda: define(dead_letter_retention="-1 s"), e.BadDuration, ["'-1 s'", "wr.forever"]),
    "negative max_ahead": (lambda: define(max_ahead="-1 s"), e.BadDuration, ["'-1 s'", "wr.forever"]),
    "negative delay": (lambda: define(watermark="-1 s"), e.BadWatermark, ["'-1 s'", "'0 seconds' or more"]),
    "idle at once": (
        lambda: wr.bounded("1 s", idle="0 seconds"), e.BadWatermark, ["'1 s'", "'0 seconds'", "never move", "'5 minutes'"],
    ),
    "idle before": (lambda: wr.bounded(idle="-5 s"), e.BadWatermark, ["'-5 s'", "never move", "leave it out"]),
    "negative delay behind now": (lambda: wr.fixed("-1 s"), e.BadWatermark, ["'-1 s'", "'0 seconds' or more"]),
    "null keys": (lambda: define(null_keys="drop"), e.ConfigurationError, ["'drop'", "'group' or 'dead_letter'"]),
    "overflow": (lambda: define(integer_overflow="wrap"), e.ConfigurationError, ["'wrap'", "'decimal'"]),
    "unit": (lambda: define(event_time_unit="minutes"), e.ConfigurationError, ["'minutes'", "'s', 'ms', 'us', 'ns'"]),
    "time zone": (lambda: define(time_zone="Mars"), e.ConfigurationError, ["'Mars'", "IANA", "'Europe/Berlin'"]),
    "scale": (lambda: define(scale="huge"), e.ConfigurationError, ["'huge'", "'small' or 'large'"]),
    "no ids": (lambda: wr.ids(), e.ConfigurationError, ["()", "wr.ids('order_id')"]),
    "an id twice": (lambda: wr.ids("a", "a"), e.ConfigurationError, ["('a', 'a')", "once"]),
    "ids as a number": (lambda: define(ids=7), e.ConfigurationError, ["ids=7", "use 'order_id'"]),
    "no option": (lambda: define(watermrk="1 s"), e.UnknownOption, ["Aggregate", "'watermrk'", "did you mean 'watermark'?"]),
    "by place": (lambda: wr.Aggregate("k", "t"), e.UnknownOption, ["given 2 arguments by place, and takes 0", "by=..., "]),
    "no such option at all": (lambda: define(xyzzy=1), e.UnknownOption, ["'xyzzy'", "there are by, event_time, window"]),
    "a trigger of True": (lambda: wr.every(True), e.BadTrigger, ["True", "'10 seconds'"]),
    "a trigger of no messages": (lambda: wr.every(0), e.BadTrigger, ["0", "1 or more"]),
    "a trigger of no time": (lambda: wr.every("0 s"), e.BadTrigger, ["'0 s'", "wr.every('10 seconds')"]),
    "a delay of no time": (lambda: wr.delay("0 s"), e.BadTrigger, ["'0 s'", "wr.delay('10 seconds')"]),
    "a temporal operator for a trigger": (
        lambda: wr.Emit(early=wr.after("b", 0, "10 seconds")), e.BadTrigger, ["wr.after", "wr.delay('10 seconds')"],
    ),
    "a delay as a temporal operator": (lambda: wr.after("10 s"), e.BadRelation, ["'10 s'", "wr.delay('10 seconds')"]),
    "always of a count": (lambda: wr.every(3, always=True), e.BadTrigger, ["wr.every(3, always=True)", "use a duration"]),
    "event time of a count": (lambda: wr.every(3, event_time=True), e.BadTrigger, ["3, event_time=True", "use a duration"]),
    "a period of event time for windows of messages": (
        lambda: define(**TUPLES, retention=wr.forever, emit=wr.Emit(early=wr.every("1 s", event_time=True))),
        e.BadTrigger, ["event_time=True", "no time of their own"],
    ),
    "the end of a window before it": (
        lambda: wr.Emit(early=wr.any_of(wr.past_end, wr.every(3))), e.BadTrigger, ["never true", "late=", "on_time=True"],
    ),
    "the end of a session": (
        lambda: define(window=wr.session("1 s"), emit=wr.Emit(late=wr.past_end)), e.BadTrigger, ["wr.past_end", "wr.tumbling"],
    ),
    "the end of windows of messages": (
        lambda: define(**TUPLES, retention=wr.forever, emit=wr.Emit(late=wr.past_end)), e.BadTrigger, ["no time"],
    ),
    "one of one": (lambda: wr.any_of(wr.every(3)), e.BadTrigger, ["wr.any_of(wr.every(3)):", "two triggers or more"]),
    "any of never": (lambda: wr.any_of(wr.every(3), wr.never), e.BadTrigger, ["wr.never", "leave it out"]),
    "all of always": (lambda: wr.all_of(wr.every(3), wr.every("1 s", always=True)), e.BadTrigger, ["does not", "wr.any_of"]),
    "when by text": (lambda: wr.when("n >= 3"), e.BadTrigger, ["'n >= 3'", "wr.col('n') >= 3"]),  # type: ignore[arg-type]
    "when of another column": (
        lambda: define(emit=wr.Emit(early=wr.when(wr.col("nowhere") > 3))), e.BadTrigger, ["nowhere", "its columns are"],
    ),
    "always if changed": (
        lambda: wr.Emit(early=wr.every("1 s", always=True), only_if_changed=True), e.BadTrigger,
        ["always=True", "only_if_changed"],
    ),
    "a delay of tuples": (
        lambda: define(window=wr.tuples(3), retention=wr.forever, emit=wr.Emit(early=wr.delay("1 s"))),
        e.BadTrigger, ["wr.delay('1 second')", "no time of their own"],
    ),
    "no trigger": (lambda: wr.Emit(early="10 seconds"), e.BadTrigger, ["early='10 seconds'", "wr.every('10 seconds')"]),  # type: ignore[arg-type]
    "no late trigger": (lambda: wr.Emit(late=None), e.BadTrigger, ["late=None", "wr.never"]),  # type: ignore[arg-type]
    "no mode": (lambda: wr.Emit(mode="upsert"), e.BadTrigger, ["'upsert'", "accumulating, discarding, retracting"]),
    "where of text": (lambda: wr.count().where("x > 0"), e.BadAggregate, ["'x > 0'", "wr.col('x') > 0"]),  # type: ignore[arg-type]
    "no column": (lambda: wr.sum(3), e.BadAggregate, ["3", "wr.col('x') * 2"]),  # type: ignore[arg-type]
    "count of all": (lambda: wr.count("*"), e.BadAggregate, ["count('*')", "wr.count()"]),
    "ddof": (lambda: wr.variance("x", ddof=2), e.BadAggregate, ["ddof=2", "1 for sample"]),
    "order": (lambda: wr.collect_list("x", order="size"), e.BadAggregate, ["'size'", "'position' or 'event_time'"]),
    "buckets": (lambda: wr.approx_count_distinct("x", lg_k=3), e.BadAggregate, ["lg_k=3", "4 to 21"]),
    "fraction": (lambda: wr.percentile("x", 95), e.BadAggregate, ["95", "0.95"]),
    "top none by": (lambda: wr.top_k_by("x", "y", 0), e.BadAggregate, ["top_k_by(k=0)", "1 or more"]),
    "sorted somehow": (lambda: wr.sort_list("x", descending="yes"), e.BadAggregate, ["'yes'", "True or False"]),  # type: ignore[arg-type]
    "no reduction": (lambda: wr.reduce(3, "x"), e.BadAggregate, ["reduce(3)", "two values"]),  # type: ignore[arg-type]
    "a reduction without a name": (lambda: wr.reduce(lambda a, b: a, "x"), e.BadAggregate, ["'<lambda>'", "name='product'"]),
    "top none": (lambda: wr.top_k("x", 0), e.BadAggregate, ["k=0", "1 or more"]),
    "half a class": (
        lambda: wr.aggregate_function(name="f", returns=pa.int64())(type("Half", (), {"initial": lambda s: 0})),
        e.BadAggregate, ["'f'", "Half", "add, merge, finish"],
    ),
    "an envelope of a class": (
        lambda: wr.aggregate_function(name="f", returns=pa.int64(), envelope=True)(Product.body.__class__),
        e.BadAggregate, ["'f'", "Product", "function of a table"],
    ),
    "no function": (
        lambda: wr.aggregate_function(name="f", returns=pa.int64())(3), e.BadAggregate, ["'f'", "3", "class nor a function"],
    ),
    "window size": (lambda: wr.tumbling("0 s"), e.BadWindow, ["'0 s'", "wr.tumbling('1 minute')"]),
    "window hop": (lambda: wr.hopping("1 s", "0 s"), e.BadWindow, ["'1 s'", "'0 s'", "positive"]),
    "gaps": (lambda: wr.hopping("1 s", "2 s"), e.BadWindow, ["'1 s'", "'2 s'", "gaps=True"]),
    "many windows": (lambda: wr.hopping("1 day", "8 s"), e.BadWindow, ["'1 day'", "'8 s'", "10,800", "10,000", "a larger hop"]),
    "many tuples": (lambda: wr.tuples(10_001, step=1), e.BadWindow, ["10001", "step 1", "10,001", "10,000", "a larger step"]),
    "calendar": (lambda: wr.calendar("hour", time_zone="UTC"), e.BadWindow, ["'hour'", "day, week"]),
    "calendar too long": (
        lambda: wr.calendar("10000 years", time_zone="UTC"), e.BadWindow, ["'10000 years'", "a number to 9999"],
    ),
    "calendar offset": (
        lambda: wr.calendar("day", time_zone="UTC", offset="-24 hours"), e.BadWindow, ["'-24 hours'", "less than '1 day'"],
    ),
    "calendar zone": (lambda: wr.calendar("day", time_zone="Mars"), e.BadWindow, ["'Mars'", "IANA"]),
    "week start": (lambda: wr.calendar("week", time_zone="UTC", week_start="x"), e.BadWindow, ["'x'", "monday"]),
    "sliding back": (lambda: wr.sliding("-1 s"), e.BadWindow, ["before '-1 s'", "'0 seconds' or more"]),
    "sliding edges": (lambda: wr.sliding("1 s", closed="open"), e.BadWindow, ["'open'", "'neither'"]),
    "no rows": (lambda: wr.rows(0), e.BadWindow, ["0 rows", "1 or more"]),
    "rows per what": (lambda: wr.rows(3, per="job"), e.BadWindow, ["'job'", "'input'"]),
    "a session without a gap": (
        lambda: wr.session("0 seconds"), e.BadWindow, ["'0 seconds'", "positive", "wr.session('30 minutes')"],
    ),
    "a session cut by a name": (
        lambda: wr.session("1 minute", cut="day"), e.BadWindow, ["'day'", "wr.calendar('day', time_zone='UTC')"],  # type: ignore[arg-type]
    ),
    "a session of nothing": (lambda: wr.session(), e.BadWindow, ["gap=None", "messages=None", "wr.session(messages=100)"]),  # type: ignore[call-overload]
    "a session of a gap and messages": (
        lambda: wr.session("1 h", messages=3), e.BadWindow, ["'1 h'", "messages=3", "messages alone"],  # type: ignore[call-overload]
    ),
    "one gap of sessions with their own": (lambda: wr.session(wr.col("x")).gap_us, e.BadWindow, ["wr.session(x)", "one gap"]),
    "windows of nobody": (
        lambda: define(window=wr.inherited()).check_begins(), e.BadWindow, ["wr.inherited()", "in a chain"],
    ),
    "a session of less than no messages": (lambda: wr.session(messages=-1), e.BadWindow, ["-1", "0 or more"]),
    "sessions by messages without a key": (
        lambda: define(by=(), window=wr.session(messages=3), retention=wr.forever), e.BadWindow, ["by=()", "name a key"],
    ),
    "sessions by messages, by time": (
        lambda: define(window=wr.session(messages=3), retention="1 hour"),
        e.RetentionMissing, ["wr.session(messages=3)", "'1 hour'", "per='job'"],
    ),
    "sessions by messages for how long": (
        lambda: define(window=wr.session(messages=3), retention=None), e.RetentionMissing, ["per='job'", "wr.forever"],
    ),
    "sessions of no length": (
        lambda: wr.session("1 h", max_length="0 s"), e.BadWindow, ["'0 s'", "positive", "max_length='4 hours'"],
    ),
    "a longest session without messages": (
        lambda: define(window=wr.session("1 h", max_length="4 h")), e.BadWindow, ["'4 hours'", "wr.median", "cut=wr.tumbling"],
    ),
    "a session by the name of a column": (
        lambda: wr.session("gap_s"), e.BadDuration, ["'gap_s'"],
    ),
    "a longest session by size": (
        lambda: define(
            window=wr.session("1 h", max_length="4 h"), agg={"m": wr.median("v")}, retention=wr.Retain(windows=3)
        ),
        e.BadWindow, ["max_length='4 hours'", "windows=3", "retention='7 days'"],
    ),
    "tuples of none": (lambda: wr.tuples(0), e.BadWindow, ["size 0", "positive"]),
    "half a message": (lambda: wr.tuples(2.5), e.BadWindow, ["2.5", "whole numbers", "wr.tuples(3)"]),  # type: ignore[arg-type]
    "half a step": (lambda: wr.tuples(2, step=0.5), e.BadWindow, ["0.5", "whole numbers"]),  # type: ignore[arg-type]
    "half a row": (lambda: wr.rows(2.5), e.BadWindow, ["2.5 rows", "whole number"]),  # type: ignore[arg-type]
    "a size beyond all years": (lambda: wr.tumbling(timedelta.max), e.BadDuration, ["window size", "999999999", "or less"]),
    "emit as text": (lambda: define(emit="append"), e.BadTrigger, ["emit='append'", "wr.Emit.append()"]),
    "on_time as text": (lambda: wr.Emit(on_time="no"), e.BadTrigger, ["on_time='no'", "True or False"]),  # type: ignore[arg-type]
    "a list of aggregations": (lambda: define(agg=[wr.count()]), e.BadAggregate, ["[wr.count()]", "agg={'n': wr.count()}"]),
    "an aggregation without a name": (lambda: define(agg={1: wr.count()}), e.ConfigurationError, ["{1: ", "by text"]),
    "by a number": (lambda: define(by=5), e.ConfigurationError, ["by=5", "by=('origin', 'carrier')"]),
    "by numbers": (lambda: define(by=[5]), e.ConfigurationError, ["by=[5]", "() for no key"]),
    "no event time": (lambda: define(event_time=None), e.ConfigurationError, ["event_time=None", "column"]),
    "positions as text": (lambda: define(positions="offset"), e.ConfigurationError, ["'offset'", "wr.positions('offset'"]),
    "fewer letters than none": (lambda: define(dead_letter_limit=-1), e.ConfigurationError, ["limit=-1", "0 or more"]),
    "letters as text": (lambda: define(dead_letter_limit="9"), e.ConfigurationError, ["dead_letter_limit='9'"]),
    "retention of a number": (lambda: define(retention=7), e.RetentionMissing, ["retention=7", "'7 days'"]),
    "time zone as a number": (lambda: define(time_zone=1), e.ConfigurationError, ["1", "IANA"]),
    "half a window kept": (lambda: wr.Retain(windows=1.5), e.ConfigurationError, ["1.5 windows", "whole"]),  # type: ignore[arg-type]
    "a Python type returned": (
        lambda: wr.aggregate_function(name="f", returns=int), e.BadAggregate, ["<class 'int'>", "pa.int64()"],  # type: ignore[arg-type]
    ),
    "a window without end kept for a day": (
        lambda: define(window=wr.global_window(), retention="1 day"),
        e.RetentionMissing, ["wr.global_window()", "retention=", "'1 day'", "wr.forever"],
    ),
    "a watermark of no function": (lambda: wr.custom(5, name="x"), e.BadWatermark, ["wr.custom(5)", "a function"]),  # type: ignore[arg-type]
    "positions by a number": (lambda: wr.positions(5), e.ConfigurationError, ["wr.positions(5)", "wr.positions('offset'"]),  # type: ignore[arg-type]
    "tuples with gaps": (lambda: wr.tuples(2, step=3), e.BadWindow, ["step 3", "size 2"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_values_and_the_remedy(name: str) -> None:
    build, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        build()
    error = caught.value
    assert type(error) is kind and isinstance(error, (wr.ConfigurationError, ValueError))
    assert str(error).startswith(f"[{error.code}] ")
    assert [part for part in message if part not in str(error)] == []


@pytest.mark.parametrize(
    "module", [definition, policy, emit, aggregations, positions, windows, check], ids=lambda m: m.__name__
)
def test_every_raise_of_a_definition_is_in_the_table_above(module: ModuleType) -> None:
    reached = set()
    for build, kind, _ in REFUSED.values():
        try:
            build()
        except kind as error:
            frame = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == module.__file__]
            reached |= {f.lineno for f in frame}
    assert raises_in(module) - reached == set()


def test_error_codes_are_unique() -> None:
    classes = [c for c in vars(e).values() if isinstance(c, type) and issubclass(c, wr.WindrowError)]
    codes = [c.code for c in classes]
    assert len(codes) == len(set(codes)) > 20
