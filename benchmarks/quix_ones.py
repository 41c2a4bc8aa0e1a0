"""`python quix_ones.py <folder>`: messages one by one through Quix Streams' own window operator and store, no broker between.

Runs in an environment of its own, so it imports nothing of windrow's. Reads messages, JSON of [time in ms, key, value], from
standard input. A result at every message; a checkpoint every 1,000, which writes the store (no changelog topic: there is no
broker). Prints the messages it takes in a second of CPU time.
"""

from __future__ import annotations

import json
import sys
import time
from unittest.mock import MagicMock

from quixstreams.context import set_message_context
from quixstreams.dataframe import DataFrameRegistry, StreamingDataFrame
from quixstreams.dataframe.windows import Count, Sum
from quixstreams.models import MessageContext, Topic, TopicConfig
from quixstreams.models.topics import TopicManager
from quixstreams.processing import ProcessingContext
from quixstreams.sinks import SinkManager
from quixstreams.state import StateStoreManager

WINDOW_MS = 600_000
COMMIT = 1_000
NAME = "ones"


def main(folder: str) -> None:
    messages = json.load(sys.stdin)
    registry, emitted = DataFrameRegistry(), []
    consumer = MagicMock()
    consumer.commit.return_value = []
    producer = MagicMock()
    producer.flush.return_value = 0
    state = StateStoreManager(group_id="ones", state_dir=folder)
    context = ProcessingContext(
        commit_interval=1e9,
        producer=producer,
        consumer=consumer,
        state_manager=state,
        sink_manager=SinkManager(),
        dataframe_registry=registry,
    )
    topic = Topic(NAME)
    topic.broker_config = TopicConfig(1, 1, {"retention.ms": "-1", "retention.bytes": "-1"})
    manager = MagicMock(spec=TopicManager)
    manager.stream_id_from_topics.return_value = NAME
    frame = StreamingDataFrame(topic, topic_manager=manager, registry=registry, processing_context=context)
    registry.register_root(frame)
    windows = frame.tumbling_window(WINDOW_MS, grace_ms=WINDOW_MS).agg(n=Count(), s=Sum("v")).current()
    run = windows.compose(sink=lambda value, key, timestamp, headers: emitted.append(value))[NAME]
    state.init()
    state.on_partition_assign(stream_id=NAME, partition=0, committed_offsets={})
    context.init_checkpoint()
    begin = time.process_time()
    for i, (time_ms, key, value) in enumerate(messages):
        set_message_context(MessageContext(topic=NAME, partition=0, offset=i, size=1))
        run({"v": value}, key, time_ms, [])
        context.store_offset(NAME, 0, i)
        if i % COMMIT == COMMIT - 1:
            context.checkpoint.commit()
            context.init_checkpoint()
    seconds = time.process_time() - begin
    assert len(emitted) == len(messages), f"{len(emitted)} results of {len(messages)} messages"
    print(json.dumps({"rate": len(messages) / seconds, "sum": sum(m[2] for m in messages)}))


if __name__ == "__main__":
    main(sys.argv[1])
