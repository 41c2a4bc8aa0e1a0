"""What is said of all tests: how long one may take, and which of them share a process.

A test that waits for ever is stopped, naming itself. `make test` says -n 3: what needs one JVM, or one broker, stays together
and begins first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
#: For tests that start Spark, a broker or many processes, on a busy machine; with the fixtures that they are first to need.
LONG_S = 1200
#: Tests that share something that takes long to start, the longest first.
TOGETHER = ("spark", "kafka")


def _group(item: pytest.Item) -> str:
    if item.path.relative_to(HERE).parts[0] in ("kafka", "drills"):
        return "kafka"
    return "spark" if item.get_closest_marker("spark") else str(item.path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shared = bool(config.getoption("loadgroup", False))
    for item in items:
        group = _group(item)
        takes_long = group in TOGETHER or item.get_closest_marker("slow")
        if takes_long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))
        if shared:
            item.add_marker(pytest.mark.xdist_group(group))
    if shared:
        rank = {group: n for n, group in enumerate(TOGETHER)}
        items.sort(key=lambda item: rank.get(_group(item), len(rank)))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if "told" in getattr(node, "workeroutput", {}):
        node.config.pluginmanager.get_plugin("terminalreporter").write_line(node.workeroutput["told"])
