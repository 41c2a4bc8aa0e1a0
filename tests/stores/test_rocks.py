"""RocksDB: what survives a kill, and who may open it. Damage: test_rocks_damage.py."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import rocksdict

from tests.bare import BARE
from tests.deep import usually
from windrow.core.errors import CorruptState, DiskFailed, StateError, StateLocked
from windrow.stores import rocks
from windrow.stores.kv import Batch
from windrow.stores.quarantine import destroy
from windrow.stores.rocks import RocksKV
from windrow.testing.faults import damage_file

CFS = ("data", "meta", "other")


def batch(cf: str, *keys: bytes, value: bytes = b"v") -> Batch:
    made = Batch()
    made.put_many(cf, keys, [value] * len(keys))
    return made


def numbers(kv: RocksKV, cf: str) -> list[int]:
    return [int.from_bytes(key) for key, _ in kv.scan(cf)]


def sst_of(path: Path) -> Path:
    (file,) = path.glob("*.sst")
    return file


# -- crashes -------------------------------------------------------------------------------------------------

CHILD = textwrap.dedent(
    """
    import os, random, sys
    from windrow.stores.kv import Batch
    from windrow.stores.rocks import RocksKV

    path, seed = sys.argv[1], int(sys.argv[2])
    chance = random.Random(seed)
    kv = RocksKV(path, ("data", "meta", "other"), memtable_bytes=64 << 10)
    (applied,) = [int.from_bytes(v) for _, v in kv.scan("meta")] or (0,)
    for commit in range(applied + 1, applied + 100_000):
        batch = Batch()
        key = commit.to_bytes(8)
        batch.put("data", key, os.urandom(chance.choice([10, 2_000])))
        if commit % 7 == 0:
            batch.put("other", key, b"x")
        batch.put("meta", b"applied", key)
        kv.write(batch)
        if commit % 97 == 0:
            kv.flush()
        if commit % 50 == 0:
            print(commit, flush=True)
    """
)


@pytest.mark.parametrize("seed", range(usually(2, deep=4)))
def test_after_a_kill_the_marker_reports_exactly_which_commits_are_there(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    seen = 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", BARE + CHILD, str(tmp_path / "db"), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for _ in range(chance.randrange(2, 25)):
            child.stdout.readline()
        child.kill()
        child.wait()
        child.stdout.close()
        with RocksKV(tmp_path / "db", CFS) as kv:
            applied = int.from_bytes(kv.get("meta", b"applied") or b"")
            assert numbers(kv, "data") == list(range(1, applied + 1))
            assert numbers(kv, "other") == list(range(7, applied + 1, 7))
        assert applied >= seen
        seen = applied
    assert seen > 0


def test_a_flush_makes_all_column_families_survive_a_kill(tmp_path: Path) -> None:
    program = (
        "import os, sys; from windrow.stores.kv import Batch; from windrow.stores.rocks import RocksKV\n"
        "kv = RocksKV(sys.argv[1], ('data', 'meta', 'other')); batch = Batch()\n"
        "for cf in kv.cfs: batch.put(cf, b'k', b'v')\n"
        "kv.write(batch); kv.flush(); kv.flush(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", BARE + program, str(tmp_path)], check=False)
    with RocksKV(tmp_path, CFS) as kv:
        assert [kv.get(cf, b"k") for cf in CFS] == [b"v"] * 3
    assert "flush.tmp" not in os.listdir(tmp_path)


def test_a_kill_in_the_middle_of_a_close_leaves_no_column_family_ahead(tmp_path: Path) -> None:
    """rocksdict flushes a column family alone when its last handle goes."""
    program = (
        "import os, sys; from windrow.stores.kv import Batch; from windrow.stores.rocks import RocksKV\n"
        "class Maps(dict):\n"
        "    def clear(self): del self['data']; os.kill(os.getpid(), 9)\n"
        "kv = RocksKV(sys.argv[1], ('data', 'meta', 'other')); batch = Batch()\n"
        "for cf in kv.cfs: batch.put(cf, b'k', b'v')\n"
        "kv.write(batch); kv._maps = Maps(kv._maps); kv.close()"
    )
    subprocess.run([sys.executable, "-c", BARE + program, str(tmp_path)], check=False)
    with RocksKV(tmp_path, CFS) as kv:
        assert [kv.get(cf, b"k") for cf in CFS] == [b"v"] * 3


def test_a_clean_close_loses_nothing(tmp_path: Path) -> None:
    with RocksKV(tmp_path, CFS) as kv:
        kv.write(batch("data", b"a"))
        kv.write(batch("other", b"b"))
    with RocksKV(tmp_path, CFS) as kv:
        assert kv.get("data", b"a") == kv.get("other", b"b") == b"v"


def test_what_a_killed_flush_left_is_swept(tmp_path: Path) -> None:
    RocksKV(tmp_path, CFS).close()
    (tmp_path / "flush.tmp").mkdir()
    (tmp_path / "flush.tmp" / "000001.sst").write_bytes(b"x")
    (tmp_path / "flush.tmp.tmp").mkdir()
    with RocksKV(tmp_path, CFS) as kv:
        assert not [name for name in os.listdir(tmp_path) if name.startswith("flush")]
        (tmp_path / "flush.tmp").mkdir()  # of a flush that failed in this process
        kv.flush()
    assert not [name for name in os.listdir(tmp_path) if name.startswith("flush")]


# -- who may open it -----------------------------------------------------------------------------------------


def test_a_store_that_is_open_in_this_process_is_not_waited_for_as_long_as_another_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rocks, "OWN_WAIT_S", 0.2)
    # A machine that stands still for so long would see it give up before it has said so.
    monkeypatch.setattr(
        rocks, "time", SimpleNamespace(monotonic=partial(next, count(0, 0.06)), sleep=time.sleep)
    )
    with (
        RocksKV(tmp_path, CFS),
        pytest.raises(StateLocked, match=r"still open in this process after 0\.2 seconds"),
    ):
        RocksKV(tmp_path, CFS, lock_wait_s=300)
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for a store that is open elsewhere: path='{tmp_path}' by='this process' seconds=0.2"
    ]
    RocksKV(tmp_path, CFS).close()


HOLDER = (
    "import sys; from windrow.stores.rocks import RocksKV\n"
    "kv = RocksKV(sys.argv[1], ('data', 'extra')); print('open', flush=True)\n"
    "sys.stdin.readline(); kv.close()"
)


def test_a_full_disk_is_reported_as_one_whoever_meets_it() -> None:
    """RocksDB says so in its words; rocksdict, of the file that it writes itself, in those of Rust."""
    for text in (
        "IO error: No space left on device: While appending",
        "No space left on device (os error 28)",
    ):
        assert isinstance(rocks.translate(Exception(text), "store"), DiskFailed), text


def test_a_disk_that_fails_is_reported_with_the_place_and_what_to_do() -> None:
    for text in (
        "IO error: While pread offset 0 len 53: job/local/shard-0000/000012.sst: Input/output error",
        "Input/output error (os error 5)",
    ):
        error = rocks.translate(Exception(text), "job/local/shard-0000")
        assert isinstance(error, DiskFailed) and error.errno == 5, text
        assert "the store job/local/shard-0000 cannot be read or written" in str(error)
        assert "see what the system's log says of the disk" in str(error)


def test_a_store_of_another_process_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", BARE + HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StateLocked, match=r"still open in another process after 0\.05 seconds"):
            RocksKV(tmp_path, CFS, lock_wait_s=0.05)
        assert caplog.records == []
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(RocksKV, tmp_path, CFS, lock_wait_s=60)
            while not caplog.records:
                assert not opening.done()
            holder.stdin.write("go\n")
            holder.stdin.flush()
            opening.result().close()
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for a store that is open elsewhere: path='{tmp_path}' by='another process' seconds=60"
    ]


def test_many_processes_take_turns_at_one_store(tmp_path: Path) -> None:
    """A file that one opener removes while another is about to read it is no damaged store."""
    turns = (
        "import sys; from windrow.stores.rocks import RocksKV\n"
        "for _ in range(int(sys.argv[2])): RocksKV(sys.argv[1], ('data',), lock_wait_s=250).close()"
    )
    command = [sys.executable, "-c", BARE + turns, str(tmp_path), str(usually(15, deep=500))]
    others = [subprocess.Popen(command) for _ in range(4)]
    assert [other.wait() for other in others] == [0, 0, 0, 0]


def test_a_manifest_that_another_replaced_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen once in a thousand openings: it was looked up in CURRENT before, and read after."""
    with RocksKV(tmp_path, CFS) as kv:
        kv.write(batch("data", b"k"))
    current, families = tmp_path / "CURRENT", RocksKV._families
    there, looked = current.read_text(), []

    def replaced(kv: RocksKV) -> set[str]:
        looked.append(kv.path)
        current.write_text(there if len(looked) > 1 else "MANIFEST-000001\n")
        try:
            return families(kv)
        finally:
            current.write_text(there)

    monkeypatch.setattr(RocksKV, "_families", replaced)
    with RocksKV(tmp_path, CFS) as kv:
        assert kv.get("data", b"k") == b"v"
    assert len(looked) == 2


def test_the_manifest_that_current_names_is_missed_at_once(tmp_path: Path) -> None:
    RocksKV(tmp_path, CFS).close()
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(CorruptState, match=r"is damaged: .*MANIFEST-000001: No such file"):
        RocksKV(tmp_path, CFS, lock_wait_s=300)


def test_closing_releases_the_lock_whatever_is_still_referenced(tmp_path: Path) -> None:
    kv = RocksKV(tmp_path, CFS)
    kv.write(batch("data", *(bytes([i]) for i in range(100))))
    started, untouched = kv.scan("data"), kv.scan("data", reverse=True)
    assert next(started)[0] == b"\x00"
    get = kv.get
    kv.close()
    kv.close()
    with RocksKV(tmp_path, CFS, lock_wait_s=0) as again:
        assert again.get("data", b"\x05") == b"v"
    with pytest.raises(StateError, match="was closed while this scan was open"):
        list(started)
    with pytest.raises(StateError, match="was closed while this scan was open"):
        next(untouched)
    for ask in (
        lambda: get("data", b""),
        lambda: kv.scan("data"),
        lambda: kv.multi_get("data", [b""]),
        kv.flush,
    ):
        with pytest.raises(StateError, match="is closed"):
            ask()
    with pytest.raises(StateError, match="is closed"):
        kv.write(Batch())


def test_a_write_to_a_closed_store_is_refused_as_closed(tmp_path: Path) -> None:
    kv = RocksKV(tmp_path, CFS)
    kv.close()
    with pytest.raises(StateError, match="is closed"):
        kv.write(batch("data", b"k"))


def test_an_error_that_is_still_held_does_not_hold_the_store(tmp_path: Path) -> None:
    kv = RocksKV(tmp_path, CFS)
    kv.write(batch("data", b"k"))
    errors = []
    half_known = batch("data", b"k")
    half_known.put("no", b"k", b"v")
    for fail in (lambda: kv.write(half_known), lambda: kv.get("no", b""), lambda: kv.scan("no")):
        with pytest.raises(KeyError) as caught:
            fail()
        errors.append(caught)
    kv.close()
    damage_file(sst_of(tmp_path), 10)
    kv = RocksKV(tmp_path, CFS)
    for fail in (lambda: list(kv.scan("data")), lambda: kv.get("data", b"k")):
        with pytest.raises(CorruptState) as damaged:
            fail()
        errors.append(damaged)
    kv.close()
    os.rename(tmp_path, f"{tmp_path}.aside")
    with RocksKV(tmp_path, CFS, lock_wait_s=0) as again:
        assert again.get("data", b"k") is None
    assert len(errors) == 5


def test_a_close_that_fails_says_so_and_still_releases_the_lock(tmp_path: Path) -> None:
    kv = RocksKV(tmp_path, CFS)
    kv.write(batch("data", b"k"))
    rows = rocksdict.WriteBatch(raw_mode=True)
    rows.delete_range(b"b", b"a")  # what RocksDB takes, and cannot flush
    with pytest.raises(Exception, match="end key comes before start key"):
        kv._alive().write(rows)
    with pytest.raises(StateError, match="end key comes before start key") as held:
        kv.close()
    assert held
    kv.close()
    with pytest.raises(CorruptState, match="no CURRENT"):  # nobody takes a part for the whole
        RocksKV(tmp_path, CFS, lock_wait_s=0)


@pytest.mark.parametrize("end", ["", "del kv", "raise SystemExit", "kv.close()"])
def test_on_a_full_disk_a_store_is_left_whole_or_not_at_all(end: str, tmp_path: Path) -> None:
    """No file may be longer than 200 kB: what the marker marks does not fit, the marker does."""
    program = (
        "import os, resource, signal, sys; from windrow.stores.kv import Batch; from windrow.stores.rocks import RocksKV\n"
        "kv, rows = RocksKV(sys.argv[1], ('meta', 'data')), Batch()\n"
        "rows.put('meta', b'k', b'v'); rows.put('data', b'k', os.urandom(1 << 20)); kv.write(rows)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n{end}"
    )
    subprocess.run(
        [sys.executable, "-c", BARE + program, str(tmp_path / "kv")], check=False, capture_output=True
    )
    with pytest.raises(CorruptState, match="no CURRENT"):
        RocksKV(tmp_path / "kv", CFS, lock_wait_s=0)


@pytest.mark.parametrize("end", ["", "del kv", "kv.close()"])
def test_a_full_disk_takes_nothing_from_a_store_that_is_written(end: str, tmp_path: Path) -> None:
    with RocksKV(tmp_path, CFS) as kv:
        kv.write(batch("data", b"k"))
    program = (
        "import resource, signal, sys; from windrow.stores.rocks import RocksKV\n"
        "kv = RocksKV(sys.argv[1], ('data',)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n{end}"
    )
    subprocess.run([sys.executable, "-c", BARE + program, str(tmp_path)], check=False, capture_output=True)
    with RocksKV(tmp_path, CFS, lock_wait_s=0) as kv:
        assert kv.get("data", b"k") == b"v"


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "kv.close(); sys.exit(3)", "del kv; gc.collect(); sys.exit(3)"]
)
def test_a_forked_child_ends_and_leaves_the_store_to_its_parent(end: str, tmp_path: Path) -> None:
    """It waited for ever for threads that were not there; where nothing was in memory it died by a signal."""
    program = (
        "import gc, os, signal, sys; from windrow.stores.kv import Batch; from windrow.stores.rocks import RocksKV\n"
        "kv, rows = RocksKV(sys.argv[1], ('data',)), Batch()\n"
        "rows.put('data', b'k', b'v'); kv.write(rows); scan = kv.scan('data'); next(scan)\n"
        f"if not (child := os.fork()):\n    signal.alarm(20); {end}\n"
        "ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "assert (ended, kv.get('data', b'k')) == (3, b'v'), ended\n"
        "rows.put('data', b'l', b'w'); kv.write(rows); kv.close()"
    )
    subprocess.run([sys.executable, "-c", BARE + program, str(tmp_path / "kv")], check=True)
    with RocksKV(tmp_path / "kv", CFS, lock_wait_s=0) as kv:
        assert list(kv.scan("data")) == [(b"k", b"v"), (b"l", b"w")]


def test_an_interrupted_flush_takes_nothing_from_a_store_that_nobody_closes(tmp_path: Path) -> None:
    kv = RocksKV(tmp_path, CFS)
    kv.checkpoint(tmp_path / "flush.tmp")  # an interrupt came before it was taken away
    kv.write(batch("data", b"k"))
    del kv
    with RocksKV(tmp_path, CFS, lock_wait_s=0) as kv:
        assert kv.get("data", b"k") == b"v"


def test_new_column_families_are_created_and_unnamed_ones_stay(tmp_path: Path) -> None:
    with RocksKV(tmp_path, ["data"]) as kv:
        kv.write(batch("data", b"k"))
    with RocksKV(tmp_path, ["meta"]) as kv:
        assert kv.cfs == ("meta",)
        kv.write(batch("meta", b"k"))
        with pytest.raises(KeyError):
            kv.get("data", b"k")
    with RocksKV(tmp_path, ["data", "meta"]) as kv:
        assert kv.get("data", b"k") == kv.get("meta", b"k") == b"v"


def test_a_column_family_made_between_looking_and_opening_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RocksKV(tmp_path, CFS).close()
    looks = iter([{"default"}])
    families = RocksKV._families
    monkeypatch.setattr(RocksKV, "_families", lambda kv: next(looks, None) or families(kv))
    RocksKV(tmp_path, ["new"], lock_wait_s=60).close()
    assert next(looks, None) is None


def test_another_reader_needs_no_lock_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with RocksKV(path, CFS) as kv:
        kv.write(batch("data", b"a"))
        kv.flush()
        kv.write(batch("data", b"b"))
        reader = RocksKV(path, [*CFS, "new"], read_only=True)
        assert [key for key, _ in reader.scan("data")] == [b"a"]
        assert reader.get("new", b"k") is None
        assert reader.multi_get("new", [b"k"]) == [None]
        assert list(reader.scan("new")) == []
        with pytest.raises(StateError, match="Not supported"):
            reader.write(batch("data", b"c"))
        reader.close()


def test_a_reader_of_no_store_is_refused_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(CorruptState, match="there is no store at"):
        RocksKV(tmp_path / "db", CFS, read_only=True)
    assert not (tmp_path / "db").exists()


def test_destroy_removes_a_store_and_minds_not_if_there_is_none(tmp_path: Path) -> None:
    RocksKV(tmp_path / "db", CFS).close()
    destroy(tmp_path / "db")
    destroy(tmp_path / "db")
    assert not (tmp_path / "db").exists()


def test_a_checkpoint_is_a_store_of_its_own(tmp_path: Path) -> None:
    with RocksKV(tmp_path / "db", CFS) as kv:
        kv.write(batch("data", b"a"))
        kv.checkpoint(tmp_path / "copy")
        kv.write(batch("data", b"b"))
        with pytest.raises(StateError):
            kv.checkpoint(tmp_path / "copy")
        with RocksKV(tmp_path / "copy", CFS) as copy:
            copy.write(batch("data", b"c"))
            assert [key for key, _ in copy.scan("data")] == [b"a", b"c"]
        assert [key for key, _ in kv.scan("data")] == [b"a", b"b"]


def test_a_disk_that_takes_no_more_is_what_is_reported_of_a_store_that_cannot_be_opened(
    tmp_path: Path,
) -> None:
    program = f"""
import resource
from windrow.core.errors import DiskFailed
from windrow.stores.rocks import RocksKV
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
try:
    RocksKV({str(tmp_path / "store")!r}, ["a"])
except DiskFailed as error:
    print(error.errno, error)
resource.setrlimit(resource.RLIMIT_FSIZE, before)
RocksKV({str(tmp_path / "store")!r}, ["a"]).close()
"""
    done = subprocess.run([sys.executable, "-c", BARE + program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{errno.EFBIG} ") and "raise the limit of file sizes" in done.stdout
