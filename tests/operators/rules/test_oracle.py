"""Random rules on random messages: the operator emits what the oracle says, step by step, in any cut."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from tests.operators.rules.cases import FACTS, SCHEMAS, S, drawn, picking, sound
from windrow.core.messages import JoinedRow, Kind, Message, Position
from windrow.core.time import END_OF_TIME_US
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.stores.in_memory import MemoryKV
from windrow.testing.ledger import same_output

#: The columns of inputs and of the table of facts.
ALL = SCHEMAS | {"c": pa.schema(FACTS)}


def messages(draw: random.Random, n: int, inputs: str = "ab") -> list[tuple[str, Message]]:
    """Messages near each other in time, some of which are malformed."""
    made = []
    for i in range(n):
        row = {
            "input": draw.choice(inputs),
            "t": draw.choice(
                [None, draw.randint(1, 30), *(draw.randint(i // 3, i // 3 + 8) for _ in range(20))]
            ),
            "k": draw.choice(["p", "p", "p", "q", None]),
            "v": draw.choice([0, 1, 1, 2, 3, None]),
            "more": draw.choice([0, 0, 1, 2, 4, 6, -1, None]),
            "partition": draw.randint(0, 1),
        }
        if inputs != "ab":
            row["id"] = draw.choice([0, 1, 2, None])
        one = drawn(row)
        assert one.input is not None
        made.append((one.input, Message(one.payload, Position(f"{one.input}:s", one.partition, i))))
    return made


def table_of(name: str, messages: list[Message]) -> pa.Table:
    """The messages of one input in a step, as the operator gets them."""
    table = pa.Table.from_pylist([dict(m.payload) for m in messages], ALL[name])
    places = zip(*(m.position for m in messages if m.position is not None), strict=True)
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    for column, values, kind in zip((SOURCE, PARTITION, OFFSET, ORDINAL), places, kinds, strict=True):
        table = table.append_column(column, pa.array(values, kind))
    return table


def run(
    definition: Any,
    sent: list[tuple[str, Message]],
    sizes: list[int],
    draw: random.Random,
    *,
    asks: bool = True,
) -> list[JoinedRow]:
    """Feed operator and oracle, step by step. Returns what is emitted. asks: False for the operator alone"""
    schemas = {source.name: ALL[source.name] for source in definition.inputs}
    logic, oracle, kv = definition.logic(), definition.oracle(schemas), MemoryKV(definition.logic().cfs())
    for name, schema in schemas.items():
        logic.learn(kv, name, schema)
    watermark_us, at, step, emitted = -S, 0, 0, list[JoinedRow]()
    while at < len(sent) or watermark_us < END_OF_TIME_US:
        part = sent[at : at + sizes[step % len(sizes)]]
        at, step = at + len(part), step + 1
        by_input = {name: [m for n, m in part if n == name] for name in schemas}
        by_input = {name: messages for name, messages in by_input.items() if messages}
        if by_input:
            made = logic.ingest(
                kv, {name: table_of(name, messages) for name, messages in by_input.items()}, 0
            )
            emitted += rows_of(definition, logic, made)
            if asks:
                wanted = oracle.ingest(by_input, 0, watermark_us)
                compare(definition, rows_of(definition, logic, made), wanted.rows)
                buried = sum(n for reason, n in made.counts.items() if reason.startswith("dead."))
                assert buried == len(wanted.dead)
        watermark_us += draw.choice([0, 1, 1, 3]) * len(part) * S // 8
        watermark_us = watermark_us if at < len(sent) else END_OF_TIME_US
        made = logic.advance(kv, watermark_us, 0)
        emitted += rows_of(definition, logic, made)
        if asks:
            compare(definition, rows_of(definition, logic, made), oracle.advance(watermark_us, 0).rows)
    left = [
        (cf, k) for cf in logic.cfs() for k, v in kv.scan(cf) if cf != logic.aux_cf or not logic.stays(k, v)
    ]
    assert not left, (definition, left)
    return emitted


def rows_of(definition: Any, logic: Any, panes: Any) -> list[JoinedRow]:
    return list(definition.values(logic.rows(panes.panes, 0), "")) if panes.panes else []


def compare(definition: Any, rows: list[JoinedRow], wanted: list[JoinedRow]) -> None:
    pairs = itertools.zip_longest(rows, wanted)
    apart = [pair for pair in pairs if None in pair or not same_output(*pair)]
    assert not apart, f"{definition}\n" + "\n".join(f"{one}\n  {other}" for one, other in apart[:3])


@pytest.mark.parametrize("seed", range(usually(7, deep=66)))
def test_random_rules_emit_what_the_oracle_says(seed: int) -> None:
    """About 46 rules for each seed: 300 of them, or 3,000."""
    draw = random.Random(seed)
    for _ in range(25):
        facts = draw.random() < 0.3
        definition = sound(picking(draw.randrange(1 << 32)), facts=facts)
        sizes = draw.choice([[1], [3, 1, 7], [40]])
        run(definition, messages(draw, 24, "abc" if facts else "ab"), sizes, draw)


def test_what_is_left_of_corrected_rows_is_what_is_emitted_once() -> None:
    """The same messages under the same watermarks, taken back or waited for."""
    draw, retracted = random.Random(6), 0
    for _ in range(usually(20, deep=1_000)):
        once = replace_emit(sound(picking(draw.randrange(1 << 32))), wr.Emit.append())
        again = replace_emit(once, wr.Emit(late=wr.every_batch, mode="retracting"))
        sent, sizes, same = messages(draw, 40), draw.choice([[1], [3, 1, 7]]), draw.randrange(1 << 32)
        rows = run(once, sent, sizes, random.Random(same), asks=False)
        ledger: dict[str, JoinedRow] = {}
        for row in run(again, sent, sizes, random.Random(same), asks=False):
            if row.kind is Kind.RETRACT:
                taken = ledger.pop(row.values["match_id"])
                assert taken.values == row.values
                retracted += 1
            else:
                assert ledger.setdefault(row.values["match_id"], row) is row
        assert {i: row.values for i, row in ledger.items()} == {
            row.values["match_id"]: row.values for row in rows
        }
    assert retracted


def replace_emit(definition: Any, emit: Any) -> Any:
    return definition._changed(emit=emit, late_us=3 * S)
