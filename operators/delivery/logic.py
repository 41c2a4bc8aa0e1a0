"""Delivery: messages that the policy of the input lets pass are emitted as they are, or all with a mark. It keeps no state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.operators.delivery.definition import DeliveryDefinition
from windrow.operators.one_input import OneInputLogic, Work
from windrow.operators.steps.columns import EARLY, LATE, TIMING
from windrow.operators.steps.intake import Slice


class Deliverer(OneInputLogic):
    """The operator of one definition. Its only state in the store is its progress."""

    definition: DeliveryDefinition

    def __init__(self, definition: DeliveryDefinition) -> None:
        super().__init__(definition)
        self.adds_columns = definition.mark is not None

    def accept(self, work: Work, rows: Slice) -> Slice:
        timing = np.where(rows.times < work.progress.watermark_us, LATE, EARLY)
        emitted = rows.table.select([field.name for field in self.fields(work.schema)])
        work.result.panes.append(emitted.append_column(TIMING, pa.array(timing.tolist(), pa.string())))
        return rows

    def pass_time(self, work: Work, watermark_us: int) -> None:
        return None

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        mark = self.definition.mark
        emitted = [field for field in schema if field.name != mark]
        return emitted if mark is None else [*emitted, pa.field(mark, pa.bool_())]
