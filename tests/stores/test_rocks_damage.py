"""RocksDB: damage is never read as emptiness; and what rocksdict does that `rocks.py` works around."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rocksdict

from tests.bare import BARE
from tests.stores.test_rocks import CFS, sst_of
from windrow.core.errors import CorruptState, StateLocked
from windrow.stores import rocks
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV
from windrow.testing.faults import damage_file


def unlink_all(pattern: str) -> Callable[[Path], None]:
    def unlink(path: Path) -> None:
        for file in path.glob(pattern):
            file.unlink()

    return unlink


BREAKAGES: dict[str, Callable[[Path], None]] = {
    "footer of a table": lambda path: damage_file(sst_of(path), -3),
    "table cut short": lambda path: os.truncate(sst_of(path), 100),
    "table gone": unlink_all("*.sst"),
    "manifest damaged": lambda path: damage_file(next(path.glob("MANIFEST-*")), 20),
    "manifest cut short": lambda path: os.truncate(next(path.glob("MANIFEST-*")), 60),
    "manifest gone": unlink_all("MANIFEST-*"),
    "CURRENT gone": unlink_all("CURRENT"),
    "CURRENT and log gone": lambda path: (unlink_all("CURRENT")(path), unlink_all("*.log")(path))[0],
    "CURRENT empty": lambda path: os.truncate(path / "CURRENT", 0),
}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A closed store whose 5,000 rows lie in one table of many blocks."""
    with RocksKV(tmp_path / "db", CFS) as kv:
        made = Batch()
        for i in range(5000):
            made.put("data", i.to_bytes(4), random.Random(i).randbytes(40))
        kv.write(made)
    return tmp_path / "db"


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_store_is_refused_when_it_is_opened(whole: Path, breakage: str) -> None:
    BREAKAGES[breakage](whole)
    with pytest.raises(CorruptState, match=r"the store .*db"):
        RocksKV(whole, CFS, lock_wait_s=0)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
def test_a_damaged_block_is_reported_and_never_ends_a_scan_quietly(whole: Path, part: float) -> None:
    file = sst_of(whole)
    damage_file(file, int(os.path.getsize(file) * part))
    with RocksKV(whole, CFS) as kv:
        for reverse in (False, True):
            read = 0
            with pytest.raises(CorruptState, match="is damaged: Corruption"):
                for _ in kv.scan("data", reverse=reverse):
                    read += 1
            assert read < 5000
        with pytest.raises(CorruptState):
            kv.multi_get("data", [i.to_bytes(4) for i in range(5000)])
        with pytest.raises(CorruptState):
            for i in range(5000):
                kv.get("data", i.to_bytes(4))
        with pytest.raises(CorruptState, match="is damaged: Corruption"):
            kv.scan_ranges("data", [(i.to_bytes(4), i.to_bytes(4) + b"\x00") for i in range(5000)])
        assert list(kv.scan("other")) == []


def test_a_range_that_needs_no_damaged_block_is_still_read(whole: Path) -> None:
    file = sst_of(whole)
    damage_file(file, os.path.getsize(file) // 2)
    with RocksKV(whole, CFS) as kv:
        assert len(list(kv.scan("data", end=(100).to_bytes(4)))) == 100
        assert len(list(kv.scan("data", (4900).to_bytes(4)))) == 100
        assert len(list(kv.scan("data", end=(100).to_bytes(4), reverse=True))) == 100
        assert len(list(kv.scan("data", (4900).to_bytes(4), reverse=True))) == 100


def test_a_store_left_without_current_is_not_taken_for_broken_while_another_makes_it(
    whole: Path, tmp_path: Path
) -> None:
    # As seen by a second opener while the first has written the manifest, and CURRENT not yet.
    shutil.copytree(whole, tmp_path / "new")
    with RocksKV(tmp_path / "new", CFS):
        (tmp_path / "new" / "CURRENT").rename(tmp_path / "CURRENT")
        with pytest.raises(StateLocked):
            RocksKV(tmp_path / "new", CFS, lock_wait_s=0.05)
        (tmp_path / "CURRENT").rename(tmp_path / "new" / "CURRENT")


# -- what rocksdict does, which rocks.py works around: a new version may need less of it ---------------------


def raw_store(path: Path) -> rocksdict.Rdict:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    return rocksdict.Rdict(str(path), options)


def test_rocksdict_flushes_one_column_family_alone(tmp_path: Path) -> None:
    program = (
        "import os, sys, rocksdict\n"
        "options = rocksdict.Options(raw_mode=True); options.create_if_missing(True)\n"
        "options.create_missing_column_families(True); options.set_atomic_flush(True)\n"
        "db = rocksdict.Rdict(sys.argv[1], options, {'data': options, 'meta': options})\n"
        "no_log = rocksdict.WriteOptions(); no_log.disable_wal = True\n"
        "rows = rocksdict.WriteBatch(raw_mode=True)\n"
        "for cf in ('data', 'meta'): rows.put(b'k', b'v', db.get_column_family_handle(cf))\n"
        "db.write(rows, no_log)\n"
        "db.get_column_family('meta').flush(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", BARE + program, str(tmp_path)], check=False)
    with RocksKV(tmp_path, CFS) as kv:
        assert (kv.get("data", b"k"), kv.get("meta", b"k")) == (None, b"v")


def test_rocksdict_ends_a_scan_quietly_at_a_damaged_block(whole: Path) -> None:
    damage_file(sst_of(whole), 10)
    families = {cf: rocksdict.Options(raw_mode=True) for cf in CFS}
    db = rocksdict.Rdict(str(whole), rocksdict.Options(raw_mode=True), families)
    assert list(db.get_column_family("data").items()) == []
    db.close()


def test_rocksdict_takes_a_lower_bound_for_an_upper_one(tmp_path: Path) -> None:
    db = raw_store(tmp_path)
    for key in (b"a", b"b", b"c"):
        db[key] = b"v"
    bounds = rocksdict.ReadOptions()
    bounds.set_iterate_lower_bound(b"b")
    assert [key for key, _ in db.items(read_opt=bounds)] == [b"a"]
    db.close()


def test_rocksdict_takes_a_reversed_range_and_fails_later(tmp_path: Path) -> None:
    db = raw_store(tmp_path)
    with pytest.raises(Exception, match="end key comes before start key"):
        db.delete_range(b"b", b"a")
        db.flush()
    with pytest.raises(Exception, match="end key comes before start key"):
        db.close()


def test_a_scan_of_large_values_reads_about_a_megabyte_ahead(tmp_path: Path) -> None:
    with_large = rocks.RocksKV(tmp_path / "kv", ["w"])
    batch = Batch()
    batch.put_many("w", [b"%03d" % i for i in range(64)], [bytes(256 << 10)] * 64)
    with_large.write(batch)
    ahead: list[int] = []
    chunks = with_large._chunks

    def counted(source: Any) -> Any:
        for chunk in chunks(source):
            ahead.append(sum(len(value) for _, value in chunk))
            yield chunk

    with_large._chunks = counted  # type: ignore[method-assign]
    assert len(list(with_large.scan("w"))) == 64
    assert max(ahead) <= rocks.CHUNK_BYTES
    with_large.close()


def test_pages_of_windows_lie_in_small_blocks(tmp_path: Path) -> None:
    """A commit looks up some here and there: what it unpacks follows what it asks for."""
    with RocksKV(tmp_path / "kv", ("a.windows", "a.messages")) as kv:
        rows = Batch()
        for cf in kv.cfs:
            rows.put_many(
                cf,
                [b"%03d" % i for i in range(256)],
                [random.Random(i).randbytes(1 << 10) for i in range(256)],
            )
        kv.write(rows)
        kv.flush()
        properties = [
            kv._maps[cf].property_value("rocksdb.aggregated-table-properties") or "" for cf in kv.cfs
        ]
    windows, messages = [int(text.partition("# data blocks=")[2].partition(";")[0]) for text in properties]
    assert windows >= 3 * messages > 0
