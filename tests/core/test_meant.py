"""A name that is nearly one that there is: errors say which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import UnknownColumn, UnknownOption
from windrow.core.meant import meant

HERE = ["carrier", "delay", "departure"]


@pytest.mark.parametrize(
    ("given", "found"), [("carier", "carrier"), ("DELAY", "delay"), ("departed", "departure"), ("zzz", None)]
)
def test_the_nearest_name_is_meant_or_none(given: str, found: str | None) -> None:
    assert meant(given, HERE) == found
    said = str(UnknownColumn.lacking(given, "'delays'", HERE))
    assert said.endswith(f"{HERE}: " + (f"did you mean {found!r}?" if found else "use one of these"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "carier"}, "did you mean 'carrier'? Else tell the columns"),
        ({"agg": {"n": wr.sum("delays")}}, "did you mean 'delay'? Else tell the columns"),
        ({"by": "zzz"}, "use one of these names, or tell the columns"),
    ],
)
def test_a_column_that_no_message_has_may_be_one_that_they_have(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given = {"by": "carrier", "agg": {"n": wr.count()}, **options}
    definition = wr.Aggregate(
        event_time="departure", window=wr.tumbling("1 hour"), retention="1 day", **given
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
