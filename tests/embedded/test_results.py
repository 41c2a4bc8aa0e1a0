"""Results as tables, data frames, and panes that are made when they are looked at."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import windrow as wr
from windrow.core.errors import ConfigurationError
from windrow.core.lazy import LazyList, Part
from windrow.operators.aggregate import panes as values
from windrow.operators.aggregate import views

S = 1_000_000
COLUMNS = [
    "window_start",
    "window_end",
    "k",
    "n",
    "pane_timing",
    "pane_index",
    "pane_is_last",
    "pane_kind",
    "commit",
]


def counts(**more: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count()},
        "retention": "1 day",
    }
    return wr.Aggregate(**(settings | more))


def test_results_are_a_table_a_data_frame_or_panes(tmp_path: Path) -> None:
    with counts().open(str(tmp_path)) as op:
        op.add_messages([{"t": t * S, "k": k} for t, k in ((1, "b"), (2, "a"), (3, "a"), (25, "a"))])
        panes = op.get_result()
        assert [(p["k"], p["n"], p.window.start_us) for p in panes] == [("a", 2, 0), ("b", 1, 0)]
        with pytest.raises(KeyError, match=r"'m' is none of \['k', 'n'\]"):
            panes[0]["m"]
        assert panes.to_arrow().equals(op.result_table()) and "window" in op.result_table().column_names
        pandas, polars = panes.to_pandas(), panes.to_polars()
        assert list(pandas.columns) == polars.columns == COLUMNS
        assert pandas["n"].tolist() == polars["n"].to_list() == [2, 1]
        assert str(pandas["window_start"].dtype) == "datetime64[us, UTC]"
        assert polars["window_end"].dtype == pl.Datetime("us", "UTC")
        op.flush()
        assert len(panes) == 2 and panes[0]["k"] == "a"  # what was handed out stays
        assert op.get_result() == [] and len(op.get_result().to_pandas()) == 0


def test_tuple_windows_have_flat_numbers(tmp_path: Path) -> None:
    with counts(window=wr.tuples(2), retention=wr.forever).open(str(tmp_path)) as op:
        op.add_messages([{"t": t * S, "k": "a"} for t in range(4)])
        frame = op.get_result().to_polars()
    assert frame.select("window_first", "window_last").rows() == [(1, 2), (3, 4)]


def test_a_key_with_a_name_of_the_window_is_refused_in_flat_columns(tmp_path: Path) -> None:
    with counts(by="window_start").open(str(tmp_path)) as op:
        op.add_messages([{"t": S, "window_start": "a"}])
        op.drain()
        with pytest.raises(
            ConfigurationError, match="'window_start' is of the rows themselves and of their window"
        ):
            op.get_result().to_pandas()
        assert op.get_result().to_arrow().column("window_start").to_pylist() == ["a"]


@pytest.mark.parametrize("module", ["pandas", "polars"])
def test_a_library_that_is_not_there_is_named_with_what_to_install(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == module else find_spec(name, *more)
    )
    with counts().open(str(tmp_path)) as op, pytest.raises(ConfigurationError, match=rf"windrow\[{module}\]"):
        getattr(op.get_result(), f"to_{module}")()


def test_panes_and_windows_are_made_when_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    pane, infos = values.Pane, views.to_infos
    monkeypatch.setattr(values, "Pane", lambda *fields: made.append("pane") or pane(*fields))
    monkeypatch.setattr(views, "to_infos", lambda *of: [made.append("window") or w for w in infos(*of)])
    with counts().open(str(tmp_path)) as op:
        op.add_messages([{"t": 1, "k": f"{n:05}"} for n in range(9_000)])
        op.advance_watermark(20 * S)
        panes, windows = op.get_result(), op.get_windows()
        assert (len(panes), len(windows), made) == (9_000, 9_000, [])
        assert panes[-1]["k"] == windows[-1].key["k"] == "08999" and made == ["pane", "window"]
        assert [p["k"] for p in panes[:3]] == ["00000", "00001", "00002"]
        made.clear()
        few = itertools.islice(panes, 10, 11)
        assert next(few)["k"] == "00010" and len(made) < 5_000


def test_a_lazy_list_is_as_a_list() -> None:
    lazy = LazyList[int](
        [Part(3, range), Part(0, range), Part(4, lambda low, high: range(low + 3, high + 3))]
    )
    plain = list(range(7))
    for cut in (
        slice(None),
        slice(2, 5),
        slice(-2, None),
        slice(None, None, -1),
        slice(5, 1, -2),
        slice(9, 3),
        slice(4, 0),
    ):
        assert lazy[cut] == plain[cut]
    assert [lazy[i] for i in range(-7, 7)] == [plain[i] for i in range(-7, 7)]
    for i in (7, -8):
        with pytest.raises(IndexError):
            lazy[i]
    assert lazy == plain and plain == lazy and lazy != plain[1:] and lazy != (0, 1)
    more = [7]
    assert lazy + more == [*plain, 7] and more + lazy == [7, *plain]
    assert (3 in lazy, lazy.index(4), bool(LazyList[int]([])), list(reversed(lazy))) == (
        True,
        4,
        False,
        plain[::-1],
    )
    assert repr(lazy) == repr(plain)
    assert repr(LazyList[int]([Part(1_000, range)])).endswith("98, 99, ... 900 more]")
    with pytest.raises(TypeError):
        hash(lazy)
