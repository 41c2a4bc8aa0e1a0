"""Pages of formats in docs/reference: every block of hex on them is what is written, and reads back."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import xxhash

from tests.format_pages import examples_of_formats
from windrow.connectors.manifests import Manifest
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.keys import decode_key, encode_key
from windrow.core.message_keys import decode_position, position_prefix
from windrow.stores.kv import Batch
from windrow.stores.message_store import HOUR_US, Layout, MessageStore
from windrow.stores.segment import decode_segment, digest_of, encode_segment, read_segment
from windrow.stores.snapshots import SnapshotStore, StoredFile

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "formats.md"
# Sections whose examples other tests read.
ELSEWHERE = re.compile(r"log-|window-|join-")
EXAMPLES = {name: value for name, value in examples_of_formats().items() if not ELSEWHERE.match(name)}
UTC_SECOND = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
KEYS: dict[str, list[Any]] = {
    "key-null": [None],
    "key-true": [True],
    "key-int-minus-1": [-1],
    "key-int-above": [2**63],
    "key-int-below": [-(2**63) - 1],
    "key-float": [1.5],
    "key-float-negative": [-1.5],
    "key-float-nan": [math.nan],
    "key-decimal": [Decimal("-12.5")],
    "key-date": [dt.date(2020, 1, 1)],
    "key-datetime": [UTC_SECOND],
    "key-time": [dt.time(1)],
    "key-duration": [dt.timedelta(microseconds=-1)],
    "key-text": ["a\0b"],
    "key-bytes": [b"\xff"],
    "key-composite": ["JFK", 7],
}
POSITION = ("flights", 3, 1000, 0)
TIME_US = int(dt.datetime(2013, 7, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
LAYOUTS = {f"message-{layout.value.replace('_', '-')}": layout for layout in Layout}
INDEXES = {"message-index-time": Layout.FIELDS_TIME_OFFSET, "message-index-offset": Layout.FIELDS_OFFSET}


def example_batch() -> Batch:
    batch = Batch()
    batch.delete_range("messages", b"a", b"c")
    batch.put("messages", b"b", b"hay")
    batch.delete("meta", b"old")
    return batch


def message_batch(layout: Layout) -> Batch:
    batch = Batch()
    keys = [encode_key(["JFK"])] if layout.has_fields else None
    position = tuple([part] for part in POSITION)
    MessageStore(layout, bucket=HOUR_US).put_rows(batch, np.array([TIME_US]), position, keys, [b""])  # type: ignore[arg-type]
    return batch


def example_manifest() -> bytes:
    current = b"MANIFEST-000005\n"
    files = [
        StoredFile("000007.sst", 4096, "0" * 32, None),
        StoredFile("CURRENT", 16, xxhash.xxh3_128_hexdigest(current), current),
    ]
    return seal(Kind.SNAPSHOT_MANIFEST, msgpack.packb([2, 7, files]))


WRITERS: dict[str, Callable[[], bytes]] = {
    "envelope": lambda: seal(Kind.SEGMENT, b"hay"),
    **{name: lambda values=values: encode_key(values) for name, values in KEYS.items()},  # type: ignore[misc]
    "position": lambda: position_prefix(POSITION),
    **{name: lambda at=at: next(iter(message_batch(at).points("messages"))) for name, at in LAYOUTS.items()},  # type: ignore[misc]
    **{
        name: lambda at=at: next(iter(message_batch(at).points("message_index")))  # type: ignore[misc]
        for name, at in INDEXES.items()
    },
    "batch": lambda: example_batch().encode(),
    "segment": lambda: encode_segment(7, 2, example_batch(), {"offsets": {"flights": 5}}),
    "snapshot-manifest": example_manifest,
    "sink-manifest": lambda: Manifest("out", "job-1", "n").record(7, 9),
}


def test_every_example_of_the_page_is_tested_and_none_is_missing() -> None:
    assert set(EXAMPLES) == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_what_the_page_shows(name: str) -> None:
    assert WRITERS[name]().hex(" ") == EXAMPLES[name].hex(" ")


@pytest.mark.parametrize("name", KEYS)
def test_the_pages_keys_read_back(name: str) -> None:
    assert repr(decode_key(EXAMPLES[name])) == repr(tuple(KEYS[name]))


def test_the_rest_of_the_page_reads_back(tmp_path: Path) -> None:
    assert unseal(Kind.SEGMENT, EXAMPLES["envelope"]) == b"hay"
    assert decode_position(EXAMPLES["position"])[0] == POSITION
    for name, layout in LAYOUTS.items():
        assert MessageStore(layout).split(EXAMPLES[name]).position == POSITION
    assert Batch.decode(EXAMPLES["batch"]) == example_batch()
    assert Manifest("out", "job-1", "n").decode(EXAMPLES["sink-manifest"], 7) == 9
    assert decode_segment(EXAMPLES["segment"]) == (7, 2, example_batch(), {"offsets": {"flights": 5}})


def test_the_pages_digest_is_that_of_its_segment(tmp_path: Path) -> None:
    (digest,) = re.findall(r"Its digest is `([0-9a-f]+)`", PAGE.read_text())
    assert digest == digest_of(EXAMPLES["segment"])
    (tmp_path / "s").write_bytes(EXAMPLES["segment"])
    assert read_segment(tmp_path / "s", digest)[0] == 7


def test_the_pages_manifest_is_read_under_its_digest(tmp_path: Path) -> None:
    data = EXAMPLES["snapshot-manifest"]
    name = f"2-7-{xxhash.xxh3_128_hexdigest(data)}.manifest"
    store = SnapshotStore(tmp_path)
    (tmp_path / "manifests" / name).write_bytes(data)
    snapshot = store.read(name)
    assert (snapshot.shard, snapshot.commit, snapshot.blobs) == (2, 7, {"0" * 32: 4096})
    assert snapshot.files[1].content == b"MANIFEST-000005\n"


def test_the_page_names_every_kind() -> None:
    for kind in Kind:
        assert f"{kind.value} {kind.name.lower().replace('_', ' ')}" in re.sub(r"\s+", " ", PAGE.read_text())
