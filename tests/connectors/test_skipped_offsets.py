"""Offsets of a backlog that a delivery policy lets nobody read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.connectors.kafka.skipped_offsets import MARKERS, Unread, counted_offsets, unread_of
from windrow.operators.graph.parallel import in_parallel

VALUE = wr.decoders.json({"t": pa.int64(), "k": pa.string()})


class Broker:
    """Timestamps of a cluster, in milliseconds, by partition; and the questions put to it."""

    def __init__(self, stamps: dict[tuple[str, int], list[int]]) -> None:
        self.stamps = stamps

    def at_times(self, times_ms: dict[tuple[str, int], int]) -> dict[tuple[str, int], int | None]:
        return {
            at: next((i for i, stamp in enumerate(self.stamps[at]) if stamp >= ms), None)
            for at, ms in times_ms.items()
        }


def source(**columns: str) -> Any:
    return wr.sources.kafka("localhost:9", "topic", value=VALUE, columns=columns)


def totals(deliver: Any, **options: Any) -> wr.Aggregate:
    what: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count()},
        "retention": "1 minute",
    }
    return wr.Aggregate(**{**what, **options}, deliver=deliver)


D = wr.deliver
BY_TIME, BY_PLACE = D.within("2 seconds"), D.newest(5, per="input")


@pytest.mark.parametrize(
    ("definition", "columns", "wanted"),
    [
        (totals(BY_PLACE), {}, Unread(newest=5)),
        (totals(D.latest(per="input")), {}, Unread(newest=1)),
        (totals(D.throttle("1 second", per="input")), {}, Unread(newest=1)),
        (totals(D.latest(), by=()), {}, Unread(newest=1)),
        (totals(BY_TIME), {"t": "timestamp"}, Unread(within_us=2_000_000)),
        (totals(BY_TIME, where=wr.col("k") == "a"), {"t": "timestamp"}, Unread(within_us=2_000_000)),
        (wr.Delivery(event_time="t", policy=D.newest(3)).then(totals(None)), {}, Unread(newest=3)),
        # What decides is in the record, or has to be kept.
        (totals(D.latest()), {}, None),
        (totals(None), {}, None),
        (totals(D.synchronous()), {}, None),
        (totals(BY_TIME), {}, None),
        (totals(BY_TIME), {"t": "offset"}, None),
        (totals(BY_PLACE.guarantee(wr.col("k") == "a")), {}, None),
        (totals(BY_TIME.guarantee(wr.col("k") == "a")), {"t": "timestamp"}, None),
        (totals(D.newest(5, per="input", record="dead_letters")), {}, None),
        (wr.Delivery(event_time="t", policy=D.newest(5), mark="skipped", name="totals"), {}, None),
        (totals(BY_PLACE, where=wr.col("k") == "a"), {}, None),
    ],
    ids=repr,
)
def test_what_nobody_has_to_read_follows_from_the_policy(
    definition: Any, columns: dict[str, str], wanted: Unread | None
) -> None:
    assert unread_of(definition, definition.inputs[0], source(**columns)) == wanted


@pytest.mark.parametrize("input", ["in", None])
def test_operators_of_one_input_read_what_one_of_them_needs(input: str | None) -> None:
    most, all_ = (
        totals(D.newest(9, per="input"), name="most", input=input),
        totals(None, name="all", input=input),
    )
    for other, wanted in ((most, Unread(newest=9)), (all_, None)):
        for both in (
            (totals(BY_PLACE, name="one", input=input), other),
            (other, totals(BY_PLACE, input=input)),
        ):
            job = in_parallel(both)
            assert unread_of(job, job.inputs[0], source()) == wanted


def test_of_a_backlog_what_is_not_newest_or_not_young_is_left_unread_to_the_millisecond() -> None:
    a, b = ("topic", 0), ("topic", 1)
    stamps = {a: [5_000, 7_999, 8_000, 12_000], b: [1_000, 2_000]}
    backlog, broker = {a: (0, 4), b: (1, 2)}, Broker(stamps)
    for unread, now_us, wanted in (
        (Unread(within_us=2_000_000), 10_000_000, {a: (0, 2), b: (1, 2)}),
        (Unread(within_us=2_000_000), 9_999_001, {a: (0, 2), b: (1, 2)}),
        (Unread(within_us=2_000_000), 9_999_000, {a: (0, 1), b: (1, 2)}),
        (Unread(within_us=2_000_000), 1_000_000, {}),
    ):
        assert unread.begins(backlog, now_us, broker, nobody) == wanted  # type: ignore[arg-type]


def nobody(at: Any, first: int, following: int) -> list[int]:
    raise AssertionError(f"{at} [{first}, {following}) was read")


@pytest.mark.parametrize(
    "there",
    [range(100), range(0, 100, 2), (3, 50, 51, 52), (3,), (98,), (), range(5)],
    ids=["all", "ends of transactions", "compacted", "few", "one", "none", "old"],
)
@pytest.mark.parametrize("begin", [0, 4, 60, 97, 100])
@pytest.mark.parametrize("newest", [1, 3, 40])
def test_the_newest_are_records_and_not_offsets(there: Any, begin: int, newest: int) -> None:
    at, read = ("topic", 0), list[int]()

    def offsets(_: Any, first: int, following: int) -> list[int]:
        existing = [o for o in there if first <= o < following]
        read.extend(existing)
        return existing

    existing = Unread(newest=newest).begins({at: (begin, 100)}, 0, Broker({}), offsets)  # type: ignore[arg-type]
    first = existing.get(at, (begin, begin))[1]
    backlog = [o for o in there if o >= begin]
    assert [o for o in backlog if o >= first][-newest:] == backlog[-newest:]
    assert len([o for o in backlog if o >= first]) <= newest + MARKERS or first == begin
    assert all(span[0] == begin < span[1] for span in existing.values())
    assert len(read) <= 6 * (newest + MARKERS)


@pytest.mark.parametrize("input", ["in", None])
def test_what_one_operator_would_not_count_takes_no_place_among_the_newest(input: str | None) -> None:
    policy = D.newest(5, per="input")
    whole: dict[str, Any] = {"input": input, "max_ahead": "10 seconds"}
    strict = totals(policy, name="strict", null_keys="dead_letter", **whole)
    near = totals(policy, name="near", **whole)
    times = pa.array([1, 2, None, 4, 99_000_000, 6], pa.int64())
    rows = pa.table({"t": times, "k": ["a", None, "a", "a", "a", "a"]})
    rows = rows.append_column("__source", pa.array(["topic"] * 6))
    rows = rows.append_column("__partition", pa.array([0] * 6, pa.int64()))
    rows = rows.append_column("__offset", pa.array(range(10, 16), pa.int64()))
    for job, wanted in (
        (strict, [10, 13, 15]),
        (near, [10, 11, 13, 15]),
        (in_parallel((strict, near)), [10, 13, 15]),
    ):
        assert counted_offsets(job, job.inputs[0], rows, 0) == wanted
        assert counted_offsets(job, job.inputs[0], rows.drop_columns(["t"]), 0) == []
