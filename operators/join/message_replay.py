"""Message replay of a join: messages ingested before are filed again into the message stores, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.expressions import Expr
from windrow.operators.join.tables import conform
from windrow.operators.steps.columns import STEP
from windrow.operators.steps.dead_letters import MALFORMED, DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.input_filter import divided
from windrow.operators.steps.intake import Slice, countable_rows
from windrow.operators.steps.poison_rows import OF_STEPS, sifted
from windrow.operators.steps.replayed_steps import Redone
from windrow.stores.kv import KV, Batch, Overlay

if TYPE_CHECKING:
    from windrow.operators.join.logic import JoinOperator


def refile(operator: JoinOperator, kv: KV, tables: Mapping[str, pa.Table], redone: Redone) -> int:
    """File messages of a join over time again, ingested by steps (`STEP`, an index) of these times. Returns the number of
    messages that are malformed themselves."""
    uncounted, nows_us, watermarks_us = 0, redone.nows_us, redone.watermarks_us
    definition, sides, batch = operator.definition, operator.inputs.schemas(kv), Batch()
    columns = operator.inputs.called(kv, sides)
    for side, given in enumerate((definition.left, definition.right)):
        if given.name not in tables:
            continue
        dead, table = DeadLetters(0), tables[given.name]
        if given.where is not None:
            # A message on which the filter raises did not count, nor did one without a time.
            filtered = partial(_divided, given.where)
            table, others = sifted(filtered, Overlay(kv), {given.name: table}, OF_STEPS)
            countable_rows(operator.readings[side], others, int(nows_us.max()), dead)
        rows = countable_rows(operator.readings[side], table, int(nows_us.max()), dead)
        step = combine(rows.table.column(STEP)).to_numpy()
        good = np.ones(len(rows), dtype=bool)
        if given.max_ahead_us is not None:
            good = rows.times <= nows_us[step] + given.max_ahead_us
        if side == 0 or not definition.is_self_join:
            uncounted += dead.counts.get(MALFORMED, 0) + int((~good).sum())
        if not given.static:
            done_us = np.array([operator.done(w) for w in watermarks_us.tolist()], dtype=np.int64)
            good &= operator.reach.open_until(side, rows.times) > done_us[step]
        rows, step = rows.take(np.flatnonzero(good)), step[good]
        rows = Slice(conform(rows.table, sides[side]), rows.times)
        if len(rows):
            keys = operator.keys(rows, side, columns)
            operator.file_again(kv, batch, side, rows, keys, int(step.max()))
    kv.write(batch)
    return uncounted


def _divided(where: Expr, kv: KV, tables: Mapping[str, pa.Table]) -> tuple[pa.Table, pa.Table]:
    [table] = tables.values()
    return divided(where, table)
