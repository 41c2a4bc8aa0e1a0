"""When a query may end, and what Spark is told of a batch that it has interrupted."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from windrow.runners.spark.graceful_stop import Gate, Interrupted, read_to_the_end

#: Spark's own, in StreamExecution: what matches was interrupted by stop() and did not fail.
SPARKS = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling((.|\\r\\n|\\r|\\n)*)"
    "(java.lang.InterruptedException|java.io.InterruptedIOException|java.nio.channels.ClosedByInterruptException)"
)


def progress(batch: int, offsets: tuple[str, str, str], *steps: str) -> dict[str, Any]:
    sources = [("RateStreamV2[rowsPerSecond=1", ("0", "9", "9")), ("FileStreamSource[in]", offsets)]
    return {
        "batchId": batch,
        "durationMs": dict.fromkeys(steps, 1),
        "sources": [
            {"description": d, "startOffset": s, "endOffset": e, "latestOffset": n, "numInputRows": 0}
            for d, (s, e, n) in sources
        ],
    }


@pytest.mark.parametrize(
    ("newest", "first", "read"),
    [
        (
            progress(3, ("1", "2", "null"), "addBatch"),
            2,
            False,
        ),  # a batch that was skipped has no rows either
        (progress(3, ("2", "2", "null"), "addBatch"), 2, True),
        (progress(3, ("2", "2", "2"), "addBatch"), 2, True),
        (progress(3, ("2", "2", "5"), "addBatch"), 2, False),  # it waits until there is enough for a batch
        (progress(3, ("2", "2", "null"), "addBatch"), 3, False),  # perhaps planned by the life before
        (progress(3, ("2", "2", "null"), "addBatch"), None, False),
        (
            progress(3, ("2", "2", "null"), "latestOffset"),
            None,
            True,
        ),  # nothing was due: no batch was left over
    ],
)
def test_all_is_read_where_a_newly_planned_trigger_found_no_new_offset(
    newest: dict[str, Any], first: int | None, read: bool
) -> None:
    assert read_to_the_end(newest, first) is read


def test_a_closed_gate_holds_the_next_batch_until_the_query_ends_and_gives_it_back_undone() -> None:
    gate, over = Gate(), threading.Event()
    got: list[BaseException] = []

    def batch() -> None:
        try:
            with gate.batch():
                got.append(AssertionError("it was let in"))
        except Interrupted as error:
            got.append(error)

    with gate.batch():  # open: it is let in
        assert gate.is_inside
    assert not gate.is_inside
    waiting = threading.Thread(target=batch)
    starts = iter([False, False, True])  # the gate is closed when this is first asked

    def idle() -> bool:
        if next(starts, False):
            waiting.start()
        return False

    gate.close(over.is_set, idle)
    assert waiting.is_alive() and got == []
    over.set()
    waiting.join()
    [error] = got
    assert re.search(SPARKS, str(error)) and len(str(error)) < 400


def test_what_interrupted_a_batch_is_reported_in_short_and_what_failed_it_as_it_is() -> None:
    gate, failed = Gate(), ValueError("a sink refused")
    with pytest.raises(ValueError, match="a sink refused"), gate.batch():
        raise failed
    long = RuntimeError(": java.nio.channels.ClosedByInterruptException" + "\n at x" * 999)
    with pytest.raises(Interrupted) as interrupted, gate.batch():
        raise failed from long
    assert (
        re.search(SPARKS, str(interrupted.value))
        and str(interrupted.value).startswith("a sink refused")
        and interrupted.value.__suppress_context__
    )
