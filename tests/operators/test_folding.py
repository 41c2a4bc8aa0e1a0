"""Windows that gather many blocks are folded as they grow; nobody can tell by what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.byte_order import encode_i64
from windrow.stores import delta_blocks as layout
from windrow.stores import page_store, partitioned_windows
from windrow.stores.block_format import Kind
from windrow.stores.kv import KV
from windrow.stores.partitioned_windows import Merge
from windrow.testing import ManualClock

#: Steps of a life, how long each is, and after how many blocks they are folded: more than twice, however many they are.
STEPS, STEP_S, FOLD_AT = usually((12, 3, 5), deep=(36, 1, layout.FOLD_AT))
#: Keys and pages of many keys are there after three steps.
FEW = usually(9, deep=36)
#: What a store does of its own is tried elsewhere (tests/stores, tests/operators/test_contract.py).
STORE = usually("memory", deep="rocksdb")
AGGREGATES: dict[str, Any] = {
    "n": wr.count(),
    "s": wr.sum("v"),
    "a": wr.avg("v"),
    "d": wr.variance("v"),
    "some": wr.approx_percentile("v", 0.5, k=8),
    "lo": wr.min("v"),
    "first": wr.first("v"),
    "last": wr.last("v"),
    "all": wr.collect_list("v"),
    "w": wr.weighted_avg("v", "v"),
    "distinct": wr.approx_count_distinct("v"),
    "top": wr.top_k("v", 3),
    "tops": wr.top_k_by("v", "v", 3),
    "sorted": wr.sort_list("v", descending=True),
    "most": wr.max_by("v", "v"),
    "set": wr.collect_set("v"),
}
EMISSIONS = [
    wr.Emit(),
    wr.Emit(early=wr.every("7 seconds"), mode="retracting"),
    wr.Emit(early=wr.every(3), mode="discarding"),
    wr.Emit(early=wr.every_batch, only_if_changed=True),
    wr.Emit(on_time=False, late=wr.never, closing_pane=True),
]


@pytest.fixture(autouse=True)
def fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "FOLD_AT", FOLD_AT)


def live(
    folder: Path,
    emit: wr.Emit,
    window: Any,
    *,
    steps: int = STEPS,
    keys: int = 3,
    messages: int = 1,
    widens: bool = False,
) -> tuple[list[str], int, int]:
    """Panes and windows of a life of few messages a step; most blocks of a window, and bytes of all, at its end."""
    sums = wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg=AGGREGATES,
        retention="1 day",
        emit=emit,
        name="sums",
    )
    clock = ManualClock(0)
    with sums.open(str(folder), clock=clock, store=STORE) as op:
        for i in range(steps):
            clock.advance(f"{STEP_S} seconds")
            made = []
            for j in range(i * messages, i * messages + messages):
                value = (j * 7919 % 101) / 7 * 10.0 ** (j % 5)
                key = f"k{j * 31 % keys}" if not widens else j * 31 % keys * (1.0 if 3 * i > steps else 1)
                made.append(wr.Message({"k": key, "t": i * STEP_S * 1_000_000, "v": value}))
            op.add_messages(made)
        most = max(
            op.engine.logic.store.blocks(op.engine.staged.overlay, w.window.start_us)
            for w in op.get_windows()
        )
        size = sum(len(value) for _, value in op.engine.staged.overlay.scan("sums.windows"))
        panes = op.get_result()
        infos = op.get_windows()
        op.drain()
        panes += op.get_result()
    emitted = [repr((p.window, p.key, p.values, p.timing, p.index, p.is_last, p.kind)) for p in panes]
    return emitted + [repr(w) for w in infos], most, size


#: Under which blocks are gathered, and how they lie: where single keys are judged at each step, nothing is folded.
GATHERED = [
    (wr.Emit(), wr.tumbling("1 hour"), Kind.BLOCK),
    (wr.Emit(on_time=False, late=wr.never, closing_pane=True), wr.tumbling("1 hour"), Kind.BLOCK),
    (wr.Emit(early=wr.every("20 seconds"), mode="retracting"), wr.tumbling("1 hour"), Kind.BESIDE),
    (wr.Emit(early=wr.every("20 seconds"), mode="discarding"), wr.tumbling("1 hour"), Kind.BESIDE),
    (wr.Emit(), wr.hopping("30 seconds", "20 seconds"), Kind.BLOCK),
]


@pytest.mark.parametrize(("emit", "window", "how"), GATHERED, ids=repr)
def test_nobody_sees_whether_windows_were_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emit: wr.Emit, window: Any, how: int
) -> None:
    fold, folds = layout.BlockWindows.fold, list[int]()

    def noted(self: layout.BlockWindows, kv: KV, start: int, merge: Merge) -> None:
        newest = self._newest(kv, encode_i64(start))
        folds.append(-1 if newest is None else newest.block.kind)
        fold(self, kv, start, merge)

    monkeypatch.setattr(layout.BlockWindows, "fold", noted)
    folded, _, _ = live(tmp_path / "folded", emit, window)
    assert how in folds
    monkeypatch.setattr(layout, "FOLD_AT", 10**6)
    plain, _, _ = live(tmp_path / "plain", emit, window)
    assert folded == plain
    assert len(plain) > 3


PAGED = [(emit, widens) for emit in EMISSIONS for widens in (False, True)]
#: Which emission it is says nothing of a key that widens.
EVERY_OTHER = [(emit, n % 2 == 1) for n, emit in enumerate(EMISSIONS)]


@pytest.mark.parametrize(("emit", "widens"), usually(EVERY_OTHER, deep=PAGED), ids=repr)
def test_nobody_sees_of_how_many_keys_pages_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emit: wr.Emit, widens: bool
) -> None:
    many: dict[str, Any] = {"steps": FEW, "keys": 50, "messages": 20, "widens": widens}
    large, _, _ = live(tmp_path / "large", emit, wr.tumbling("1 hour"), **many)
    monkeypatch.setattr(page_store, "PAGE_ROWS", 2)
    small, most, _ = live(tmp_path / "small", emit, wr.tumbling("1 hour"), **many)
    assert small == large
    assert most >= 10 or emit not in EMISSIONS[1:4]


@pytest.mark.parametrize("widens", [False, True])
def test_nobody_sees_whether_a_window_of_many_keys_was_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, widens: bool
) -> None:
    emit = wr.Emit()
    many: dict[str, Any] = {"steps": FEW, "keys": 50, "messages": 20, "widens": widens}
    monkeypatch.setattr(layout, "FOLD_AT", 10**6)
    plain, _, _ = live(tmp_path / "plain", emit, wr.tumbling("1 hour"), **many)
    monkeypatch.setattr(layout, "FOLD_AT", 2)
    monkeypatch.setattr(layout, "FOLD_LARGE_AT", 2)
    monkeypatch.setattr(partitioned_windows, "PART_BYTES", 20_000)
    monkeypatch.setattr(partitioned_windows, "DEAL_BYTES", 1_000)
    folds = 0
    put_parts = partitioned_windows.DividedWindows._put_parts

    def counted(*args: Any) -> Any:
        nonlocal folds
        folds += 1
        return put_parts(*args)

    monkeypatch.setattr(partitioned_windows.DividedWindows, "_put_parts", counted)
    emitted, _, _ = live(tmp_path / "divided", emit, wr.tumbling("1 hour"), **many)
    assert emitted == plain
    assert folds > 5


def test_a_long_window_of_few_rows_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, blocks, size = live(tmp_path / "folded", wr.Emit(), wr.tumbling("1 hour"))
    monkeypatch.setattr(layout, "FOLD_AT", 10**6)
    _, before, unfolded = live(tmp_path / "plain", wr.Emit(), wr.tumbling("1 hour"))
    assert before == STEPS
    assert blocks < 34
    assert 2 * size < unfolded
