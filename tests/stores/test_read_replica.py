"""A mirror of a store that somebody else has open: what was flushed, and nothing written where it lies."""

from pathlib import Path

import pytest

from windrow.core.errors import CorruptState
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV, mirror

CFS = ("a", "b")


def put(kv: RocksKV, n: int) -> None:
    batch = Batch()
    for cf in CFS:
        batch.put(cf, b"k%d" % n, b"v" * 1000)
    kv.write(batch)


def held(path: Path) -> list[int]:
    with RocksKV(path, CFS, read_only=True) as kv:
        counts = [len(list(kv.scan(cf))) for cf in CFS]
    return counts


def listing(path: Path) -> dict[str, int]:
    """When each file, and the folder, was written. RocksDB writes its LOG whenever it likes."""
    return {p.name: p.stat().st_mtime_ns for p in [path, *path.iterdir()] if p.name != "LOG"}


def test_a_mirror_holds_what_was_flushed_and_the_store_is_not_touched(tmp_path: Path) -> None:
    with RocksKV(tmp_path / "store", CFS) as kv:
        put(kv, 1)
        kv.flush()
        put(kv, 2)
        before = listing(tmp_path / "store")
        mirror(str(tmp_path / "store"), str(tmp_path / "first"))
        assert held(tmp_path / "first") == [1, 1]
        assert listing(tmp_path / "store") == before
        kv.flush()
        mirror(str(tmp_path / "store"), str(tmp_path / "second"))
        assert held(tmp_path / "second") == [2, 2]
        put(kv, 3)  # and its owner goes on
        assert kv.get("a", b"k3") is not None


def test_an_open_mirror_outlives_the_files_of_its_store(tmp_path: Path) -> None:
    with RocksKV(tmp_path / "store", CFS) as kv:
        put(kv, 1)
    mirror(str(tmp_path / "store"), str(tmp_path / "mirror"))
    with RocksKV(tmp_path / "mirror", CFS, read_only=True) as kv:
        for file in (tmp_path / "store").glob("*.sst"):
            file.unlink()
        assert kv.get("a", b"k1") == b"v" * 1000


def test_files_that_are_gone_are_damage_and_not_an_empty_store(tmp_path: Path) -> None:
    with RocksKV(tmp_path / "store", CFS) as kv:
        put(kv, 1)
    for file in (tmp_path / "store").glob("*.sst"):
        file.unlink()
    mirror(str(tmp_path / "store"), str(tmp_path / "mirror"))
    with pytest.raises(CorruptState):
        held(tmp_path / "mirror")


def test_a_store_that_changes_meanwhile_is_to_be_looked_at_again(tmp_path: Path) -> None:
    with RocksKV(tmp_path / "store", CFS) as kv:
        put(kv, 1)
    (tmp_path / "store" / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(CorruptState, match="changed while it was looked at"):
        mirror(str(tmp_path / "store"), str(tmp_path / "gone"))
    (tmp_path / "store" / "CURRENT").write_text("what\n")
    with pytest.raises(CorruptState, match="its CURRENT says 'what'"):
        mirror(str(tmp_path / "store"), str(tmp_path / "odd"))
