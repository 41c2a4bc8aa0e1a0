"""Replay of messages into the message store alone, as they were stored by the steps that processed them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.operators.aggregate.assignment import file_rows
from windrow.operators.steps.columns import STEP
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.derived_columns import with_derived
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import countable_rows
from windrow.operators.steps.poison_rows import OF_STEPS, sifted_into
from windrow.operators.steps.replayed_steps import Redone
from windrow.stores.kv import KV

if TYPE_CHECKING:
    from windrow.operators.aggregate.logic import WindowAggregator


def refile(operator: WindowAggregator, kv: KV, tables: Mapping[str, pa.Table], redone: Redone) -> int:
    """Store rows as their steps did, each under the watermark that it had; steps of one `now`.

    The window metadata that belongs to them is there already. The replay emits no pane, dead letter or metadata. If size limits
    put windows out of retention, messages that only those took may be left out.
    """
    sifted_into(partial(_refiled, operator, redone), kv, tables, OF_STEPS)
    return 0


def _refiled(operator: WindowAggregator, redone: Redone, kv: KV, tables: Mapping[str, pa.Table]) -> None:
    history, progress = operator.history, operator.progress(kv)
    assert history is not None and progress.schema is not None, "nothing was filed before"
    operator._bind(progress.schema)
    silent = DeadLetters(0)
    [table] = tables.values()
    if len(table) == 0:
        return
    first = combine(table.column(STEP))[0].as_py()
    table = with_derived(operator.definition.makes, table)
    table, _ = operator._passing(table, int(redone.nows_us[first]), silent)
    rows = countable_rows(operator.definition, table, int(redone.nows_us[first]), silent)
    if len(rows) == 0:
        return
    watermark_us = redone.watermarks_us[combine(rows.table.column(STEP)).to_numpy()]
    size_floor = operator.limits.floors(kv, rows.table) if operator.limits.active else None
    filed = file_rows(operator.definition, operator.assigner, rows, watermark_us, size_floor, silent)
    if len(filed.row_of) == 0:
        return
    step = np.asarray(redone.numbers[combine(filed.rows.table.column(STEP)).to_numpy()], dtype=np.int64)
    # It raises where it did: a message on which it does was not stored.
    operator.deltas(operator.noted(filed.rows, step), filed.row_of, filed.starts, filed.ends)
    history.add(kv, filed.rows, step, operator.calculation, closed=filed.closed)


def drop_expired(operator: WindowAggregator, kv: KV) -> None:
    """Delete replayed messages that no retained window needs."""
    assert operator.history is not None
    floor, limited = operator.progress(kv).purged_us, operator.limits.active
    if limited:
        floor = max(floor, operator.store.first_start(kv) or floor)
    operator.history.drop(kv, floor, exactly=limited)
