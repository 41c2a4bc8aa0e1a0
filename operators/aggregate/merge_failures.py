"""Merge failures: user code that raises when new messages are merged with stored state. The step that brings the messages finds
it: they are dead letters, and the state stays as it was.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.types import concat
from windrow.operators.aggregate.state_rows import merge_rows
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.steps.columns import START, UPSERT
from windrow.operators.steps.groups import Groups


def broken_where_they_meet(
    calculation: Calculation, stored: pa.Table | None, deltas: pa.Table, codes: IntArray | None = None
) -> list[Broken]:
    """Return the failures of user code by row of `deltas`, a row a (window, key). No code is called where nothing is stored.

    stored: state rows, oldest first, of these (window, key)s and perhaps of others. codes: a number for the (window, key) of
    each row, stored ones first, if known
    """
    if not calculation.runs_code or stored is None or len(stored) == 0:
        return []
    rows = concat([stored, deltas.append_column(UPSERT, pa.array(np.zeros(len(deltas), dtype=bool)))])
    if codes is None:
        codes = Groups([rows.column(name) for name in (START, *calculation.definition.by)], len(rows)).codes
    place = np.full(int(codes.max()) + 1, -1, dtype=np.int64)
    place[codes[len(stored) :]] = np.arange(len(deltas))
    with_delta = place[codes] >= 0
    groups = Groups.of_codes(place[codes[with_delta]], len(deltas))
    _, broken = merge_rows(calculation, rows.filter(pa.array(with_delta)), groups=groups)
    return broken
