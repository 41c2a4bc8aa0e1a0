"""What is said of all tests: how long one may take, and which of them share a process.

A test that waits for ever is stopped, naming itself. `make test` says -n 3: rooms that need one JVM, or one broker, stay
together and begin first; of the others, files do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
#: For tests that start Spark, a broker or many processes, on a busy machine; with the fixtures that they are first to need.
LONG_S = 1200
#: Rooms that share something that takes long to start, the longest first.
TOGETHER = ("spark", "kafka")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rooms = {item: item.path.relative_to(HERE).parts[0] for item in items}
    for item, room in rooms.items():
        takes_long = room in TOGETHER or any(item.get_closest_marker(name) for name in ("slow", "spark"))
        if takes_long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))
    rank = {room: n for n, room in enumerate(TOGETHER)}
    items.sort(key=lambda item: rank.get(rooms[item], len(rank)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByRoom(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            room = path.removeprefix("tests/").partition("/")[0]
            return room if room in TOGETHER else path

    return ByRoom(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if "told" in getattr(node, "workeroutput", {}):
        node.config.pluginmanager.get_plugin("terminalreporter").write_line(node.workeroutput["told"])
