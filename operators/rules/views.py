"""Views of the state of rules: their rows, and the messages that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.types import concat
from windrow.operators.rules.definition import MATCH_TIME, MESSAGES, RulesDefinition
from windrow.operators.rules.logic import RulesOperator
from windrow.operators.rules.matches import in_order, messages_of
from windrow.operators.rules.reasons import Reasons
from windrow.operators.rules.rule_columns import MESSAGE
from windrow.operators.steps.columns import OFFSET, POSITION_COLUMNS
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_columns import STAMP
from windrow.operators.view import (
    Provenance,
    Query,
    View,
    key_of,
    message_columns,
    of_key,
    rows_without_prefix,
)
from windrow.stores.event_log import TIME

PENDING = "pending"


class RulesView(View):
    """The view of rules. `messages` of each input that are kept, and `pending` tuples, by their deadlines."""

    logic: RulesOperator
    definition: RulesDefinition

    def messages(self, query: Query) -> list[Slice]:
        of_input = self.input(query.input)
        parts = [
            part for kv in self.stores if (part := self.logic.kept_messages(kv, of_input.name)) is not None
        ]
        if not parts:
            return []
        table = concat([table for table, _ in parts])
        rows = Slice(table, np.concatenate([times for _, times in parts]))
        kept = rows.take(np.flatnonzero(query.selects(rows, self.definition.keys(of_input))))
        places = kept.table.select(POSITION_COLUMNS).rename_columns([f".{n}" for n in POSITION_COLUMNS])
        order = in_order(places, [""])
        order = order[np.argsort(kept.times[order], kind="stable")]
        return [rows_without_prefix(kept.take(order), self.source_prefix(of_input.name))]

    def message_schema(self, input: str | None) -> pa.Schema:
        of_input = self.input(input)
        known = self.known(of_input.name)
        if known is None:
            return message_columns([])
        columns = self.logic.columns_of_rules.kept(of_input, known)
        return message_columns([pa.schema([known.field(n) for n in columns])])

    # -- tuples that wait -------------------------------------------------------------------------------------------

    def table(self, table: str, query: Query) -> pa.Table:
        if table != PENDING:
            return super().table(table, query)
        low_us, high_us = query.times
        found = [
            self._pending(rule, what, tuples)
            for kv in self.stores
            for rule, what, tuples in self.logic.pending_tuples(kv)
        ]
        types = zip(self.definition.by, self.key_types().values(), strict=False)
        own = [("rule", pa.string()), ("waits_for", pa.string()), ("deadline", STAMP)]
        empty = pa.schema([*types, *own, (MESSAGES, pa.list_(MESSAGE))]).empty_table()
        rows = concat([empty, *found])
        times = rows.column("deadline").cast(pa.int64()).to_numpy()
        wanted = of_key(rows, key_of(self.definition.by, query.key))
        rows = rows.filter(pa.array((times >= low_us) & (times <= high_us) & wanted))
        return rows.sort_by([("deadline", "ascending"), ("rule", "ascending")])

    def timed(self, table: str) -> str | None:
        return "deadline" if table == PENDING else super().timed(table)

    def _pending(self, rule: str, what: str, tuples: pa.Table) -> pa.Table:
        """Give tuples that wait as rows."""
        planned = next(one for one in self.logic.planned if one.name == rule)
        inputs = {b: place for b, place in planned.inputs.items() if f"{b}.{OFFSET}" in tuples.column_names}
        columns = {name: combine(tuples.column(name)) for name in self.definition.by}
        columns["rule"] = pa.repeat(pa.scalar(rule, pa.string()), len(tuples))
        columns["waits_for"] = pa.repeat(pa.scalar(what, pa.string()), len(tuples))
        columns["deadline"] = combine(tuples.column(TIME)).cast(STAMP)
        columns[MESSAGES] = messages_of(tuples, inputs)
        return pa.table(columns)

    # -- why --------------------------------------------------------------------------------------------------------

    row_time = MATCH_TIME

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Provenance]]:
        reasons = Reasons(self.logic, self.definition, self.stores)
        return [
            [Provenance(None, row, reasons.messages(row), reasons=reasons.of_row(row))]
            if MESSAGES in row
            else []
            for row in rows
        ]

    def why_not(self, offsets: Mapping[str, int]) -> list[str]:
        return Reasons(self.logic, self.definition, self.stores).why_not(offsets)
