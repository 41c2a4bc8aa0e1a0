"""RocksDB behind the KV protocol: the only module that knows rocksdict.

What a shard keeps on disk is a cache of its committed segments, so RocksDB's own log is off, and a crash
loses what was not flushed. What is flushed must be whole commits: `atomic_flush` is on, and the marker of the
last applied commit travels in the batch that it marks.

Things that rocksdict 0.3.29 does and this module works around (each has a test):

- `flush()` of one column family flushes that one alone, `atomic_flush` or not: a crash between two such calls
  leaves the marker ahead of the data. Creating a checkpoint flushes all of them as one, so that is what
  `flush` does here.
- Its item iterators end quietly at a damaged block. After the last pair the place is looked at again with a
  raw iterator, which does report.
- `set_iterate_lower_bound` sets the upper bound. Backward scans stop by comparing.
- Iterators, handles and batches that are still referenced keep the store open, and LOCK held, after
  `close()`.
- RocksDB takes a range whose end is before its start, and fails at the next flush. `Batch` never holds one.
- Without CURRENT a directory full of data opens as a new, empty store.

Never open a store before a fork.
"""

from __future__ import annotations

import os
import shutil
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import rocksdict

from windrow.core.errors import CorruptState, StateError, StateLocked
from windrow.stores.kv import Batch, Pair

BLOCK_CACHE_BYTES: Final = 128 << 20
MEMTABLES_BYTES: Final = 64 << 20
MEMTABLE_BYTES: Final = 32 << 20
_FLUSH_DIR: Final = "flush.tmp"
_SHARED: dict[int, tuple[rocksdict.Cache, rocksdict.WriteBufferManager]] = {}


class RocksKV:
    """One RocksDB store.

    `cfs` are created where they are missing. `read_only` sees what was flushed when it was opened;
    `secondary` (a directory of its own) also follows the process that writes, with `catch_up()`. Neither
    takes the lock.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        cfs: Sequence[str],
        *,
        read_only: bool = False,
        secondary: str | os.PathLike[str] | None = None,
        lock_wait_s: float = 10.0,
    ) -> None:
        self.path = os.fspath(path)
        self.read_only = read_only or secondary is not None
        self._cfs = tuple(cfs)
        self._scans: weakref.WeakSet[Iterator[Pair]] = weakref.WeakSet()
        _refuse_headless(self.path, must_exist=self.read_only)
        if secondary is not None:
            access = rocksdict.AccessType.secondary(os.fspath(secondary))
        elif read_only:
            access = rocksdict.AccessType.read_only(False)
        else:
            access = rocksdict.AccessType.read_write()
            os.makedirs(self.path, exist_ok=True)
        self._db: rocksdict.Rdict | None = self._open(access, lock_wait_s)
        there = set(self._cfs) & self._found if self.read_only else set(self._cfs)
        self._maps = {cf: self._db.get_column_family(cf) for cf in self._cfs if cf in there}
        self._handles = {cf: self._db.get_column_family_handle(cf) for cf in self._cfs if cf in there}
        self._no_log = rocksdict.WriteOptions()
        self._no_log.disable_wal = True  # type: ignore[method-assign, assignment]
        if not self.read_only:
            self._sweep_flush_dir()

    def _open(self, access: rocksdict.AccessType, lock_wait_s: float) -> rocksdict.Rdict:
        deadline = time.monotonic() + lock_wait_s
        while True:
            try:
                self._found = _families(self.path)
                wanted = self._found if self.read_only else self._found | set(self._cfs)
                families = {cf: _options() for cf in wanted - {"default"}}
                return rocksdict.Rdict(self.path, _options(), families, access)
            except Exception as error:
                if not _is_lock(error):
                    raise _translate(error, self.path) from error
                if time.monotonic() >= deadline:
                    raise StateLocked(
                        f"the store {self.path} is still open elsewhere after {lock_wait_s:g} seconds: wait "
                        f"for the other process to end, or build a private copy ({error})"
                    ) from error
            time.sleep(0.02)

    @property
    def cfs(self) -> tuple[str, ...]:
        return self._cfs

    # -- reads -----------------------------------------------------------------------------------------------

    def get(self, cf: str, key: bytes) -> bytes | None:
        try:
            return self._maps[cf].get(key)
        except KeyError:
            self._refuse_unknown(cf)
            return None
        except Exception as error:
            raise _translate(error, self.path) from error

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        try:
            found: Any = self._maps[cf].get(keys if isinstance(keys, list) else list(keys))
            return list(found)
        except KeyError:
            self._refuse_unknown(cf)
            return [None] * len(keys)
        except Exception as error:
            raise _translate(error, self.path) from error

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        family = self._maps.get(cf)
        if family is None:
            self._refuse_unknown(cf)
            return iter(())
        if end is not None and end <= start:
            return iter(())
        bounds = rocksdict.ReadOptions()
        if end is not None:
            bounds.set_iterate_upper_bound(end)
        try:
            if reverse:
                items = self._backward(family, family.items(backwards=True, read_opt=bounds), start, end)
            else:
                items = self._forward(family, family.items(from_key=start, read_opt=bounds), start, end)
        except Exception as error:
            raise _translate(error, self.path) from error
        self._scans.add(items)
        return items

    def _forward(
        self, family: rocksdict.Rdict, items: Any, start: bytes, end: bytes | None
    ) -> Iterator[Pair]:
        last = None
        for last in items:
            yield last
        after = start if last is None else last[0] + b"\x00"
        self._look_again(family, end, lambda raw: raw.seek(after))

    def _backward(
        self, family: rocksdict.Rdict, items: Any, start: bytes, end: bytes | None
    ) -> Iterator[Pair]:
        last = None
        for pair in items:
            if pair[0] < start:
                return
            last = pair
            yield pair

        def before(raw: rocksdict.RdictIter) -> None:
            if last is None:
                raw.seek_to_last()
            else:
                raw.seek(last[0])
                if raw.valid():
                    raw.prev()

        self._look_again(family, end, before)

    def _look_again(
        self, family: rocksdict.Rdict, end: bytes | None, seek: Callable[[rocksdict.RdictIter], None]
    ) -> None:
        """Raises where the pairs ended because a block is damaged rather than because there are no more."""
        bounds = rocksdict.ReadOptions()
        if end is not None:
            bounds.set_iterate_upper_bound(end)
        try:
            raw = family.iter(bounds)
            seek(raw)
            raw.status()
        except Exception as error:
            raise _translate(error, self.path) from error

    def _refuse_unknown(self, cf: str) -> None:
        """A cf that a read-only store was asked for and lacks reads as empty; any other is a mistake."""
        if self._db is None:
            raise StateError(f"the store {self.path} is closed")
        if cf not in self._cfs:
            raise KeyError(cf)

    # -- writes ----------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        rows = rocksdict.WriteBatch(raw_mode=True)
        try:
            for cf in batch.cfs:
                handle = self._handles[cf]
                for start, end in batch.ranges(cf):
                    rows.delete_range(start, end, handle)
                points = batch.points(cf)
                rows.set_default_column_family(handle)
                if None in points.values():
                    for key, value in points.items():
                        if value is None:
                            rows.delete(key)
                        else:
                            rows.put(key, value)
                else:
                    deque(map(rows.put, points, points.values()), maxlen=0)
            self._alive().write(rows, self._no_log)
        except KeyError as error:
            raise KeyError(f"{error.args[0]!r} is no column family of {self.path}") from error
        except Exception as error:
            raise _translate(error, self.path) from error
        finally:
            rows.set_default_column_family(None)

    def flush(self) -> None:
        """Makes everything written so far survive a crash, all column families as one."""
        self.checkpoint(os.path.join(self.path, _FLUSH_DIR))
        self._sweep_flush_dir()

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """A consistent copy at `path` (which must not exist), hard-linked where it is the same file
        system."""
        try:
            rocksdict.Checkpoint(self._alive()).create_checkpoint(os.fspath(path))
        except Exception as error:
            raise _translate(error, self.path) from error

    def compact(self) -> None:
        """Rewrites the files so that deleted rows no longer take space."""
        for family in self._maps.values():
            family.compact_range(None, None)

    def catch_up(self) -> None:
        """A secondary's view moves to what its primary has flushed."""
        try:
            self._alive().try_catch_up_with_primary()
        except Exception as error:
            raise _translate(error, self.path) from error

    def close(self) -> None:
        """Flushes, and releases the lock: open scans end here, their next pair is a StopIteration."""
        if self._db is None:
            return
        for scan in list(self._scans):
            scan.close()  # type: ignore[attr-defined]
        db, self._db = self._db, None
        self._maps.clear()
        self._handles.clear()
        try:
            db.close()
        except Exception as error:
            raise _translate(error, self.path) from error

    def __enter__(self) -> RocksKV:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> rocksdict.Rdict:
        if self._db is None:
            raise StateError(f"the store {self.path} is closed")
        return self._db

    def _sweep_flush_dir(self) -> None:
        for name in (_FLUSH_DIR, _FLUSH_DIR + ".tmp"):
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)


def destroy(path: str | os.PathLike[str]) -> None:
    """Removes a closed store and all of its files; nothing where there is none."""
    shutil.rmtree(path, ignore_errors=True)


def _refuse_headless(path: str, must_exist: bool) -> None:
    names = os.listdir(path) if os.path.isdir(path) else []
    if "CURRENT" in names:
        return
    if any(name.endswith(".sst") or name.startswith("MANIFEST-") for name in names):
        raise CorruptState(f"the store {path} has data files but no CURRENT: it would open as an empty one")
    if must_exist:
        raise CorruptState(f"there is no store at {path}")


def _families(path: str) -> set[str]:
    if not os.path.exists(os.path.join(path, "CURRENT")):
        return set()
    return set(rocksdict.Rdict.list_cf(path, rocksdict.Options(raw_mode=True)))


def _shared() -> tuple[rocksdict.Cache, rocksdict.WriteBufferManager]:
    """One cache and one memtable budget for all stores of this process, however many shards it holds."""
    pid = os.getpid()
    if pid not in _SHARED:
        cache = rocksdict.Cache(BLOCK_CACHE_BYTES)
        _SHARED[pid] = (cache, rocksdict.WriteBufferManager(MEMTABLES_BYTES, False))
    return _SHARED[pid]


def _options() -> rocksdict.Options:
    cache, memtables = _shared()
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(10, False)
    table.set_block_size(16 << 10)
    table.set_format_version(5)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_write_buffer_manager(memtables)
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_max_background_jobs(2)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_manifest_file_size(1 << 20)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _is_lock(error: Exception) -> bool:
    text = str(error)
    return text.startswith("IO error") and "lock" in text.lower() and "LOCK" in text


def _translate(error: Exception, path: str) -> Exception:
    """Our error for one of rocksdict's, which are plain Exceptions told apart by their text."""
    if isinstance(error, StateError):
        return error
    text = str(error)
    if text.startswith("Corruption") or "No such file or directory" in text:
        return CorruptState(f"the store {path} is damaged: {text}")
    return StateError(f"the store {path} failed: {text}")
