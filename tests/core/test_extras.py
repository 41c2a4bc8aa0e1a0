"""Messages for missing packages, and for first mistakes, which fail at the call."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import windrow as wr
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime

COUNTS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
)
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({modules!r}))
import windrow as wr
counts = wr.Aggregate(by="k", event_time="t", window=wr.tumbling("1 hour"), agg={{"n": wr.count()}}, retention="1 day")
for call in {calls!r}:
    try:
        exec(call)
    except wr.ConfigurationError as error:
        print(repr(str(error)))
"""
#: A module, a call that needs it, and the extra to install.
NEEDED = [
    ("pyspark", "counts.foreach_batch('ckpt')", "windrow[spark]"),
    ("confluent_kafka", "wr.Kafka('localhost:9092')", "windrow[kafka]"),
    ("confluent_kafka", "wr.kafka_log('localhost:9092', 'x')", "windrow[kafka]"),
    (
        "confluent_kafka",
        "from windrow.testing import simulate; simulate(counts, [{'t': 0, 'k': 1}], seeds=1)",
        "windrow[testing]",
    ),
    ("fastavro", "wr.decoders.avro('http://registry')", "windrow[avro]"),
]


@pytest.mark.parametrize(
    "name",
    ["Aggregate", "CoGroup", "Deduplicate", "Delivery", "Input", "Join", "JoinWindow", "Over", "Process"],
)
def test_an_argument_that_is_missing_is_one_of_what_was_called(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^wr\.{name}\(\) missing \d required"):
        getattr(wr, name)()


def test_what_is_not_installed_is_reported_with_what_to_install() -> None:
    script = WITHOUT.format(
        modules=[module for module, _, _ in NEEDED], calls=[call for _, call, _ in NEEDED]
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for error, (module, _, extra) in zip(said.stdout.splitlines(), NEEDED, strict=True):
        assert f"needs {module}" in error and f"pip install '{extra}'" in error


REFUSED: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "a sink as text": (lambda at: COUNTS.open(at, sink="out/x"), ["'out/x'", "wr.sinks.parquet"]),
    "a sink of a number": (lambda at: COUNTS.open(at, sink=42), ["42", "wr.sinks.parquet"]),
    "shards as text": (lambda at: COUNTS.foreach_batch(at, shards="abc"), ["shards='abc'", "1 or more"]),
    "no shards": (lambda at: COUNTS.foreach_batch(at, shards=0), ["shards=0", "1 or more"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_people_type_first_is_refused_with_the_remedy(name: str, tmp_path: Any) -> None:
    build, message = REFUSED[name]
    with pytest.raises(wr.ConfigurationError) as caught:
        build(str(tmp_path / "job"))
    assert [part for part in message if part not in str(caught.value)] == []


def test_a_window_reports_its_bounds_as_datetimes_and_as_integers() -> None:
    hour = wr.Window(3_600_000_000, 7_200_000_000)
    assert (hour.start.isoformat(), hour.end.isoformat()) == (
        "1970-01-01T01:00:00+00:00",
        "1970-01-01T02:00:00+00:00",
    )
    assert (to_datetime(hour.start_us), to_datetime(hour.end_us)) == (hour.start, hour.end)
    always = wr.Window(START_OF_TIME_US, END_OF_TIME_US)
    assert (always.start.year, always.end.year) == (1, 9999)
