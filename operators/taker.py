"""How an operator takes what another one tells."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def event_time(self) -> str:
        return self.input.event_time
