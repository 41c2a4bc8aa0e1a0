"""`wr.sinks.kafka` in tests of a job: on a cluster in this process."""

import json
from pathlib import Path

import windrow as wr
from windrow.connectors.kafka.sink import read_all
from windrow.testing import ManualClock, SimulatedKafka

COUNTS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour"
)


def test_a_job_of_a_user_writes_to_a_cluster_that_is_simulated_and_each_pane_once(tmp_path: Path) -> None:
    kafka = SimulatedKafka()
    for second in (1, 11, 21):
        sink = wr.sinks.kafka("out", kafka)
        with COUNTS.open(str(tmp_path), sink=sink, clock=ManualClock()) as op:
            for offset in range(second):  # all from the beginning: what was counted is a replay
                op.add_message(wr.Message({"k": "a", "t": offset * 1_000_000}, wr.Position("s", 0, offset)))
    with COUNTS.open(str(tmp_path), sink=wr.sinks.kafka("out", kafka), clock=ManualClock()) as op:
        op.drain()
    delivered = [json.loads(record.value()) for record in read_all(kafka, "out", 0)]  # type: ignore[arg-type]
    assert [(row["window"]["start"][17:19], row["n"]) for row in delivered] == [
        ("00", 10),
        ("10", 10),
        ("20", 1),
    ]
