"""Taking from columns and combining them equals Arrow, for every type."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.core import arrays

CHANCE = random.Random()
KINDS: list[tuple[pa.DataType, Callable[[], Any]]] = [
    (pa.int64(), lambda: CHANCE.randrange(99)),
    (pa.int32(), lambda: CHANCE.randrange(9)),
    (pa.uint8(), lambda: CHANCE.randrange(9)),
    (pa.float64(), CHANCE.random),
    (pa.float16(), lambda: np.float16(1)),
    (pa.bool_(), lambda: CHANCE.random() < 0.5),
    (pa.timestamp("us"), lambda: CHANCE.randrange(99)),
    (pa.date32(), lambda: CHANCE.randrange(9)),
    (pa.string(), lambda: f"ab{CHANCE.randrange(10)}"),
    (pa.binary(), lambda: b"x" * CHANCE.randrange(2)),
    (pa.large_string(), lambda: "xx"),
    (pa.list_(pa.int64()), lambda: [1]),
    (pa.decimal128(5, 2), lambda: None),
    (pa.month_day_nano_interval(), lambda: None),
    (pa.dictionary(pa.int32(), pa.string()), lambda: "a"),
    (pa.null(), lambda: None),
]


def decoded(column: Any) -> Any:
    """Arrow drops the texts of a column of nulls, or does not."""
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


@pytest.mark.parametrize(("kind", "value"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_it_is_what_arrow_gives(
    monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, value: Callable[[], Any]
) -> None:
    monkeypatch.setattr(arrays, "_MANY", 1)
    CHANCE.seed(str(kind))  # whatever was tried before
    for _ in range(150):
        nulls = CHANCE.choice([0.0, 0.2, 1.0])
        chunks, one_value, same = [], value(), CHANCE.random() < 0.2
        for _ in range(CHANCE.choice([1, 1, 2, 3])):
            n, skipped = CHANCE.randrange(9), CHANCE.randrange(3)
            source = [
                None if CHANCE.random() < nulls else one_value if same else value() for _ in range(n + 3)
            ]
            chunks.append(pa.array(source, kind).slice(skipped, n))
        column = pa.chunked_array(chunks, kind)
        n = CHANCE.randrange(12) if len(column) else 0
        places = np.array([CHANCE.randrange(len(column)) for _ in range(n)], dtype=np.int64)
        rows = pa.table({"a": column})
        selected = arrays.taken(rows, places)
        selected.validate(full=True)
        assert selected.schema == rows.schema
        assert decoded(selected["a"]).equals(decoded(rows.take(pa.array(places))["a"]))
        if column.num_chunks:
            one = arrays.whole(column)
            one.validate(full=True)
            assert one.type == kind
            assert decoded(one).equals(decoded(pa.concat_arrays(column.chunks)))
