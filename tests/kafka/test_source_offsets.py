"""Progress of a reader of Kafka, and its next step."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windrow.connectors.kafka.offsets import (
    Extent,
    Range,
    Topic,
    advanced,
    beyond_losses,
    distance,
    dump,
    load,
    losses,
    ranges,
    refuse,
    shared,
)
from windrow.connectors.kafka.source_metadata import _shown
from windrow.connectors.kafka.start_offsets import resumed
from windrow.core.errors import CorruptState, NewerFormat, SourceLost
from windrow.core.positions import topic_of, topic_source, under_another_name

A, B = "DphUeuu6QZWzerm25N4RNA", "1DYbdPSPSO-2TvQ5D8sTug"


def extent(low: dict[int, int], high: dict[int, int], id: str = A) -> dict[str, Extent]:
    return {"t": Extent(id, low, high, high)}


def test_offsets_are_json_and_equal_ones_are_equal_text() -> None:
    one = {"t": Topic(A, {10: 3, 2: 4}), "s": Topic(B, {0: 1}, 7)}
    other = {"s": Topic(B, {0: 1}, 7), "t": Topic(A, {2: 4, 10: 3})}
    assert json.dumps(dump(one)) == json.dumps(dump(other))
    assert load(json.loads(json.dumps(dump(one)))) == one


def test_offsets_of_another_source_and_of_a_later_release_are_refused() -> None:
    with pytest.raises(CorruptState, match="resumeFrom"):
        load({"t": {"0": 3}})
    with pytest.raises(NewerFormat, match="version 2"):
        load({"version": 2, "topics": {}})


def test_a_batch_takes_what_there_is_or_as_much_as_the_limit_says() -> None:
    start = {"t": Topic(A, {0: 0, 1: 0, 2: 5})}
    target = {"t": Topic(A, {0: 900, 1: 100, 2: 5})}
    ends = extent({0: 0, 1: 0, 2: 0}, {0: 900, 1: 100, 2: 5})
    assert advanced(start, target, ends)["t"].next == {0: 900, 1: 100, 2: 5}
    assert advanced(start, target, ends, 100)["t"].next == {0: 90, 1: 10, 2: 5}


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5)),
        st.one_of(st.integers(0, 3), st.integers(0, 10_000)),
        max_size=8,
    ),
    st.one_of(st.integers(1, 9), st.integers(1, 2000)),
)
@example({("a", 0): 4, ("a", 1): 1, ("a", 2): 1}, 3)
@example({("a", 0): 900, ("a", 1): 800, ("b", 0): 1}, 2)
def test_a_limit_is_used_up_and_never_passed(ahead: dict[tuple[str, int], int], most: int) -> None:
    parts = shared(ahead, most)
    assert sum(parts.values()) == min(most, sum(ahead.values()))
    assert all(0 <= parts[tp] <= n for tp, n in ahead.items())
    busy = [tp for tp, n in ahead.items() if n > 0]
    if most >= len(busy):
        assert all(parts[tp] > 0 for tp in busy)
    topics = {topic for topic, _ in busy}
    assert len({topic for (topic, _), n in parts.items() if n > 0}) == min(most, len(topics))


def test_a_partition_that_is_new_begins_at_its_first_offset_and_is_read_in_the_next_batch() -> None:
    start = {"t": Topic(A, {0: 10})}
    ends = extent({0: 0, 1: 0}, {0: 10, 1: 4})
    target = {"t": Topic(A, {0: 10, 1: 4})}
    first = advanced(start, target, ends)
    assert first["t"].next == {0: 10, 1: 0} and ranges(start, first) == []
    second = advanced(first, target, ends)
    assert ranges(first, second) == [Range("t", A, 1, 0, 4)]


def test_offsets_never_go_back_where_committed_records_end_below_them() -> None:
    start = {"t": Topic(A, {0: 10})}
    assert (
        advanced(start, {"t": Topic(A, {0: 7})}, {"t": Extent(A, {0: 0}, {0: 12}, {0: 7})})["t"].next[0] == 10
    )


def test_ranges_are_split_until_there_are_as_many_as_asked_for() -> None:
    start, end = {"t": Topic(A, {0: 0, 1: 0})}, {"t": Topic(A, {0: 90, 1: 10})}
    assert len(ranges(start, end)) == 2
    parts = ranges(start, end, 10)
    assert len(parts) == 10 and sum(r.end - r.start for r in parts) == distance(start, end) == 100
    assert [r.end for r in parts if r.partition == 0][:-1] == [r.start for r in parts if r.partition == 0][1:]
    assert len(ranges(start, {"t": Topic(A, {0: 1, 1: 0})}, 10)) == 1


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ({}, "is deleted.*Create it"),
        (extent({0: 0}, {0: 50}, B), f"under the id {A}.*has the id {B} now.*made anew.*without resumeFrom"),
        (extent({0: 25}, {0: 50}), "t-0 was read up to 20.*from 25 on: 5 offsets expired.*retention.ms"),
    ],
)
def test_data_that_is_gone_stops_the_query_unless_that_was_allowed(
    ends: dict[str, Extent], said: str
) -> None:
    lost = losses({"t": Topic(A, {0: 20})}, ends)
    with pytest.raises(SourceLost, match=f"(?s){said}.*failOnDataLoss"):
        refuse(lost, fail=True)
    refuse(lost, fail=False)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (extent({0: 0}, {0: 15}), "read up to 20.*up to 15 only"),
        (extent({1: 0}, {1: 15}), r"partitions \[1\], 0 was read up to 20"),
    ],
)
def test_a_broker_that_went_back_is_never_read_on_from(ends: dict[str, Extent], said: str) -> None:
    lost = losses({"t": Topic(A, {0: 20})}, ends)
    for fail in (True, False):
        with pytest.raises(SourceLost, match=said):
            refuse(lost, fail=fail)


def test_going_on_counts_what_expired_and_reads_a_topic_made_anew_from_its_beginning() -> None:
    start = {"t": Topic(A, {0: 20, 1: 4}, 1)}
    assert beyond_losses(start, extent({0: 25, 1: 0}, {0: 50, 1: 9})) == {"t": Topic(A, {0: 25, 1: 4}, 6)}
    assert beyond_losses(start, extent({0: 0}, {0: 50}, B)) == {"t": Topic(B, {0: 0}, 1)}
    assert beyond_losses(start, {}) == start


def test_nothing_is_lost_where_everything_is_there() -> None:
    assert losses({"t": Topic(A, {0: 20})}, extent({0: 20}, {0: 20})) == []


def test_a_source_is_a_topic_with_its_id() -> None:
    assert topic_of(topic_source("a.b-c", A)) == ("a.b-c", A)
    assert topic_of(topic_source("a", None)) == ("a", None)
    assert topic_of(f"left:a@{A}") == ("a", A)
    assert topic_of("user@host") == ("user@host", None)


def test_a_job_continues_under_the_present_id_or_none_and_not_under_a_former_one() -> None:
    ends = extent({0: 0, 1: 0}, {0: 50, 1: 50})
    assert resumed({("t", 0): 5}, ends) == {"t": Topic(A, {0: 5})}
    assert resumed({(f"t@{A}", 0): 5, (f"t@{B}", 0): 40}, ends) == {"t": Topic(A, {0: 5})}
    assert resumed({(f"t@{B}", 0): 40}, ends) == {"t": Topic(B, {0: 40})}  # which is a loss
    assert resumed({(f"left:t@{A}", 0): 5, (f"right:t@{A}", 0): 3}, ends) == {"t": Topic(A, {0: 3})}
    assert resumed({("file:///data/t", 0): 5}, ends) == {}


def test_ids_are_shown_as_kafka_shows_them() -> None:
    from confluent_kafka import Uuid

    assert _shown(Uuid(-1, -1)) == "_" * 21 + "w"
    assert topic_of(topic_source("t", _shown(Uuid(-298, -5)))) == ("t", _shown(Uuid(-298, -5)))


def test_one_topic_under_two_names_is_found() -> None:
    assert under_another_name({"t"}, {f"t@{A}"}) == ("t", f"t@{A}")
    assert under_another_name({f"t@{A}"}, {"t"}) == (f"t@{A}", "t")
    assert under_another_name({f"t@{A}"}, {f"t@{B}"}) is None  # made anew: another source
    assert under_another_name({"left:t"}, {f"right:t@{A}"}) is None
    assert under_another_name({"t", f"t@{A}"}, {"t", f"t@{A}"}) is None
