"""How an operator takes what another one tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windrow.core.errors import ReservedColumn, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import Input


@dataclass(frozen=True, slots=True)
class Taker:
    """How an operator takes what another one tells: on which input, and what columns of it it names."""

    name: str
    input: Input
    columns: tuple[str, ...]
    #: Why it cannot take a message back; "" where it can.
    keeps: str = "aggregates and joins over time take messages back, it does not"
    #: How late what it takes may be.
    allowed_lateness_us: int = 0
    #: Its expressions over columns, beside the filter of the input.
    uses: tuple[Expr, ...] = ()

    @property
    def event_time(self) -> str:
        return self.input.event_time

    def check_columns(self, columns: Sequence[str], whose: str, remedy: str = "") -> None:
        """Refuse columns that the rows that it takes do not have, and a mark that they have. told: their columns; whose: whose
        rows they are."""
        mark = None if self.input.deliver is None else self.input.deliver.mark
        if mark in columns:
            raise ReservedColumn(
                f"mark={mark!r} of {self.name!r} has the name of a column of {whose} have {list(columns)}: "
                "give it another one"
            )
        columns = columns if mark is None else [*columns, mark]
        lacking = next((f"column {column!r}" for column in self.columns if column not in columns), None)
        if lacking is None:
            uses = (*self.input.asked, *self.uses)
            lacking = next((f"a column in {use!r}" for use in uses if use.lacks(columns)), None)
        if lacking is not None:
            raise UnknownColumn(f"{lacking} of {self.name!r} is none of {whose} have {list(columns)}{remedy}")
