"""A sink that keeps its input, and refuses on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from windrow.connectors.pane_files import PaneFiles
from windrow.core.messages import Token
from windrow.testing.expected_output import Broken

#: The exception of a sink that refuses.
Refused = OSError


@dataclass
class Outlet:
    """A sink of rows by operator and commit. A commit that is published again has to be the same."""

    refuses: Callable[[], bool]
    tables: dict[tuple[str, int], pa.Table] = field(default_factory=dict)

    def publish(self, token: Token, panes: PaneFiles) -> None:
        table = panes.table()
        if self.refuses():
            raise Refused("the sink refuses")
        known = self.tables.setdefault((panes.operator, token.commit), table)
        if not known.equals(table):
            raise Broken(f"commit {token.commit} of {panes.operator} was published twice, with other rows")
        if self.refuses():
            raise Refused("the sink has it, and does not answer")

    def last_commit(self, job: str, operator: str) -> int | None:
        return None

    def rows(self, operator: str) -> int:
        return sum(len(t) for (name, _), t in self.tables.items() if name == operator)
