"""A sink that loses the panes of commits 4, 9, 14, ..., for who has to see a simulation fail."""

from __future__ import annotations

from windrow.core.messages import Pane
from windrow.testing.simulated_sinks import MemoryOutlet


class Outlet(MemoryOutlet):
    """What it has, without that."""

    def read(self) -> list[Pane]:
        return [pane for pane in super().read() if (pane.commit or 0) % 5 != 4]
