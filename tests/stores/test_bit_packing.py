"""Many pages that are written at once are narrow: they take less, and what is read is what was written."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.core.errors import CorruptState, NewerFormat
from windrow.stores import page_format as pages
from windrow.stores import page_writer, spill
from windrow.stores.block_format import Codec
from windrow.stores.delta_blocks import BlockWindows
from windrow.stores.kv import Batch, MemoryKV
from windrow.stores.page_format import PAGE_ROWS, in_order, size_of, unpack
from windrow.stores.page_writer import NARROW_PAGES, Packed
from windrow.stores.row_codec import Schemas, put_schema
from windrow.stores.window_state import UPSERT

KINDS: list[pa.DataType] = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.decimal256(50, 2)),
    *(pa.timestamp("us", "UTC"), pa.date32(), pa.duration("us"), pa.binary(3), pa.null()),
    *(pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.list_(pa.int64())),
]
COLUMNS = 9


@pytest.fixture
def kv() -> MemoryKV:
    return MemoryKV(["windows", "aux"])


@pytest.fixture
def all_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_writer, "NARROW_PAGES", 0)


def some(chance: Random, kind: pa.DataType) -> Any:
    """Draw the values of a column: all the same, near each other, or as far apart as can be."""
    near, missing = chance.choice([0, 1, 200, 60_000, 1 << 31, 1 << 63]), chance.choice([0, 0, 0.1, 1])
    shape, head = chance.choice(["one", "long", "any"]), chance.randrange(1 << 62)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        bits, signed = kind.bit_width, not pa.types.is_unsigned_integer(kind)
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        low = chance.choice([least, max(least, most - near), least + head % (most - least + 1)])
        high = min(most, low + near)

    def value() -> Any:
        if chance.random() < missing or pa.types.is_null(kind):
            return None
        if pa.types.is_boolean(kind):
            return chance.random() < near
        if pa.types.is_decimal(kind):
            return Decimal(chance.randrange(-1 - near, 1 + near) % 10**9).scaleb(-2)
        if pa.types.is_floating(kind):
            return np.dtype(kind.to_pandas_dtype()).type(
                chance.choice([1.5, -min(near, 60_000), float("nan")])
            )
        if pa.types.is_list(kind):
            return [None, near % 999] if chance.random() < 0.5 else []
        if kind == pa.binary(3):
            return chance.choice([b"abc", b"abd", b"\0\0\0"])
        if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
            return chance.randint(low, high)
        width = {"one": 18, "long": 300, "any": chance.randrange(5)}[shape]
        text = f"{head:020d}"[:6] + f"{chance.randrange(1 + near):020d}"[-7:] + "x" * width
        text = text[: width if shape != "long" else None]
        return text.encode() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else text

    return value


def drawn(chance: Random, kinds: list[pa.DataType], n: int) -> pa.Table:
    columns = {}
    for i, kind in enumerate(kinds):
        value = some(chance, kind)
        values = [value() for _ in range(n)]
        whole = pa.int32() if kind == pa.date32() else pa.int64()
        is_time = pa.types.is_temporal(kind)
        columns[f"c{i}"] = pa.array(values, whole).cast(kind) if is_time else pa.array(values, kind)
    return pa.table(columns)


def pages_of(kv: MemoryKV, rows: pa.Table, sizes: list[int]) -> list[bytes]:
    batch = Batch()
    made = Packed(rows, put_schema(kv, "aux", batch, rows.schema), np.cumsum([0, *sizes])).pages()
    kv.write(batch)
    return made


def same(actual: list[pa.Table], wanted: pa.Table) -> bool:
    """Bit for bit; NaNs by their bits, too."""
    assert all(table.column(UPSERT).to_pylist() == [True] * len(table) for table in actual)
    table = pa.concat_tables([table.drop_columns([UPSERT]) for table in actual]).combine_chunks()
    assert table.schema.equals(wanted.schema)
    floats = [field.name for field in wanted.schema if pa.types.is_floating(field.type)]
    others = table.drop_columns(floats).equals(wanted.drop_columns(floats))
    return others and repr(table.select(floats).to_pylist()) == repr(wanted.select(floats).to_pylist())


@pytest.mark.usefixtures("all_narrow")
def test_nulls_make_no_record_wider_and_nothing_lies_beneath_them(kv: MemoryKV) -> None:
    """Who looks at the bytes of columns finds those of nulls as Arrow makes them, whatever records have there."""
    times, texts = [10**15 + i for i in range(40)], [f"{i:018d}" for i in range(40)]
    whole = pa.table({"t": pa.array(times), "k": texts})
    nulls = pa.table({"t": pa.array([None, *times[1:]]), "k": pa.array([*texts[:7], None, *texts[8:]])})
    [most], [page] = pages_of(kv, whole, [40]), pages_of(kv, nulls, [40])
    assert len(page) == len(most) + 40  # which are null
    [table] = unpack([page], Schemas(kv, "aux"))
    assert same([table], nulls)
    t, k = table.column("t").chunk(0), table.column("k").chunk(0)
    assert np.frombuffer(t.buffers()[1], np.int64)[0] == 0
    assert (
        k.buffers()[2].to_pybytes()
        == "".join(text for text in nulls.column("k").to_pylist() if text).encode()
    )
    far = pa.table({"t": times, "k": [*[None] * 38, "0" * 18, "9" * 18]})
    [page] = pages_of(kv, far, [40])
    assert same(unpack([page], Schemas(kv, "aux")), far)
    assert len(page) < len(most) + 40


@pytest.mark.parametrize("narrow", [0, NARROW_PAGES])
@pytest.mark.parametrize("words", [["key-1", "key-2"], ["key-1", "key-22"], ["a", "bcd"]])
def test_what_arrow_has_beneath_a_null_is_no_text(
    kv: MemoryKV, monkeypatch: pytest.MonkeyPatch, words: list[str], narrow: int
) -> None:
    monkeypatch.setattr(page_writer, "NARROW_PAGES", narrow)
    beneath = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), *pa.array(words).buffers()[1:]])
    rows = pa.table({"t": [1, 2], "k": beneath})
    assert same(unpack(pages_of(kv, rows, [2]), Schemas(kv, "aux")), rows)


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_any_columns_come_back_from_narrow_pages_whichever_lie_between_them(
    kv: MemoryKV, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, each, schemas = Random(seed), list[tuple[bytes, pa.Table]](), Schemas(kv, "aux")
    kinds = chance.choices(KINDS, k=COLUMNS)
    for _ in range(3):
        sizes = [chance.randrange(4) for _ in range(chance.randint(1, 6))]
        rows = drawn(chance, kinds, sum(sizes))
        monkeypatch.setattr(page_writer, "NARROW_PAGES", chance.choice([0, 0, 99]))
        pages, ends = pages_of(kv, rows, sizes), np.cumsum([0, *sizes]).tolist()
        each += [(page, rows.slice(ends[i], sizes[i])) for i, page in enumerate(pages)]
    chance.shuffle(each)
    values, wanted = [page for page, _ in each], pa.concat_tables([rows for _, rows in each]).combine_chunks()
    assert same(unpack(values, schemas), wanted)
    assert same(in_order(values, schemas), wanted)


def many(n: int, seed: int = 0) -> pa.Table:
    chance = np.random.default_rng(seed)
    return pa.table(
        {
            "__start": pa.array(np.zeros(n, dtype=np.int64)),
            "k": pa.array([f"key-{i:07d}" for i in range(n)]),
            "a.n.n": pa.array(chance.integers(-9, 9, n)),
            "a.s.lo": pa.array(chance.integers(0, 1_000_000, n)),
        }
    )


def values_of(kv: MemoryKV) -> Iterator[bytes]:
    return (value for _, value in kv.scan("windows"))


def test_many_pages_are_narrow_and_few_that_change_then_are_not(kv: MemoryKV) -> None:
    n = 2 * NARROW_PAGES * PAGE_ROWS
    store = BlockWindows("windows", "aux", ["k"])
    store.replace(kv, [0], many(n))
    assert {value[3] for value in values_of(kv)} == {Codec.NARROW}
    # A record has five letters of a key, a byte of a number and four of another, one of nulls: 10 bytes, not 40.
    assert sum(map(len, values_of(kv))) < 12 * n + 130 * 2 * NARROW_PAGES
    few = many(n, seed=1).slice(0, 40)
    near = store.near(kv, [0], few.select(["__start", "k"]))
    assert near.rows is not None and len(near.rows) < n / 4
    others = near.rows.filter(
        pa.array([k not in set(few["k"].to_pylist()) for k in near.rows["k"].to_pylist()])
    )
    store.put(kv, near, pa.concat_tables([few, others.drop_columns([UPSERT])]))
    assert {value[3] for value in values_of(kv)} == {Codec.NARROW, Codec.PACKED}
    rows = store.read(kv, [0])
    wanted = pa.concat_tables([few, many(n).slice(40)])
    assert rows is not None
    assert rows.drop_columns([UPSERT]).sort_by("k").equals(wanted.sort_by("k").combine_chunks())


@pytest.mark.usefixtures("all_narrow")
def test_a_narrow_page_that_is_damaged_or_newer_is_reported_as_such(kv: MemoryKV) -> None:
    [page] = pages_of(kv, many(5), [5])
    schemas = Schemas(kv, "aux")
    assert len(unpack([page], schemas)[0]) == 5
    for n in range(1, len(page)):
        with pytest.raises(CorruptState):
            unpack([page[:n]], schemas)
    with pytest.raises(CorruptState):
        unpack([page + b"\0"], schemas)
    with pytest.raises(NewerFormat, match="version 2, this windrow reads version 1: upgrade windrow"):
        unpack([page[:1] + b"\x02" + page[2:]], schemas)


def test_narrow_pages_count_as_much_as_their_rows_take_wherever_memory_is_counted(
    kv: MemoryKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = NARROW_PAGES * PAGE_ROWS
    rows, sizes = many(n), [PAGE_ROWS] * NARROW_PAGES
    narrow = pages_of(kv, rows, sizes)
    monkeypatch.setattr(page_writer, "NARROW_PAGES", NARROW_PAGES + 1)
    wide = pages_of(kv, rows, sizes)
    assert (narrow[0][3], wide[0][3]) == (Codec.NARROW, Codec.PACKED)
    assert list(map(size_of, wide)) == list(map(len, wide))
    counted, taken = sum(map(size_of, narrow)), sum(map(len, wide))
    assert sum(map(len, narrow)) < taken / 2 < counted < 2 * taken
    monkeypatch.setattr(pages, "_TABLE_BYTES", taken // 8)
    tables = [table.drop_columns([UPSERT]) for table in unpack(narrow, Schemas(kv, "aux"))]
    assert max(table.nbytes for table in tables) < rows.nbytes / 4
    assert pa.concat_tables(tables).equals(rows)
    monkeypatch.setattr(spill, "_BYTES", taken // 8)
    assert max(len(table) for table in spill.tables_of(iter(narrow), Schemas(kv, "aux"))) < n / 4
