"""The definition of a join: a value that builds itself again, and refuses what cannot mean what it says."""

import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import windrow as wr
from tests.core.raises import raises_in
from windrow.core import errors as e
from windrow.core import inputs
from windrow.operators.join import definition as join

S = 1_000_000


def side(name: str, **more: Any) -> inputs.Input:
    return wr.Input(name, **{"event_time": "time", **more})


L, R = side("orders"), side("shipments")


def pair(**more: Any) -> wr.Join:
    return wr.Join(**{"left": L, "right": R, "on": "id", "within": ("0 seconds", "2 minutes"), **more})


JOINS = {
    "plain": lambda: pair(),
    "open edges": lambda: pair(closed="left"),
    "theta": lambda: pair(on=(), where=wr.col("value") > wr.col("cost")),
    "names differ": lambda: pair(on={"id": "order_id", "site": "place"}, how="full", name="matched"),
    "windows": lambda: pair(
        left=side("a", window=wr.sliding("2 minutes", "1 second", closed="left")),
        right=side("b", window=wr.unbounded(), watermark=wr.bounded("5 s", idle="1 minute"), time_zone="Europe/Berlin"),
        within=None,
        retention="1 day",
        allowed_lateness="1 hour",
        emit=wr.Emit(early=wr.every("10 seconds"), late=wr.every_batch),
        scale="small",
        dead_letter_limit=5,
    ),
    "grids": lambda: pair(
        left=side("a", window=wr.tumbling("1 hour")),
        right=side("b", window=wr.hopping("1 hour", "10 minutes")),
        within=None,
    ),
    "rows": lambda: pair(left=side("a", window=wr.rows(3)), right=side("b", window=wr.rows(2, per="input")), within=None),
    "self": lambda: pair(right=L),
    "static": lambda: pair(right=side("weather", static=True)),
    "asof": lambda: pair(how="asof", within=("-1 hour", "0 seconds"), retention=wr.forever),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in JOINS if n != "theta"])
def test_the_repr_builds_the_join_again(name: str) -> None:
    one = JOINS[name]()
    again = eval(repr(one), {"wr": wr})
    assert again == one and repr(again) == repr(one) and again.fingerprint == one.fingerprint


@pytest.mark.parametrize("name", JOINS)
def test_a_join_survives_pickling(name: str) -> None:
    one = JOINS[name]()
    again = pickle.loads(pickle.dumps(one))
    assert again == one and hash(again) == hash(one) and repr(again) == repr(one)


def test_what_shapes_the_state_is_in_the_fingerprint_and_the_rest_is_not() -> None:
    shaping: list[dict[str, Any]] = [
        {"on": "site"},
        {"how": "left"},
        {"within": ("0 s", "3 minutes")},
        {"closed": "neither"},
        {"where": wr.col("x") > 1},
        {"left": side("orders", event_time="at")},
        {"left": side("orders", window=wr.sliding("1 minute"))},
        {"left": side("sales")},
        {"scale": "small"},
    ]
    prints = {pair(**more).fingerprint for more in [{}, *shaping]}
    assert len(prints) == len(shaping) + 1
    for free in (
        {"retention": "1 day"},
        {"allowed_lateness": "0 s"},
        {"emit": wr.Emit(early=wr.every("5 s"), late=wr.every("5 s"))},
        {"left": side("orders", watermark="1 minute")},
        {"dead_letter_limit": 1},
    ):
        assert pair(**free).fingerprint == pair().fingerprint


def test_a_function_on_pairs_is_known_by_its_name() -> None:
    def first(a: Any, b: Any) -> Any:
        return pc.greater(a["x"], b["y"])

    def second(a: Any, b: Any) -> Any:
        return pc.less(a["x"], b["y"])

    one, other = (pair(where=wr.pairs(f, name="bigger")) for f in (first, second))
    assert one == other and one.fingerprint == other.fingerprint
    assert pair(where=wr.pairs(first, name="smaller")).fingerprint != one.fingerprint
    assert "wr.pairs(name='bigger')" in repr(one)


def test_the_retention_is_as_long_as_windows_and_bounds_reach() -> None:
    assert pair(within=("-10 s", "3 s")).retention.time_us == 10 * S
    windows = {
        "left": side("a", window=wr.sliding("5 s", "7 s")),
        "right": side("b", window=wr.sliding("6 s")),
    }
    assert pair(within=None, **windows).retention.time_us == 7 * S
    assert pair(retention=wr.forever).retention.time_us is None
    assert pair(allowed_lateness=None, within=("-10 s", "3 s")).allowed_lateness_us == 10 * S


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], list[str]]] = {
    "no name": (lambda: side(""), e.ConfigurationError, ["''", "1 to 64 letters"]),
    "no window": (lambda: side("a", window=wr.global_window()), e.BadWindow, ["global_window", "'a'", "wr.sliding"]),
    "gaps": (lambda: side("a", window=wr.hopping("1 s", "2 s", gaps=True)), e.BadWindow, ["gaps", "'a'"]),
    "a table with a policy": (
        lambda: side("a", static=True, deliver=wr.deliver.newest(2)), e.ConfigurationError, ["newest(2)", "'a'", "taken whole"],
    ),
    "no zone": (lambda: side("a", time_zone="Mars"), e.ConfigurationError, ["'Mars'", "IANA"]),
    "no kind": (lambda: pair(how="outer"), e.ConfigurationError, ["'outer'", "full"]),
    "one name": (lambda: pair(right=side("orders", time_zone="UTC")), e.ConfigurationError, ["'orders'", "names of their own"]),
    "our column": (lambda: pair(on="pane"), e.ReservedColumn, ["'pane'", "'orders'", "rename"]),
    "an input as text": (lambda: pair(left="orders"), e.ConfigurationError, ["left='orders'", "wr.Input('orders', event"]),
    "a condition as text": (lambda: pair(where="a > b"), e.ConfigurationError, ["where='a > b'", "wr.col('value') >"]),
    "one bound": (lambda: pair(within="1 hour"), e.BadWindow, ["within='1 hour'", "within=('-1 hour', '1 hour')"]),
    "on a number": (lambda: pair(on=5), e.ConfigurationError, ["on=5", "{left name: right name}"]),
    "on numbers": (lambda: pair(on={"id": 5}), e.ConfigurationError, ["on={'id': 5}", "{left name: right name}"]),
    "emit as text": (lambda: pair(emit="append"), e.BadTrigger, ["emit='append'", "wr.Emit("]),
    "fewer letters than none": (lambda: pair(dead_letter_limit=-1), e.ConfigurationError, ["dead_letter_limit=-1"]),
    "positions as text": (lambda: side("a", positions="o"), e.ConfigurationError, ["positions='o'", "wr.positions('offset'"]),
    "static as text": (lambda: side("a", static="no"), e.ConfigurationError, ["static='no'", "True or False"]),
    "rows and time": (
        lambda: pair(left=side("a", window=wr.rows(3)), right=side("b", window=wr.sliding("1 s"))),
        e.BadWindow, ["wr.rows(3)", "wr.sliding('1 second')", "within="],
    ),
    "asof ahead": (lambda: pair(how="asof"), e.BadWindow, ["'asof'", "'2 minutes'", "within=('-1 hour', '0 seconds')"]),
    "lateness": (lambda: pair(allowed_lateness="-1 s"), e.ConfigurationError, ["'-1 s'", "negative"]),
    "later than kept": (
        lambda: pair(retention="1 hour", allowed_lateness="2 hours"), e.RetentionTooShort, ["'1 hour'", "'2 hours'"],
    ),
    "scale": (lambda: pair(scale="tiny"), e.ConfigurationError, ["'tiny'", "'small' or 'large'"]),
    "key twice": (lambda: pair(on=("id", "id")), e.ConfigurationError, ["('id', 'id')", "twice"]),
    "edges": (lambda: pair(closed="open"), e.BadWindow, ["'open'", "'neither'"]),
    "reversed": (lambda: pair(within=("2 s", "1 s")), e.BadWindow, ["('2 s', '1 s')", "('1 s', '2 s')"]),
    "nothing between": (lambda: pair(within=("1 s", "1 s"), closed="left"), e.BadWindow, ["('1 s', '1 s')", "'left'", "empty"]),
    "nothing in both": (
        lambda: pair(
            left=side("a", window=wr.sliding("5 s")), right=side("b", window=wr.sliding("5 s")), within=("9 s", "20 s")
        ),
        e.BadWindow, ["('9 seconds', '20 seconds')", "wr.sliding('5 seconds')", "widen"],
    ),
    "kept by number": (lambda: pair(retention=wr.Retain(windows=3)), e.RetentionMissing, ["windows=3", "'1 day'"]),
    "kept for less than none": (lambda: pair(retention="-1 s"), e.RetentionTooShort, ["'-1 s'", "'2 minutes'"]),
    "kept too short": (lambda: pair(retention="1 s"), e.RetentionTooShort, ["'1 s'", "'2 minutes'"]),
    "no bound": (lambda: pair(within=None), e.RetentionMissing, ["'orders'", "'shipments'", "within=", "wr.forever"]),
    "no early": (lambda: pair(emit=wr.Emit(late=wr.every_batch)), e.BadTrigger, ["early=wr.never", "wr.every_batch"]),
    "taken back": (
        lambda: pair(emit=wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting")),
        e.BadTrigger, ["retracting", "never taken back"],
    ),
    "all static": (
        lambda: pair(left=side("a", static=True), right=side("b", static=True)), e.BadWatermark, ["'a'", "'b'", "static=True"],
    ),
    "two ends of an interval": (lambda: side("a", duration="d", end="e"), e.ConfigurationError, ["duration='d', end='e'"]),
    "a unit alone": (lambda: side("a", duration_unit="ms"), e.ConfigurationError, ["duration_unit='ms'", "without duration="]),
    "a unit that is none": (lambda: side("a", duration="d", duration_unit="h"), e.ConfigurationError, ["'h'", "'ms'"]),
    "points have no length": (lambda: side("a", longest="1 day"), e.ConfigurationError, ["longest='1 day'", "duration="]),
    "longest of nothing": (lambda: side("a", end="e", longest="0 s"), e.BadDuration, ["longest='0 s'", "'1 day'"]),
    "an interval of a join": (lambda: pair(left=side("orders", duration="d")), e.ConfigurationError, ["duration=", "wr.Rules"]),
    "expired before": (lambda: side("a", expires="-1 s"), e.BadDuration, ["'-1 s'", "wr.forever"]),
    "a row of no key": (lambda: wr.Table("a", deleted="gone"), e.ConfigurationError, ["deleted='gone'", "key="]),
    "half explicit": (
        lambda: pair(left=side("orders", watermark=wr.explicit())), e.BadWatermark, ["wr.explicit()", "both inputs"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_values_and_the_remedy(name: str) -> None:
    build, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        build()
    assert type(caught.value) is kind
    assert [part for part in message if part not in str(caught.value)] == []


def test_every_raise_is_in_the_table_above() -> None:
    reached = set()
    for build, kind, _ in REFUSED.values():
        try:
            build()
        except kind as error:
            frames = traceback.extract_tb(error.__traceback__)
            reached |= {(f.filename, f.lineno) for f in frames}
    raises = {(module.__file__, line) for module in (join, inputs) for line in raises_in(module)}
    assert raises - reached == set()
