"""Parts of a session aggregator that functions on a step use: `logic.py` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Trigger
from windrow.core.expressions import Expr
from windrow.operators.aggregate.count_retention import SizeLimits
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.kept_messages import History
from windrow.operators.aggregate.sessions.panes import SessionNumbers
from windrow.operators.aggregate.sessions.rows import Rows, Spans, Step, Stored
from windrow.operators.aggregate.sessions.timers import SessionTimers
from windrow.operators.aggregate.timing import Edges
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.assigners import WindowAssigner
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.intake import Slice
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV
from windrow.stores.sessions import SessionStore
from windrow.stores.window_state import Near


class Sessions(Protocol):
    """The sessions of one definition on a store."""

    definition: AggregateDefinition
    aux_cf: str
    store: SessionStore
    timers: SessionTimers
    spans: Spans
    numbers: SessionNumbers
    limits: SizeLimits
    history: History | None
    seen: SeenIds | None
    gap_us: int
    own_gap: Expr | None
    longest_us: int | None
    cells: WindowAssigner | None
    limited: bool
    disjoint: bool
    lets_wait: bool

    @property
    def calculation(self) -> Calculation: ...

    def edges(self, watermark_us: int) -> Edges: ...
    def has_passed(self, ends: IntArray, watermark_us: int) -> BoolArray: ...
    def closed_before(self, watermark_us: int) -> int: ...
    def kept_from(self, watermark_us: int) -> int: ...
    def retained_from(self, watermark_us: int) -> int: ...
    def near(self, step: Step, homes: IntArray, hashes: Hashes) -> Stored | None: ...
    def read(self, kv: KV, homes: Sequence[int], emitted_us: int) -> pa.Table | None: ...
    def noted(self, rows: Slice, step: int | IntArray, numbers: IntArray | None = None) -> Slice: ...
    def dated(self, deltas: pa.Table, step: Step) -> pa.Table: ...
    def merged(self, rows: pa.Table, groups: Groups, dead: DeadLetters) -> pa.Table: ...
    def keep(self, step: Step, near: Near, stay: IntArray, rows: Rows, homes: IntArray) -> None: ...
    def judged(self, step: Step, rows: Rows, trigger: Trigger) -> BoolArray: ...
    def fires_in_time(self, rows: Rows) -> BoolArray: ...
    def fire(
        self,
        step: Step,
        rows: Rows,
        which: BoolArray,
        timing: str,
        *,
        closing: bool = False,
        always: bool = False,
    ) -> Rows: ...
    def fire_stored(
        self,
        step: Step,
        stored: Stored,
        which: BoolArray,
        timing: str,
        *,
        closing: bool = False,
        always: bool = False,
    ) -> None: ...
    def emit(self, step: Step) -> None: ...
