"""Rows of a job's log: commits and dead letters."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from windrow.checkpoint.records import Commit
from windrow.core.positions import shown_source
from windrow.operators.steps.dead_letters import SCHEMA as LETTERS
from windrow.operators.steps.output_columns import STAMP, stamp_us

DEAD_SCHEMA = pa.schema([*LETTERS, ("operator", pa.string()), ("commit", pa.int64())])
COMMITS_SCHEMA = pa.schema(
    [
        ("commit", pa.int64()),
        ("epoch", pa.int64()),
        ("now", STAMP),
        ("watermark", STAMP),
        ("steps", pa.int64()),
        ("rows", pa.int64()),
        ("panes", pa.int64()),
        ("published", pa.int64()),
        ("query", pa.string()),
        ("batch", pa.int64()),
        (
            "next_offsets",
            pa.list_(pa.struct([("source", pa.string()), ("partition", pa.int64()), ("next", pa.int64())])),
        ),
    ]
)


def commits_table(commits: Sequence[Commit]) -> pa.Table:
    """Commit records as rows."""
    emitted = []
    for c in commits:
        now_us = c.now_us if c.now_us is not None else c.meta.get("now_us")
        emitted.append(
            {
                "commit": c.commit,
                "epoch": c.epoch,
                "now": now_us,
                "watermark": None if c.watermark_us is None else stamp_us(c.watermark_us),
                "steps": len(c.steps),
                "rows": sum(step.rows for step in c.steps),
                "panes": sum(shard.panes_rows for shard in c.shards),
                "published": c.published,
                "query": c.query_id,
                "batch": c.batch_id,
                "next_offsets": [
                    {"source": shown_source(s), "partition": p, "next": o}
                    for (s, p), o in sorted(c.next_offsets.items())
                ],
            }
        )
    return pa.Table.from_pylist(emitted, COMMITS_SCHEMA)
