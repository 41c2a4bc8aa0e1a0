"""Views of a session join: sessions, the messages that they hold, and the provenance of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.messages import Window, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.join.output import NOBODY, Columns
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.sessions.logic import SessionJoinOperator
from windrow.operators.join.sessions.pairs import extent
from windrow.operators.join.sessions.windows import covering
from windrow.operators.join.tables import ranks
from windrow.operators.join.views import JoinView
from windrow.operators.join.windows import position_of
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.pairing import pairs
from windrow.operators.view import Query, key_of, rows_without_prefix
from windrow.stores.kv import KV


class SessionJoinView(JoinView):
    """A view over the sessions of a join, and the messages of both sides."""

    logic: SessionJoinOperator

    # -- windows ----------------------------------------------------------------------------------------------------

    def windows(self, query: Query) -> list[WindowInfo]:
        """Return the sessions that hold messages of an input and overlap the closed range, by start and key."""
        side = self._side(query.input)
        if side not in self.logic.making:
            return super().windows(query)
        low, high = query.times
        wanted = key_of(self.logic.readings[side].by, query.key)
        infos: list[tuple[int, bytes, WindowInfo]] = []
        for kv in self.stores:
            sessions = self.logic.sessions.between(kv, low, min(high, END_OF_TIME_US - 1) + 1, None)
            starts, ends = extent(sessions)
            in_range = (starts <= high) & (ends > low)
            if in_range.any():
                first, last = int(starts[in_range].min()), int(ends[in_range].max())
                rows = self._kept(kv, side, (first, None), (last, None), wanted)
                if len(rows):
                    infos += self._sessions(kv, side, rows, sessions.filter(pa.array(in_range)))
        return [info for _, _, info in sorted(infos, key=lambda one: one[:2])]

    def _sessions(
        self, kv: KV, side: int, rows: Slice, sessions: pa.Table
    ) -> list[tuple[int, bytes, WindowInfo]]:
        """Return (start, key, session) of those that hold at least one of these messages."""
        keys, holder = self._holders(kv, side, rows, sessions)
        starts, ends = extent(sessions)
        place = ranks(rows)
        rows = rows_without_prefix(rows, self._input_of(side).source_prefix)
        order = np.lexsort((place, holder))
        order = order[holder[order] != NOBODY]
        by = self.logic.readings[side].by
        infos = []
        for members in np.split(order, np.flatnonzero(np.diff(holder[order])) + 1):
            if not len(members):
                continue
            i = int(holder[members[0]])
            info = WindowInfo(
                window=Window(int(starts[i]), int(ends[i])),
                key={b: rows.table.column(b)[int(members[0])].as_py() for b in by},
                messages=len(members),
                first=position_of(rows, int(members[0])),
                last=position_of(rows, int(members[-1])),
                values={},
                panes=0,
                fired=int(ends[i]) <= self.watermark_us,
            )
            infos.append((int(starts[i]), keys[int(members[0])].as_py(), info))
        return infos

    def _window_keys(self, side: int) -> list[pa.Field]:
        return (
            [pa.field(*field) for field in self.key_types(self._input_of(side).name).items()]
            if side in self.logic.making
            else []
        )

    def _held(self, kv: KV, side: int, rows: Slice) -> tuple[pa.Table, pa.Array, IntArray]:
        """Return (sessions, the keys of messages, the session that holds each, or NOBODY)."""
        sessions = self.logic.sessions.between(kv, START_OF_TIME_US, END_OF_TIME_US, None)
        return sessions, *self._holders(kv, side, rows, sessions)

    def _holders(self, kv: KV, side: int, rows: Slice, sessions: pa.Table) -> tuple[pa.Array, IntArray]:
        """Return (the keys of messages, the session that holds each, or NOBODY)."""
        columns = self.logic.inputs.called(kv, self.logic.inputs.schemas(kv))
        keys = pa.array(self.logic.keys(rows, side, columns), pa.binary())
        return keys, covering(sessions, keys, rows.times)

    # -- why --------------------------------------------------------------------------------------------------------

    def _emitted(
        self, kv: KV, both: Sequence[Slice], columns: Columns, *, settled: bool
    ) -> tuple[IntArray, IntArray]:
        """Return (left row, right row) of kept messages that made a row, NOBODY for a missing partner."""
        logic = self.logic
        sessions, _, held = self._held(kv, LEFT, both[LEFT])
        holders = [held, self._held(kv, RIGHT, both[RIGHT])[2]]
        for side in (LEFT, RIGHT):
            for key in columns.keys:
                nulls = combine(both[side].table.column(key[1 + side])).is_null()
                holders[side][nulls.to_numpy(zero_copy_only=False)] = NOBODY
        low, high = logic.reach.partners(LEFT, both[LEFT].times)
        blocks = [
            logic._matching(
                both, *pairs(holders[LEFT], low, high, holders[RIGHT], both[RIGHT].times), columns
            )
        ]
        done_us = logic.done(logic.progress(kv).watermark_us)
        ends = np.append(extent(sessions)[1], START_OF_TIME_US)
        for side in () if logic.definition.how == "semi" else logic.followed:
            alone = np.ones(len(both[side]), dtype=bool)
            alone[blocks[0][side]] = False
            whose = self._held(kv, side, both[side])[2]
            over = ends[whose] < done_us
            if side not in logic.making:
                over &= (whose != NOBODY) | (both[side].times < logic.undecided_from(done_us))
            rows = np.flatnonzero(alone & over)
            none = np.full(len(rows), NOBODY, dtype=np.int64)
            blocks.append((rows, none) if side == LEFT else (none, rows))
        if logic.definition.how == "anti":
            del blocks[0]
        return np.concatenate([f[LEFT] for f in blocks]), np.concatenate([f[RIGHT] for f in blocks])
