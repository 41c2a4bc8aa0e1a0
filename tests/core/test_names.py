"""Names of operators and inputs stand in names of files, folders, column families and topics: they are checked when given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import ConfigurationError
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
IN = {"event_time": "t"}


def aggregate(name: Any) -> Any:
    return wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 minute", name=name
    )  # fmt: skip


def join(name: Any) -> Any:
    left, right = wr.Input("a", **IN), wr.Input("b", **IN)
    return wr.Join(left=left, right=right, on="k", within=("0 seconds", "1 second"), name=name)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "aggregate": aggregate,
    "join": join,
    "input": lambda name: wr.Input(name, **IN),
}


BAD = ["", "a/b", "../a", ".", "..", "...", "a b", "a:b", "a\n", "a\0b", "a'b", "a\\b", "a*", None, 5, b"a"]


@pytest.mark.parametrize(
    "name", [*BAD, "x" * 65, "x" * 300, "\U00020000" * 64], ids=lambda name: ascii(name)[:14]
)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_name_that_no_file_could_have_is_refused_at_once(maker: str, name: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"name=.*: use 1 to 64 letters, digits, '_', '-' or '.'"
    ) as refused:
        MAKERS[maker](name)
    assert repr(name) in refused.value.message


@pytest.mark.parametrize(
    "name",
    ["a", "a-b.c_d", ".a", "-", "\u00e9\u65e5\u672c", "x" * 64, "\u65e5" * 64, "0"],
)
def test_every_other_name_runs_with_files_of_all_kinds(tmp_path: Path, name: str) -> None:
    clock = ManualClock()
    with aggregate(name).open(
        str(tmp_path / "job"), clock=clock, sink=wr.sinks.parquet(str(tmp_path / "panes"))
    ) as op:
        op.add_messages([wr.Message({"k": 1, "t": i * SECOND}, wr.Position("s", 0, i)) for i in range(25)])
        op.timeout()
    assert wr.read_panes(str(tmp_path / "panes"), name).column("n").to_pylist() == [10, 10]
