"""A name that is nearly one that there is: errors say which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import BadAggregate, UnknownColumn, UnknownOption
from windrow.core.suggestions import meant

HERE = ["carrier", "delay", "departure"]


@pytest.mark.parametrize(
    ("name", "nearest"), [("carier", "carrier"), ("DELAY", "delay"), ("departed", "departure"), ("zzz", None)]
)
def test_the_nearest_name_is_meant_or_none(name: str, nearest: str | None) -> None:
    assert meant(name, HERE) == nearest
    said = str(UnknownColumn.lacking(name, "'delays'", HERE))
    assert said.endswith(f"{HERE}: " + (f"did you mean {nearest!r}?" if nearest else "use one of these"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "carier"}, "did you mean 'carrier'? Else declare the columns"),
        ({"agg": {"n": wr.sum("delays")}}, "did you mean 'delay'? Else declare the columns"),
        ({"by": "zzz"}, "use one of these names, or declare the columns"),
    ],
)
def test_a_column_that_no_message_has_may_be_one_that_they_have(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    arguments = {"by": "carrier", "agg": {"n": wr.count()}, **options}
    definition = wr.Aggregate(
        event_time="departure", window=wr.tumbling("1 hour"), retention="1 day", **arguments
    )
    with definition.open(str(tmp_path)) as op, pytest.raises(UnknownColumn) as error:
        op.add_message({"carrier": "AA", "departure": "2013-07-01 05:10Z", "delay": 4})
    assert said in str(error.value)


def test_a_verb_s_options_are_named(tmp_path: Path) -> None:
    deduplicate = wr.Deduplicate(event_time="t", ids="i", within="1 hour")
    with pytest.raises(
        UnknownOption, match="open is given 2 arguments by place, and takes 1: name the others, clock"
    ):
        deduplicate.open(str(tmp_path), None)  # type: ignore[misc]
    with pytest.raises(UnknownOption, match="] open has no option 'clok': did you mean 'clock'"):
        deduplicate.open(str(tmp_path), clok=None)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        *[(name, "by") for name in ("group_by", "groupBy", "groupby", "key", "partition_by", "partitionBy")],
        *[(name, "event_time") for name in ("timestamp", "time", "time_column")],
        ("grace", "allowed_lateness"),
        ("subset", "ids"),
        ("on", "by"),
    ],
)
def test_an_option_that_another_library_has_is_said_with_its_name_here(theirs: str, ours: str) -> None:
    arguments: dict[str, Any] = {"agg": {"n": wr.count()}, "window": wr.tumbling("1 hour"), theirs: "x"}
    with pytest.raises(UnknownOption, match=f"no option '{theirs}': did you mean '{ours}'"):
        wr.Aggregate(event_time="t", retention="1 day", **arguments)


@pytest.mark.parametrize("build", ["sum", "SUM", ("v", "sum"), ["v", "sum"], wr.sum, ("v", sum)])
def test_an_aggregation_that_another_library_writes_so_is_said_as_it_is_written_here(build: Any) -> None:
    rest: dict[str, Any] = {"by": "k", "event_time": "t", "agg": {"v": build}}
    for operator in (
        lambda: wr.Aggregate(window=wr.tumbling("1 hour"), retention="1 day", **rest),
        lambda: wr.Over(frame=wr.range_between("-2 seconds", "1 second"), ttl="1 day", **rest),
    ):
        with pytest.raises(BadAggregate, match=r"did you mean wr\.sum\('v'\)\?"):
            operator()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("mean", r"did you mean wr\.avg\('v'\)\?"),
        ("size", r"did you mean wr\.count\(\)\?"),
        (wr.count, r"did you mean wr\.count\(\)\?"),
        *[
            (name, "use an aggregation such as")
            for name in ("max_by", "zzz", "check", ("v", "sum", 1), len, 3)
        ],
    ],
)
def test_what_has_no_aggregation_of_one_column_is_not_guessed(build: Any, said: str) -> None:
    with pytest.raises(BadAggregate, match=said):
        wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"v": build})
