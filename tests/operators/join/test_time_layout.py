"""Messages of a join that lie in columns: what a value for each message would tell and keep, and no more work than that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import windrow as wr
from tests.counting import CountingKV
from tests.deep import examples
from tests.operators.join.cases import JoinCase, S, cases, rows
from windrow.core.byte_order import decode_i64
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.join.logic import JoinOperator
from windrow.operators.join.time_layout import WIDE, BlockJoinOperator
from windrow.operators.join.unmatched_rows import places
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.step import StepResult
from windrow.stores.event_log import MANY
from windrow.stores.kv import Batch, MemoryKV

STEPS = st.one_of(
    st.tuples(st.just("ingest"), st.lists(rows(), min_size=1, max_size=6)),
    st.tuples(st.just("ingest"), st.lists(rows(), min_size=1, max_size=6)),
    st.tuples(st.just("advance"), st.sampled_from([0, 1, 1, 2, 5, 12])),
    st.tuples(st.just("back"), st.sampled_from([0, 1, 4])),
)


class Form:
    """An operator on a store of its own; rows: with a value for each message, as a join that counts them has it."""

    def __init__(self, definition: wr.Join, *, rows: bool = False) -> None:
        logic = JoinOperator(definition) if rows else definition.logic()
        assert isinstance(logic, JoinOperator if rows else BlockJoinOperator)
        self.logic, self.kv = logic, MemoryKV(logic.cfs())

    def ingest(self, tables: Mapping[str, pa.Table], now_us: int = 0) -> StepResult:
        return self.logic.ingest(self.kv, tables, now_us)

    def advance(self, watermark_us: int, now_us: int = 0) -> StepResult:
        return self.logic.advance(self.kv, watermark_us, now_us)

    def set_back(self, watermark_us: int) -> None:
        progress, batch = self.logic.progress(self.kv), Batch()
        self.logic.set_back(self.kv, progress, watermark_us)
        progress.save(lambda key, value: batch.put(self.logic.aux_cf, key, value))
        self.kv.write(batch)

    def kept(self, side: int, low: int = START_OF_TIME_US, high: int = END_OF_TIME_US) -> list[Any]:
        selected = self.logic.kept(self.kv, side, (low, None), (high, None), None)
        return [repr(row) for row in selected.table.to_pylist()]

    def values(self, cf: str) -> list[tuple[bytes, bytes]]:
        return list(self.kv.scan(f"join.{cf}"))


def emitted_by(step: StepResult) -> list[Any]:
    letters = [] if step.dead is None else step.dead.to_pylist()
    return [repr(row) for pane in step.panes for row in pane.to_pylist()] + [repr(letters), step.marks]


def tables(case: JoinCase, drawn: Sequence[dict[str, Any]], first: int) -> dict[str, pa.Table]:
    by_input: dict[str, list[dict[str, Any]]] = {}
    for offset, row in enumerate(drawn, first):
        message = case.message(row, offset)
        place = dict(zip((SOURCE, PARTITION, OFFSET, ORDINAL), message.position, strict=True))
        by_input.setdefault(message.position.source.partition(":")[0], []).append(
            {**message.payload, **place}
        )
    types = {SOURCE: pa.string(), PARTITION: pa.int64(), OFFSET: pa.int64(), ORDINAL: pa.int64()}
    return {
        source.name: pa.Table.from_pylist(by_input[source.name], pa.schema([*case.columns(source).items(), *types.items()]))
        for source in case.definition.inputs
        if source.name in by_input
    }  # fmt: skip


@given(case=cases(rows=False), steps=st.lists(STEPS, min_size=3, max_size=12))
@examples(10, deep=3_000)
def test_columns_emit_and_keep_what_a_value_for_each_message_does(
    case: JoinCase, steps: list[tuple[str, Any]]
) -> None:
    assume(isinstance(case.definition.logic(), BlockJoinOperator))
    forms = [Form(case.definition, rows=rows) for rows in (False, True)]
    watermark_us, offset, one, other = START_OF_TIME_US, 0, [], []
    for now, (kind, what) in enumerate(steps, 100):
        if kind == "ingest":
            arrived = tables(case, what, offset)
            offset += len(what)
            one, other = (emitted_by(form.ingest(arrived, now * S)) for form in forms)
        elif kind == "advance":
            watermark_us = max(watermark_us, 0) + what * case.unit_us
            one, other = (emitted_by(form.advance(watermark_us, now * S)) for form in forms)
        elif watermark_us > 0:
            watermark_us = max(watermark_us - what * case.unit_us, 0)
            for form in forms:
                form.set_back(watermark_us)
        assert one == other
        for side in (0, 1):
            one, other = (form.kept(side) for form in forms)
            assert one == other
            one, other = (form.kept(side, 3 * case.unit_us, 7 * case.unit_us) for form in forms)
            assert one == other
    one, other = (emitted_by(form.advance(END_OF_TIME_US)) for form in forms)
    assert one == other
    for form in forms:
        assert not [cf for cf in form.logic.cfs() if cf != form.logic.aux_cf and list(form.kv.scan(cf))]


def messages(name: str, times_us: Sequence[int], first: int = 0) -> dict[str, pa.Table]:
    n = len(times_us)
    columns = {
        "t": pa.array(times_us, pa.int64()),
        "k": pa.array([i % 3 for i in range(n)]),
        SOURCE: [f"{name}:s"] * n,
        PARTITION: [0] * n,
        OFFSET: list(range(first, first + n)),
        ORDINAL: [0] * n,
    }
    return {name: pa.table(columns)}


def left_join(how: str = "left", seconds: int = 8, **options: Any) -> Form:
    left, right = (wr.Input(name, event_time="t", max_ahead=wr.forever) for name in ("l", "r"))
    within = (f"-{seconds} seconds", f"{seconds} seconds")
    options = {"on": "k", "within": within, **options}
    return Form(wr.Join(left=left, right=right, how=how, **options))


def test_messages_that_lie_far_apart_share_values_until_they_go() -> None:
    day, form = 86_400 * S, left_join()
    form.ingest(messages("l", [i * day for i in range(5_000)]))
    assert len(form.values("left.messages")) < 100 and len(form.values("left.open")) < 100
    [pane] = form.ingest(messages("r", [300 * day + S, 4_000 * day - 9 * S])).panes
    assert pane.column("l_t").to_pylist() == [300 * day]
    form.ingest(messages("l", [5_000 * day + i * S for i in range(60)], 5_000))
    width_us, end_us = (decode_i64(form.kv.get("join.aux", WIDE[0]) or b"", at) for at in (0, 8))
    assert width_us > day and end_us == 4_999 * day + 1  # what comes behind those is not looked for in theirs
    assert form.kept(0, 4_999 * day, 5_000 * day) == form.kept(0)[4_999:5_001]
    [pane] = form.advance(2_000 * day).panes
    assert pane.column("l_t").to_pylist() == [i * day for i in range(2_000) if i != 300]
    assert len(form.kept(0)) == 3_060
    assert form.advance(2_000 * day + S).panes == []
    assert sum(map(len, form.advance(END_OF_TIME_US).panes)) == 3_060
    assert not form.values("left.messages") and not form.values("left.open")


@pytest.mark.parametrize("how", ["inner", "full"])
def test_many_small_steps_leave_few_values(how: str) -> None:
    form, many = left_join(how), 0
    for step in range(100):  # as many to a stretch
        times = [step * S // 50 + i for i in range(2)]
        form.ingest({**messages("l", times, 2 * step), **messages("r", times, 2 * step)})
        form.advance(times[0] - S)
        for cf in ("left.messages", "left.open") if how == "full" else ("left.messages",):
            many = max(many, len(form.values(cf)))
    assert many < 3 * (MANY + 8)


def test_without_keys_and_bounds_stretches_follow_what_is_kept() -> None:
    form = left_join("inner", on=(), within=None, retention="10 seconds", allowed_lateness="0 seconds")
    for second in range(60):
        form.ingest(messages("l", [second * S], second))
        form.advance((second - 1) * S)
    [pane] = form.ingest(messages("r", [59 * S])).panes
    assert pane.column("l_t").to_pylist() == [second * S for second in range(49, 60)]
    assert sum(len(unpacked(value)) for _, value in form.values("left.messages")) == 12


@pytest.mark.parametrize("together", [1, 3])
def test_what_is_noted_of_matches_is_no_more_than_messages_come(together: int) -> None:
    """A match of many messages is noted once; one of as few as come is noted again."""
    form = left_join()
    form.ingest(messages("l", [S] * (3 * together - 2) + [20 * S]))  # each third one is of the key
    for n in range(4):
        form.ingest(messages("r", [S + n], n))
    rows_ = [row for _, value in form.values("left.open") for row in unpacked(value).to_pylist()]
    noted = [row[OFFSET] for row in rows_ if row["__matched"]]
    assert sorted(noted) == ([0, 3, 6] if together > 1 else [0] * 4)
    [pane] = form.advance(60 * S).panes
    assert pane.column("l_t").to_pylist() == [S] * (2 * together - 2) + [20 * S]


def test_a_match_of_long_ago_next_to_one_of_now_reads_nothing_between() -> None:
    form = left_join()
    form.kv = counting = CountingKV(form.logic.cfs())
    read = []
    for step in range(60):
        form.ingest(messages("l", [step * 100 * S], step))
        counting.clear()
        # The first and the last are of the key.
        form.ingest(messages("r", [0, 0, 0, step * 100 * S], 4 * step))
        read.append(counting.scanned["join.left.open"])
    assert max(read[30:]) <= max(read[2:10])


@pytest.mark.parametrize("rows", [False, True])
def test_where_the_watermark_is_set_back_what_has_gone_stays_gone_and_what_has_come_since_does_not_go(
    rows: bool,
) -> None:
    left, right = wr.Input("l", event_time="t"), wr.Input("r", event_time="t", static=True)
    within, none = ("-8 seconds", "8 seconds"), "0 seconds"
    join = wr.Join(left=left, right=right, on="k", within=within, how="full", allowed_lateness=none)
    form = Form(join, rows=rows)
    form.ingest(messages("l", [92 * S]), 100 * S)
    [pane] = form.advance(101 * S, 100 * S).panes
    assert pane.column("l_t").to_pylist() == [92 * S]
    form.ingest(messages("r", [60 * S]), 100 * S)
    form.set_back(2 * S)
    assert len(form.kept(0)) == 0 and len(form.kept(1)) == 1
    assert form.ingest(messages("r", [2 * S], 1), 100 * S).panes == []
    [pane] = form.ingest(messages("l", [59 * S], 1), 100 * S).panes
    assert pane.column("r_t").to_pylist() == [60 * S]
    [pane] = form.advance(END_OF_TIME_US, 100 * S).panes
    assert pane.select(["l_t", "r_t"]).to_pylist() == [{"l_t": None, "r_t": 2 * S}]


def test_numbers_of_places_are_equal_where_the_places_are() -> None:
    """Near each other, and so far that they are told apart otherwise."""
    for far in (1, 1 << 40):
        at = [(s, p * far, o * far, n) for s in ("a", "b") for p in (0, 3) for o in (5, 900) for n in (0, 2)]
        names = (SOURCE, PARTITION, OFFSET, ORDINAL)
        one, other = (
            pa.table(dict(zip(names, zip(*rows_, strict=True), strict=True))) for rows_ in (at, at[::-2])
        )
        ours, theirs = places(one, other)
        assert len(set(ours.tolist())) == len(at) and theirs.tolist() == ours.tolist()[::-2]
    assert [len(numbers) for numbers in places(one.slice(0, 0), other.slice(0, 0))] == [0, 0]


def unpacked(value: bytes) -> pa.Table:
    """As docs/reference/formats-operators.md says."""
    assert value[0] == 1
    assert value[5:7] == b"\0\0"  # in full
    rows_ = pa.ipc.open_stream(pa.py_buffer(value)[7:]).read_all()
    assert int.from_bytes(value[1:5], "big") == len(rows_)
    return rows_


def test_values_are_what_the_page_of_formats_says() -> None:
    form = left_join()
    form.ingest(messages("l", [5 * S]))
    [(key, value)] = form.values("left.messages")
    assert (decode_i64(key), int.from_bytes(key[8:], "big")) == (4 * S, 1)  # 16 seconds / 8, step 1
    assert unpacked(value).column_names == ["k", "t", SOURCE, PARTITION, OFFSET, ORDINAL, "__time"]
    [(key, value)] = form.values("left.open")
    assert (decode_i64(key), int.from_bytes(key[8:], "big")) == (4 * S, 2)
    names = [SOURCE, PARTITION, OFFSET, ORDINAL, "__time", "__step", "__matched"]
    assert unpacked(value).column_names == names
    form.ingest(messages("r", [5 * S]))
    assert [int.from_bytes(key[8:], "big") for key, _ in form.values("left.open")] == [2, 5]


def test_of_many_messages_in_range_only_those_of_the_keys_of_a_step_are_paired() -> None:
    form = left_join("inner")
    form.ingest(messages("l", np.arange(300).tolist()))
    seen: list[int] = []
    partners = form.logic._partners

    def noted(*arrived: Any) -> Any:
        pairs = partners(*arrived)
        seen.append(len(pairs))
        return pairs

    form.logic._partners = noted  # type: ignore[method-assign]
    [pane] = form.ingest(messages("r", [2 * S])).panes
    assert len(pane) == 100 and seen == [100, 0]
