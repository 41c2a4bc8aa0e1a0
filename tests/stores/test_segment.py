"""A segment is there whole, or it is refused."""

from __future__ import annotations

import os
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.envelope import Kind, seal
from windrow.core.errors import CorruptState, NewerFormat
from windrow.stores import files, segment
from windrow.stores.files import sync_directory, write_whole
from windrow.stores.kv import Batch
from windrow.stores.segment import (
    decode_segment,
    digest_of,
    encode_segment,
    read_parts,
    read_segment,
    write_segment,
)
from windrow.testing.faults import damage_file, tear_file


def some_batch() -> Batch:
    batch = Batch()
    batch.delete_range("messages", b"a", b"b")
    batch.put("messages", b"k", b"v")
    batch.delete("meta", b"k")
    return batch


EXTRA = {"offsets": {"topic": {0: 5}}, "panes": b"\x00\x01", "watermark_us": -3, "late": None}


def test_a_segment_is_read_as_it_was_written(tmp_path: Path) -> None:
    digest = write_segment(tmp_path / "s", 7, 3, some_batch(), EXTRA)
    assert read_segment(tmp_path / "s", digest) == (7, 3, some_batch(), EXTRA)
    assert read_segment(tmp_path / "s") == (7, 3, some_batch(), EXTRA)
    assert os.listdir(tmp_path) == ["s"]


def test_an_empty_segment_is_a_segment(tmp_path: Path) -> None:
    digest = write_segment(tmp_path / "s", 0, 0, Batch())
    assert read_segment(tmp_path / "s", digest) == (0, 0, Batch(), {})


def test_the_same_step_gives_the_same_bytes_and_digest(tmp_path: Path) -> None:
    first = write_segment(tmp_path / "a", 7, 3, some_batch(), EXTRA)
    assert first == write_segment(tmp_path / "b", 7, 3, some_batch(), EXTRA, fsync=False)
    assert first != write_segment(tmp_path / "c", 8, 3, some_batch(), EXTRA)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("size", [0, 1, 200, 250, 70_000])
def test_a_segment_is_what_msgpack_makes_of_commit_shard_extra_and_batch(size: int) -> None:
    batch = some_batch()
    batch.put("messages", b"large", b"x" * size)
    data = msgpack.packb([7, 3, EXTRA, 0, False, batch.encode()])
    assert encode_segment(7, 3, batch, EXTRA) == seal(Kind.SEGMENT, data)


def test_a_segment_torn_anywhere_is_refused(tmp_path: Path) -> None:
    whole = encode_segment(7, 3, some_batch(), EXTRA)
    for keep in range(len(whole)):
        (tmp_path / "s").write_bytes(whole)
        tear_file(tmp_path / "s", keep)
        with pytest.raises(CorruptState, match="cut short"):
            read_segment(tmp_path / "s")


def test_a_segment_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    whole = encode_segment(7, 3, some_batch(), EXTRA)
    for at in range(len(whole)):
        (tmp_path / "s").write_bytes(whole)
        damage_file(tmp_path / "s", at)
        with pytest.raises(CorruptState):
            read_segment(tmp_path / "s")


def test_a_segment_in_several_parts_is_read_part_by_part_and_torn_or_damaged_anywhere_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "PART_BYTES", 100)
    batch, path = some_batch(), tmp_path / "s"
    batch.put_many("messages", [b"%d" % i for i in range(600)], [b"v"] * 600)
    digest = write_segment(path, 7, 3, batch, EXTRA)
    whole = path.read_bytes()
    assert (whole[3], digest) == (1, digest_of(whole))
    parts = list(read_parts(path, digest))
    assert len(parts) > 2
    assert {(commit, shard, str(extra)) for commit, shard, _, extra in parts} == {(7, 3, str(EXTRA))}
    assert read_segment(path, digest) == (7, 3, batch, EXTRA)
    for at in range(0, len(whole), 7):
        for spoil in (tear_file, damage_file):
            path.write_bytes(whole)
            spoil(path, at)
            with pytest.raises(CorruptState):
                list(read_parts(path))
    path.write_bytes(whole + b"x")
    with pytest.raises(CorruptState, match="followed by 1 bytes that are not its own"):
        read_segment(path)


def test_another_attempts_segment_is_refused_by_its_digest(tmp_path: Path) -> None:
    own = write_segment(tmp_path / "mine", 7, 3, some_batch())
    other = write_segment(tmp_path / "other", 7, 3, Batch())
    with pytest.raises(CorruptState, match=f"has digest {other}, its commit recorded {own}"):
        read_segment(tmp_path / "other", own)


def test_a_segment_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptState, match=r"the segment .*nowhere is gone"):
        read_segment(tmp_path / "nowhere")


def test_a_segment_of_a_newer_windrow_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(seal(Kind.SEGMENT, b"anything", version=2))
    with pytest.raises(NewerFormat, match="upgrade windrow"):
        read_segment(tmp_path / "s")


def test_what_precedes_a_batch_may_be_long(tmp_path: Path) -> None:
    extra = {"parts": [[f"part-{i:06d}", "x" * 32] for i in range(2_000)]}
    write_segment(tmp_path / "s", 7, 3, some_batch(), extra)
    assert read_segment(tmp_path / "s") == (7, 3, some_batch(), extra)


def test_a_payload_that_is_no_segment_is_refused() -> None:
    nothing = msgpack.packb([1, 2, {}, 0, False, Batch().encode()])
    for payload in (
        b"",
        b"\xc1",
        msgpack.packb([1, 2, 3]),
        msgpack.packb([1, 2, {}, 0, False, b"\xc1"]),
        b"\x01",
        nothing[:-1] + b"\x90\x90\x90",  # more than it says
        nothing[:-2],  # bytes that are not there
        b"\x95" + nothing[1:],  # less than it has
    ):
        with pytest.raises(CorruptState, match="cannot be read"):
            decode_segment(seal(Kind.SEGMENT, payload))


@given(
    st.integers(0, 2**63), st.integers(0, 2**20), st.dictionaries(st.text(), st.integers(-5, 5) | st.binary())
)
def test_numbers_and_extras_round_trip(commit: int, shard: int, extra: dict[str, int | bytes]) -> None:
    assert decode_segment(encode_segment(commit, shard, Batch(), extra)) == (commit, shard, Batch(), extra)


def test_a_crash_before_the_rename_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        write_whole(str(tmp_path / "f"), [b"x"])
    assert os.listdir(tmp_path) == []


def test_a_file_is_synced_before_it_gets_its_name_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).split(".")[0]
        size = "" if name == tmp_path.name else f" {os.fstat(descriptor).st_size}"
        calls.append(f"sync {name}{size}")
        sync(descriptor)

    def named(old: str, new: str) -> None:
        calls.append("rename")
        rename(old, new)

    monkeypatch.setattr(files.os, "fsync", fsync)
    monkeypatch.setattr(files.os, "rename", named)
    write_whole(str(tmp_path / "f"), [b"x", b"y"])
    assert calls == ["sync f 2", "rename", f"sync {tmp_path.name}"]
    assert (tmp_path / "f").read_bytes() == b"xy"
    calls.clear()
    write_whole(str(tmp_path / "f"), [b"z"], fsync_dir=False)
    write_whole(str(tmp_path / "f"), [b"z"], fsync=False)
    assert calls == ["sync f 1", "rename", "rename"]
    calls.clear()
    write_segment(tmp_path / "s", 1, 0, Batch())
    size = os.path.getsize(tmp_path / "s")
    assert calls == [f"sync s {size}", "rename", f"sync {tmp_path.name}"]


def test_syncing_a_directory_leaves_no_descriptor_open(tmp_path: Path) -> None:
    sync_directory(str(tmp_path))
    # Threads of stores that earlier tests left open and close files of theirs meanwhile.
    assert str(tmp_path) not in map(os.path.realpath, Path("/proc/self/fd").iterdir())
