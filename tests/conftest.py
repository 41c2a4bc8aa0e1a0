"""How long a test may take: it is stopped, naming itself, where it waits for ever."""

import pytest

#: For tests that start Spark, a broker or many processes, on a busy machine; with the fixtures that they are first to need.
LONG_S = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        takes_long = (
            any(item.get_closest_marker(name) for name in ("slow", "spark")) or "kafka" in item.path.parts
        )
        if takes_long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))
