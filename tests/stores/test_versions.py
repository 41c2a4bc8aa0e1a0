"""Every persisted value has a version, and one that this release does not know is refused with the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

import windrow as wr
from windrow.checkpoint.marker import Marker
from windrow.connectors.kafka import offsets
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState, NewerFormat
from windrow.operators.join.columns import NAMES, InputColumns
from windrow.operators.steps.message_rows import unpack_rows
from windrow.operators.steps.progress import KEY, Progress
from windrow.stores import column_codec, keyed_event_store, row_codec, write_buffer
from windrow.stores.block_format import Kind as WindowKind
from windrow.stores.block_format import header_of
from windrow.stores.kv import Batch, MemoryKV
from windrow.stores.page_format import Head, unpack
from windrow.stores.partitioned_windows import Directory
from windrow.stores.row_codec import Schemas, unpack_table
from windrow.stores.window_state import PlainWindows

ROOT = Path(__file__).resolve().parents[2]


def kv(cf: str, key: bytes, value: bytes) -> MemoryKV:
    store, batch = MemoryKV(("windows", "aux")), Batch()
    batch.put(cf, key, value)
    store.write(batch)
    return store


def window(kind: WindowKind) -> Callable[[int], bytes]:
    return lambda version: bytes((0x57, version, kind, 1)) + bytes(60)


def plain_window(value: bytes) -> Any:
    return PlainWindows("windows", "aux", []).read_all(kv("windows", b"k", value))


def names(value: bytes) -> Any:
    left, right = wr.Input("l", event_time="t"), wr.Input("r", event_time="t")
    join = wr.Join(left=left, right=right, on="k", within=("0 s", "1 s"))
    return InputColumns(join, "aux").names(kv("aux", NAMES, value))


def first(version: int) -> bytes:
    return bytes((version,)) + bytes(60)


#: Kind of value -> (bytes of a version, reader).
READERS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    **{
        kind.name: (lambda v, kind=kind: seal(kind, b"", v), lambda data, kind=kind: unseal(kind, data))  # type: ignore[misc]
        for kind in Kind
    },
    "marker": (lambda v: msgpack.packb([v, "job", 0, 1, None]), Marker.unpack),
    "offsets": (lambda v: {"version": v, "topics": {}}, offsets.load),
    "block": (window(WindowKind.BLOCK), header_of),
    "page": (window(WindowKind.PAGE), Head.of),
    "pages": (window(WindowKind.PAGE), lambda value: unpack([value], Schemas(MemoryKV(("aux",)), "aux"))),
    "directory": (window(WindowKind.DIRECTORY), Directory.of),
    "waiting rows": (window(WindowKind.WAITING), write_buffer._head),
    "table": (first, unpack_table),
    "plain window": (first, plain_window),
    "kept messages": (first, column_codec.opened),
    "run": (first, lambda value: keyed_event_store._opened(b"i" + bytes(16), value)),
    "row": (
        first,
        lambda value: row_codec.unpack_rows([first(1), value], Schemas(MemoryKV(("aux",)), "aux"), "a row"),
    ),
    "message row": (first, lambda v: unpack_rows(MemoryKV(("aux",)), "aux", [v], None, pa.schema([]))),
    "progress": (first, lambda value: Progress.load(kv("aux", KEY, value), "aux")),
    "names of columns": (first, names),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("version", [0, 2, 255])
def test_a_version_that_is_not_known_is_refused_with_both_and_the_remedy(what: str, version: int) -> None:
    write, read = READERS[what]
    with pytest.raises(
        NewerFormat, match=rf"version {version}, this windrow reads version 1: upgrade windrow"
    ):
        read(write(version))


@pytest.mark.parametrize("read", [column_codec.opened, unpack_table, header_of, Head.of, write_buffer._head])
def test_a_value_without_bytes_is_refused(read: Callable[[bytes], Any]) -> None:
    with pytest.raises((NewerFormat, CorruptState)):
        read(b"")


def test_versions_are_checked_in_one_function() -> None:
    folders = ("core", "stores", "operators", "checkpoint", "connectors", "runners", "testing", "console")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    raised = [path for path in files if re.search(r"raise NewerFormat\b", path.read_text())]
    assert [path.relative_to(ROOT).as_posix() for path in raised] == ["core/envelope.py"]
