"""Messages that were taken before, filed again as they were then: into the message store, and nowhere else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.operators.aggregate.filing import file_rows
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.state_rows import delta_rows
from windrow.operators.steps.columns import STEP
from windrow.operators.steps.dead import DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import take_in
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.sifting import sifted_into
from windrow.stores.kv import KV

IntArray = npt.NDArray[np.int64]
_WATERMARK = "__watermark"


def refile(
    operator: WindowAggregator,
    kv: KV,
    table: pa.Table,
    now_us: int,
    watermarks_us: IntArray,
    steps: IntArray,
) -> None:
    """File the rows of `table` as steps of these numbers did, each under the watermark that it had.

    The window metadata that belongs to them is there already. No pane, no dead letter, no metadata comes of it. Where size
    limits put windows out of retention, messages that only those took may stay away.
    """
    marked = table.append_column(_WATERMARK, pa.array(watermarks_us)).append_column(STEP, pa.array(steps))
    sifted_into(lambda kv, tables: _refiled(operator, kv, tables[""], now_us), kv, {"": marked})


def _refiled(operator: WindowAggregator, kv: KV, table: pa.Table, now_us: int) -> None:
    history, progress = operator.history, Progress.load(kv, operator.aux_cf)
    assert history is not None and progress.schema is not None, "nothing was filed before"
    operator._bind(progress.schema)
    operator.choose_keys(kv, progress.schema)
    silent = DeadLetters(0)
    rows = take_in(operator.definition, table, now_us, silent)
    if len(rows) == 0:
        return
    watermark_us = np.asarray(combine(rows.table.column(_WATERMARK)).to_numpy(), dtype=np.int64)
    size_floor = operator.limits.floors(kv, rows.table) if operator.limits.active else None
    filed = file_rows(operator.definition, operator.assigner, rows, watermark_us, size_floor, silent)
    if len(filed.row_of) == 0:
        return
    # It raises where it did: a message on which it does was not filed.
    delta_rows(operator.calculation, filed.rows, filed.row_of, filed.starts, filed.ends)
    step = np.asarray(combine(filed.rows.table.column(STEP)).to_numpy(), dtype=np.int64)
    history.add(kv, filed.rows, step, operator.calculation, closed=filed.closed)


def drop_expired(operator: WindowAggregator, kv: KV) -> None:
    """What was filed again and is needed by no retained window goes."""
    assert operator.history is not None
    floor = Progress.load(kv, operator.aux_cf).purged_us
    if operator.limits.active:
        floor = max(floor, operator.store.first_start(kv) or floor)
    operator.history.drop(kv, floor)
