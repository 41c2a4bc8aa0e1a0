"""View of an aggregate whose rows keep the windows that they came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.messages import WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant
from windrow.core.types import concat
from windrow.operators.aggregate.chaining import WINDOW_START
from windrow.operators.aggregate.propagated_windows import InheritedAggregator, with_starts
from windrow.operators.aggregate.state_rows import in_window_order
from windrow.operators.aggregate.views import AggregateView
from windrow.operators.steps.columns import MESSAGES, START, UPSERT
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.view import Provenance, key_of, of_key, times_between
from windrow.stores.kv import KV


class InheritedView(AggregateView):
    """The view over the windows of other operators."""

    def __init__(self, logic: InheritedAggregator, stores: Sequence[KV], watermark_us: int) -> None:
        super().__init__(logic.engine, stores, watermark_us)
        self.definition = logic.definition

    def _rows(self, start: Instant | None, end: Instant | None, key: Any) -> pa.Table | None:
        low, high = times_between(start, end)
        by = self.definition.by
        wanted, found = key_of(by, key), list[pa.Table]()
        for kv in self.stores:
            # A window that begins in the moment before its end ends after it.
            for moments in self.logic.states(kv, low, END_OF_TIME_US):
                rows = with_starts(moments)
                mask = (combine(rows.column(START)).to_numpy() <= high) & of_key(rows, wanted)
                if mask.any():
                    found.append(rows.filter(pa.array(mask)))
        if not found:
            return None
        whole = concat(found)
        return whole.take(pa.array(in_window_order(whole, by)))

    def _taken(self, info: WindowInfo, kv: KV) -> Slice | None:
        last_us = info.window.end_us - 1  # type: ignore[union-attr]
        rows = self._kept(kv, (last_us, None), (last_us, None), info.key or None)
        return None if rows is None else rows.take(np.flatnonzero(_of_start(rows.table, info)))

    def brought(self, provenance: Provenance, kv: KV) -> list[tuple[bool, int]]:
        assert provenance.window is not None
        last_us = provenance.window.window.end_us - 1  # type: ignore[union-attr]
        rows = self.logic.store.read(kv, [last_us])
        if rows is None:
            return []
        mine = (combine(rows.column(START)).to_numpy() == last_us) & of_key(rows, provenance.window.key)
        rows = rows.filter(pa.array(mine & _of_start(rows, provenance.window)))
        return list(zip(rows.column(UPSERT).to_pylist(), rows.column(MESSAGES).to_pylist(), strict=True))


def _of_start(rows: pa.Table, info: WindowInfo) -> Any:
    """True for rows of a window that starts there."""
    starts = combine(rows.column(WINDOW_START)).cast(pa.int64()).fill_null(START_OF_TIME_US)
    return starts.to_numpy() == info.window.start_us  # type: ignore[union-attr]
