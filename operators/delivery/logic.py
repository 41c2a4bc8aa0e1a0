"""Delivery: a pure function of the messages of a step and its `now`. Nothing is remembered."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray
from windrow.operators.delivery.definition import DeliveryDefinition
from windrow.operators.one_input import OneInputLogic, WholeMessages, Work
from windrow.operators.steps.columns import EARLY, LATE, TIMING
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice


class Deliverer(OneInputLogic):
    """One definition. Of the store it has its progress alone."""

    definition: DeliveryDefinition

    def __init__(self, definition: DeliveryDefinition) -> None:
        super().__init__(definition)
        self.needs = DeliveryNeeds(definition)

    def take(self, work: Work, rows: Slice) -> Slice:
        passes = self._passes(rows, work.now_us)
        if not passes.all():
            work.result.counts["skipped"] = int(len(rows) - passes.sum())
        some = rows.take(np.flatnonzero(passes))
        if len(some):
            timing = np.where(some.times < work.progress.watermark_us, LATE, EARLY)
            told = some.table.select(work.schema.names).append_column(
                TIMING, pa.array(timing.tolist(), pa.string())
            )
            work.result.panes.append(told)
        return rows

    def pass_time(self, work: Work, watermark_us: int) -> None:
        return None

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        return list(schema)

    def _passes(self, rows: Slice, now_us: int) -> BoolArray:
        """True for the messages that are passed on. rows: in position order."""
        policy, n = self.definition.policy, len(rows)
        sure = np.zeros(n, dtype=bool)
        if self.definition.guarantee is not None:
            truth = pc.fill_null(combine(self.definition.guarantee.evaluate(rows.table)), False)
            sure = truth.to_numpy(zero_copy_only=False)
        if policy.within_us is not None:
            young: BoolArray = now_us - rows.times <= policy.within_us
            return young | sure
        assert policy.newest is not None
        groups = Groups([rows.table.column(b) for b in self.definition.by], n)
        room = np.maximum(policy.newest - np.bincount(groups.codes[sure], minlength=groups.size), 0)
        others = np.flatnonzero(~sure)[::-1]  # the newest first
        order = np.argsort(groups.codes[others], kind="stable")
        codes = groups.codes[others][order]
        first = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]][: len(codes)])
        place = np.arange(len(codes)) - np.repeat(first, np.diff(np.r_[first, len(codes)]))
        passes = sure.copy()
        passes[others[order]] = place < room[codes]
        return passes


class DeliveryNeeds(WholeMessages):
    """Keys, event time, and what the guarantee names."""

    def __init__(self, definition: DeliveryDefinition) -> None:
        super().__init__(definition)
        self._guarantee = definition.guarantee

    def named(self, names: Iterable[str]) -> set[str]:
        names = list(names)
        asked = set() if self._guarantee is None else {n for n in names if self._guarantee.mentions(n)}
        return super().named(names) | asked
