"""Downstream contract: the input and the columns by which an operator receives the rows of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windrow.core.errors import ReservedColumn, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import Input


@dataclass(frozen=True, slots=True)
class Taker:
    """The receiving end of a chain: the input that receives the rows of another operator, and the columns that it names."""

    name: str
    input: Input
    columns: tuple[str, ...]
    #: Reason why it cannot process a retraction; "" where it can.
    keeps: str = "aggregates and joins over time take messages back, it does not"
    #: Allowed lateness of the rows that it receives.
    allowed_lateness_us: int = 0
    #: Its expressions over columns, without the filter of the input.
    uses: tuple[Expr, ...] = ()

    @property
    def event_time(self) -> str:
        return self.input.event_time

    def check_columns(self, columns: Sequence[str], whose: str, remedy: str = "") -> None:
        """Raise if the upstream rows lack a column that it names, or have one named as the mark. columns: those of the rows;
        whose: the operator that emits them, for the message."""
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
