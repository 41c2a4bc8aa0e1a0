"""Deduplication and process functions among other operators, and what is refused of them."""

from __future__ import annotations

import pickle
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.errors import (
    BadWatermark,
    ConfigurationError,
    DefinitionChanged,
    InputError,
    ReservedColumn,
    UnknownColumn,
    UnknownOption,
)
from windrow.runners.state.definition_parser import evaluate
from windrow.testing import ManualClock

S = 1_000_000


class Visits:
    """Counts, and says so a second later."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        state["n"] = state.get("n", 0) + 1
        timers.set(timers.time + timedelta(seconds=1))
        return {"n": state["n"]}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> Any:
        return {"n": 100 + state["n"]}


def once(**options: Any) -> wr.Deduplicate:
    return wr.Deduplicate(
        **{"by": "k", "event_time": "t", "ids": wr.ids("i"), "within": "5 seconds", "name": "once", **options}
    )


def counts(**options: Any) -> wr.Aggregate:
    window = wr.tumbling("10 seconds")
    what: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": window,
        "retention": "1 minute",
        "name": "counts",
    }
    return wr.Aggregate(**{**what, "agg": {"n": wr.count()}, **options})


def visits(**options: Any) -> wr.Process:
    what: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "function": Visits,
        "emits": {"n": pa.int64()},
        "ttl": "1 minute",
    }
    return wr.Process(**{**what, "name": "visits", **options})


FED = [(1, "a", 1), (2, "a", 1), (3, "a", 2), (11, "a", 1), (12, "b", 1), (25, "b", 2)]


def played(definition: Any, folder: Path, inputs: tuple[str, ...] = ()) -> list[Any]:
    with definition.open(str(folder), clock=ManualClock(100 * S)) as op:
        for t, k, i in FED:
            message = {"t": t * S, "k": k, "i": i}
            if inputs:
                op.add_messages({name: [message] for name in inputs})
            else:
                op.add_message(message)
        op.drain()
        assert not [d for d in op.dead_letters() if d.reason != "too_late"]
        rows: list[Any] = op.get_result()
        return rows


def test_what_is_said_twice_is_counted_once(tmp_path: Path) -> None:
    panes = played(wr.chain(once(), counts()), tmp_path)
    assert [(p.key["k"], p.window.start_us // S, p["n"]) for p in panes if p.timing == "ON_TIME"] == [
        ("a", 0, 2),
        ("a", 10, 1),
        ("b", 10, 1),
        ("b", 20, 1),
    ]


def test_rows_of_an_aggregate_a_join_and_a_function_are_messages_of_the_new_operators(tmp_path: Path) -> None:
    after = wr.Deduplicate(
        by="k", ids=wr.ids("n"), event_time="window_time", within="1 minute", name="changes"
    )
    rows = played(wr.chain(counts(emit=wr.Emit.append()), after), tmp_path / "a")
    assert [(r["k"], r["n"]) for r in rows] == [("a", 3), ("a", 1), ("b", 1)]

    left, right = wr.Input("l", event_time="t"), wr.Input("r", event_time="t")
    join = wr.Join(left=left, right=right, on="k", within=("0 seconds", "0 seconds"), name="join")
    seen = visits(event_time="l_t", emits={"n": pa.int64()})
    rows = played(wr.chain(join, seen), tmp_path / "j", ("l", "r"))
    assert [r["n"] for r in rows if r["k"] == "b" and r.timing == "EARLY"] == [1, 2]

    totals = counts(agg={"most": wr.max("n")})
    panes = played(wr.chain(once(), visits(), totals), tmp_path / "p")
    assert [(p.key["k"], p["most"]) for p in panes][-1] == ("b", 102)


def test_an_operator_of_one_input_takes_one_of_several_inputs_by_name(tmp_path: Path) -> None:
    join = wr.Join(
        left=wr.Input("once", event_time="t"), right=wr.Input("r", event_time="t"), on="k",
        within=("0 seconds", "0 seconds"), name="join",
    )  # fmt: skip
    rows = played(wr.chain(once(input="raw"), join), tmp_path, ("raw", "r"))
    assert [(r["k"], r["once_i"], r["r_i"]) for r in rows] == [
        ("a", 1, 1),
        ("a", 2, 2),
        ("a", 1, 1),
        ("b", 1, 1),
        ("b", 2, 2),
    ]


def test_a_definition_is_a_value_that_readers_can_build_again(tmp_path: Path) -> None:
    one = once(null_keys="dead_letter", max_ahead="1 hour", watermark=wr.bounded("1 second", idle="1 minute"))
    assert evaluate(repr(one)) == one == pickle.loads(pickle.dumps(one)) and hash(one) == hash(
        pickle.loads(pickle.dumps(one))
    )
    assert one != once() and once().with_watermarks({"": wr.bounded("2 seconds")}) == once(
        watermark="2 seconds"
    )
    assert evaluate(repr(once().with_watermarks({"": wr.bounded("2 seconds")}))) == once(
        watermark="2 seconds"
    )
    with visits().open(str(tmp_path)) as op:
        op.add_messages([{"t": 5 * S, "k": "a"}, {"t": 6 * S, "k": "b"}])
        op.flush()
        with pytest.raises(ConfigurationError, match="none of"):
            op.get_windows()
    with pytest.raises(DefinitionChanged):
        visits(version="2").open(str(tmp_path))
    with wr.read_state(str(tmp_path), definition=visits()) as state:
        assert state.table("state").to_pylist() == [
            {"k": "a", "state": "n", "value": "1"},
            {"k": "b", "state": "n", "value": "1"},
        ]
        assert state.table("state", key="b").num_rows == 1
        assert [(r["k"], r["of"]) for r in state.table("timers").to_pylist()] == [("b", "event")]


def test_ids_are_columns_however_they_are_written() -> None:
    assert (
        once(ids="i") == once(ids=["i"]) == once(ids=wr.ids("i")) and evaluate(repr(once(ids="i"))) == once()
    )
    assert once(ids=("i", "j")) == once(ids=wr.ids("i", "j")) != once(ids="i")
    assert counts(ids="i") == counts(ids=wr.ids("i")) and counts(ids="i").fingerprint != counts().fingerprint


def test_an_operator_that_keeps_nothing_to_ask_for_says_where_its_rows_are(tmp_path: Path) -> None:
    with once().open(str(tmp_path)) as op:
        for ask, what in ((op.get_windows, "windows"), (op.get_messages, "messages")):
            with pytest.raises(
                ConfigurationError, match=rf"keeps no {what} that could be asked for: .* panes\(\)"
            ):
                ask()


def test_what_cannot_be_is_refused_when_it_is_built() -> None:
    with pytest.raises(UnknownOption, match=r"Deduplicate has no option 'withn': did you mean 'within'\?"):
        once(withn="1 second")
    with pytest.raises(UnknownOption, match=r"did you mean 'function'\?"):
        visits(funktion=Visits)
    with pytest.raises(ConfigurationError, match="neither by= nor ids="):
        once(by=(), ids=None)
    with pytest.raises(ConfigurationError, match="keep="):
        once(keep="last")
    with pytest.raises(ConfigurationError, match="on_message"):
        visits(function=len)
    with pytest.raises(ReservedColumn):
        visits(emits={"k": pa.int64()})
    with pytest.raises(ReservedColumn):
        visits(emits={"pane": pa.int64()})
    with pytest.raises(ReservedColumn, match="twice"):
        visits(emits=pa.schema([("n", pa.int64()), ("n", pa.int64())]))
    with pytest.raises(ReservedColumn, match="underscores"):
        visits(emits={"__timing": pa.string()})
    with pytest.raises(UnknownColumn, match="event_time='u'"):
        wr.chain(once(), counts(event_time="u"))
    with pytest.raises(UnknownColumn, match="none of"):
        wr.chain(visits(), counts(agg={"n": wr.max("m")}))
    with pytest.raises(BadWatermark):
        wr.chain(counts(emit=wr.Emit.append()), once(event_time="window_time", watermark="1 second"))
    for nothing in ("counts", None, [counts()]):
        with pytest.raises(ConfigurationError, match="one by one"):
            once().then(nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("schema", ["t", ["t"], {"once": ["t"]}, {"once": {"t": pa.int64()}}])
def test_a_schema_that_is_none_is_refused_as_that(schema: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give a pyarrow schema"):
        once().open(str(tmp_path), schema=schema)


def test_a_table_with_a_column_of_ours_is_refused_and_a_message_with_one_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    with once().open(str(tmp_path)) as op:
        with pytest.raises(ReservedColumn):
            op.add_messages(pa.table({"t": [1], "k": ["a"], "i": [1], "commit": [1]}))
        op.add_messages([{"t": 1, "k": "a", "i": 1, "commit": 1}, {"t": 1, "k": "a", "i": 1}])
        assert [d.reason for d in op.dead_letters()] == ["malformed"] and len(op.get_result()) == 1


def test_an_id_is_remembered_as_long_as_anything_on_time_may_be_its_duplicate(tmp_path: Path) -> None:
    with once(within="10 seconds").open(str(tmp_path)) as op:
        for t, i in ((0, 1), (15, 2), (6, 1), (4, 3)):
            op.add_message({"t": t * S, "k": "a", "i": i})
        assert [r["i"] for r in op.get_result()] == [1, 2]
        assert op.counters["duplicates"] == 1 and [d.reason for d in op.dead_letters()] == ["too_late"]


class Cancels(Visits):
    """The first of two timers that are due at once cancels the second."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> None:
        for seconds in (1, 2):
            timers.set(timers.time + timedelta(seconds=seconds))

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> Any:
        timers.cancel(at + timedelta(seconds=1))
        return {"n": at.second}


def test_a_timer_that_is_taken_back_when_it_is_due_does_not_fire(tmp_path: Path) -> None:
    with visits(function=Cancels).open(str(tmp_path)) as op:
        op.add_message({"t": 0, "k": "a"})
        op.drain()
        assert [r["n"] for r in op.get_result()] == [1]


class Provenance(Visits):
    def __init__(self, step: int) -> None:
        self.step = step


class OfTwo:
    def on_message(self, key: Any, message: Any) -> None: ...


class Awaited(Visits):
    async def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> None: ...


class Plain(Visits):
    @staticmethod
    def on_message(key: Any, message: Any, state: Any, timers: Any) -> Any:
        return {"n": 1}


def test_a_function_that_could_not_be_called_is_refused_before_its_messages_are_dead_letters() -> None:
    for function, why in (
        (OfTwo, "on_message cannot"),
        (Awaited, "async"),
        (Provenance, r"instance, Provenance\(\.\.\.\)"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            visits(function=function)
    assert (
        visits(function=Provenance(1)).function_name == "Provenance"
        and visits(function=Plain).function_name == "Plain"
    )


def test_a_timer_that_nothing_answers_to_stops_the_job_until_something_does(tmp_path: Path) -> None:
    class Silent:
        def on_message(self, key: Any, message: Any, state: Any, timers: Any) -> None:
            timers.set(timers.time + timedelta(seconds=1))

    answer = lambda self, key, at, state, timers: {"n": 7}  # noqa: E731
    Silent.on_timer = answer  # type: ignore[attr-defined]
    with visits(function=Silent).open(str(tmp_path)) as op:
        op.add_message({"t": 0, "k": "a"})
        op.flush()
    del Silent.on_timer  # type: ignore[attr-defined]
    with (
        visits(function=Silent).open(str(tmp_path)) as op,
        pytest.raises(ConfigurationError, match="Silent has no on_timer"),
    ):
        op.drain()
    Silent.on_timer = answer  # type: ignore[attr-defined]
    with visits(function=Silent).open(str(tmp_path)) as op:
        op.drain()
        assert [r["n"] for r in op.get_result()] == [7]


@pytest.mark.parametrize("before", [wr.forever, "1 hour"])
def test_keys_are_forgotten_by_the_ttl_of_now_whatever_it_was(before: Any, tmp_path: Path) -> None:
    class Counts:
        def on_message(self, key: Any, message: Any, state: Any, timers: Any) -> Any:
            state["n"] = state.get("n", 0) + 1
            return {"n": state["n"]}

    with visits(function=Counts, ttl=before).open(str(tmp_path)) as op:
        op.add_messages([{"t": 0, "k": "a"}, {"t": 8 * S, "k": "b"}])
    with visits(function=Counts, ttl="5 seconds").open(str(tmp_path)) as op:
        op.add_message({"t": 10 * S, "k": "c"})
        op.add_messages([{"t": 10 * S, "k": key} for key in "ab"])
        assert [r["n"] for r in op.get_result()][-2:] == [1, 2]


@pytest.mark.parametrize("before", [wr.forever, "10 hours"])
def test_a_duplicate_is_one_of_what_was_passed_on_within_another_time(before: Any, tmp_path: Path) -> None:
    message = {"t": 9_000 * 1_000 * S, "k": "a", "i": 1}  # where a quarter of ten hours begins
    with once(within=before).open(str(tmp_path)) as op:
        op.add_message(message)
        op.flush()
    with once(within="1 hour").open(str(tmp_path)) as op:
        op.add_message(message)
        assert op.get_result() == [] and op.counters["duplicates"] == 1


NOON_MS = 1_372_680_000_000


@pytest.mark.parametrize(
    ("option", "times"),
    [
        ({"event_time_unit": "ms"}, pa.array([NOON_MS])),
        ({"time_zone": "Europe/Berlin"}, pa.array(["2013-07-01 14:00"])),
        ({"time_zone": "Europe/Berlin"}, pa.array([NOON_MS + 7_200_000]).cast(pa.timestamp("ms"))),
    ],
)
def test_times_that_are_forwarded_as_they_came_are_read_as_whoever_forwarded_them_read_them(
    option: dict[str, Any], times: pa.Array, tmp_path: Path
) -> None:
    table = pa.table({"t": times, "k": ["a"], "i": [1], "l": times})
    join = wr.Join(
        left=wr.Input("once", event_time="t"), right=wr.Input("r", event_time="t", **option), on="k",
        within=("0 seconds", "0 seconds"), name="join",
    )  # fmt: skip
    for n, graph in enumerate(
        (
            wr.chain(once(**option), once(name="again"), counts()),
            wr.chain(once(**option), join, counts(event_time="once_t")),
        )
    ):
        with graph.open(str(tmp_path / str(n))) as op:
            op.add_messages({"once": table, "r": table} if n else table)
            op.drain()
            assert op.dead_letters() == []
            assert [p.window.start.isoformat() for p in op.get_result()] == ["2013-07-01T12:00:00+00:00"]


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        (pa.int64(), 1.5, 2.0),
        (pa.int64(), Decimal("1.5"), Decimal(2)),
        (pa.list_(pa.int64()), [1, 1.5], [1, 2]),
        (pa.struct([("a", pa.list_(pa.int8()))]), {"a": [0.5]}, {"a": [1.0]}),
        (pa.struct([("a", pa.int8())]), {"a": 1, "b": 2}, {"a": 1}),
    ],
)
def test_a_value_that_its_column_would_cut_is_a_dead_letter_and_never_emitted(
    kind: pa.DataType, value: Any, fits: Any, tmp_path: Path
) -> None:
    class Gives:
        def on_message(self, key: Any, message: Any, state: Any, timers: Any) -> Any:
            return {"n": value if message["i"] else fits}

    with visits(function=Gives, emits={"n": kind}).open(str(tmp_path)) as op:
        op.add_messages([{"t": 0, "k": "a", "i": i} for i in range(2)])
        assert [r["n"] for r in op.get_result()] == [fits]
        assert [d.reason for d in op.dead_letters()] == ["function_failed"]


def test_a_message_in_which_a_later_operator_cannot_read_what_it_names_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    said = wr.Join(
        left=wr.Input("once", event_time="t"), right=wr.Input("r", event_time="t"), on="i",
        within=("0 seconds", "0 seconds"), name="said",
    )  # fmt: skip
    by_place = counts(by="place", agg={"n": wr.sum("v")})
    of_join = counts(by="once_place", event_time="once_t", agg={"n": wr.sum("once_v")})
    good = [{"t": 0, "k": "a", "i": i, "place": 7, "v": 1, "note": 1} for i in range(4)]
    wrong: list[dict[str, Any]] = [{"place": "x"}, {"place": [7]}, {"v": "x"}, {"note": "x"}]
    for n, graph in enumerate((wr.chain(once(), by_place), wr.chain(once(), said, of_join))):
        with graph.open(str(tmp_path / str(n))) as op:
            op.add_messages({"once": good[:1]} if n else good[:1])
            messages = [{**one, **other} for one, other in zip(good, wrong, strict=True)]
            for i, one in enumerate(messages):
                if n:
                    op.add_message({**good[0], "i": i}, "r")
                op.add_message({**one, "i": i + 1}, "once") if n else op.add_message({**one, "i": i + 1})
            assert [d.reason for d in op.dead_letters()] == ["malformed"] * 3 and op.counters["nulled"] == 1
            op.drain()
            assert {next(iter(p.key.values())) for p in op.get_result()} == {7}


def test_tables_of_a_function_whose_keys_have_the_names_of_their_columns(tmp_path: Path) -> None:
    definition = visits(by=("state", "at"))
    with definition.open(str(tmp_path)) as op:
        op.add_message({"t": 0, "state": "NY", "at": "home"})
    reader = wr.read_state(str(tmp_path), definition=definition)
    key = ("NY", "home")
    assert reader.table("state", key=key).to_pylist() == [
        {"state": "NY", "at": "home", "of_state": "n", "value": "1"}
    ]
    [timer] = reader.table("timers", 0, 60 * S, key=key).to_pylist()
    assert (timer["at"], timer["of_at"].second) == ("home", 1)
