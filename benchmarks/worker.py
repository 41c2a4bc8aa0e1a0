"""`python -m benchmarks.worker <messages>`: what a Spark worker does for one shard, in a process of its own.

Every commit files 250,000 messages for a median and fires the windows that the watermark passed; all messages are kept.
Prints the peak of resident memory after a tenth of the messages and at the end.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile

import pyarrow as pa
import structlog

from windrow.checkpoint.job import Job
from windrow.checkpoint.records import Step
from windrow.checkpoint.shard import ShardSpec
from windrow.core.clock import SystemClock
from windrow.runners import tasks, wire

from .data import ROWS_PER_FILE, SCHEMA, medians, rows


def main(messages: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    definition = medians()
    cfs = definition.logic().cfs()
    kept = tuple(c for c in cfs if c.endswith((".messages", ".message_index")))
    early = 0.0
    with tempfile.TemporaryDirectory(prefix="windrow-bench-") as folder:
        job = Job(folder, [definition], shards=1, clock=SystemClock())
        spec = ShardSpec(job.folders, job.job, -1, tuple(c for c in cfs if c not in kept), kept)
        schema = SCHEMA.serialize().to_pybytes()
        for first in range(0, messages, ROWS_PER_FILE):
            plan = job.plan()
            job.record_intent(plan)
            task = tasks.TaskPlan(
                spec,
                (definition,),
                plan.commit,
                plan.now_us,
                dict(plan.watermarks_us),
                schema,
                None,
                tuple(job.recent),
            )
            [reply] = tasks.run(task, iter(_arriving(first)))
            answer = pickle.loads(reply.column("payload")[0].as_py())
            job.commit(
                plan.commit,
                [Step(kind="ingest", now_us=plan.now_us, watermark_us=None, rows=answer.rows)],
                [answer.result],
                marks=answer.marks,
                next_offsets={},
                watermarks_us=plan.watermarks_us,
                now_us=plan.now_us,
            )
            job.mark_published(plan.commit)
            if first + ROWS_PER_FILE <= messages // 10 or not early:
                early = peak_mib()
        job.close()
    print(json.dumps({"early_mib": early, "last_mib": peak_mib()}))


def _arriving(first: int) -> list[pa.RecordBatch]:
    """Rows as Spark's shuffle brings them: with their shard, in batches of 10,000."""
    table = rows(first, ROWS_PER_FILE)
    n = len(table)
    for name, column in (
        (wire.OPERATOR, pa.array([0] * n, pa.int32())),
        (wire.SHARD, pa.array([0] * n, pa.int32())),
        (wire.CONTROL, pa.nulls(n, pa.bool_())),
    ):
        table = table.append_column(name, column)
    return table.to_batches(max_chunksize=10_000)


def peak_mib() -> float:
    """The highest resident memory of this process so far."""
    with open("/proc/self/status", encoding="ascii") as status:
        [line] = [x for x in status if x.startswith("VmHWM")]
    return round(int(line.split()[1]) / 1024, 1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
