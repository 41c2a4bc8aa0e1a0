"""RocksDB as a `KV`. This is the only module that uses rocksdict.

A shard's data on disk is a cache of its committed segments, so RocksDB's own log is off, and a crash
loses unflushed data. Only whole commits may be flushed: `atomic_flush` is on, and the marker of the
last applied commit travels in the batch that it marks.

Workarounds for rocksdict 0.3.29 (each has a test):

- `flush()` of one column family flushes that one alone, `atomic_flush` or not: a crash between two such calls
  leaves the marker ahead of the data. Creating a checkpoint flushes all of them as one, so
  `flush` does that here.
- Its item iterators end silently at a damaged block. After the last pair the position is checked again with a
  raw iterator, which reports damage.
- `set_iterate_lower_bound` sets the upper bound. Backward scans stop by comparing.
- Iterators, handles and batches that are still referenced keep the store open, and LOCK held, after
  `close()`.
- When a handle is dropped, its column family is flushed alone: on a full disk the marker may fit, and its data not. `RocksKV`
  flushes all as one before, also where nobody closed it. If that fails, and data was in memory alone, the store is left
  without CURRENT.
- RocksDB accepts a range whose end is before its start, and fails at the next flush. `Batch` never holds one.
- Without CURRENT a directory full of data opens as a new, empty store.
- Threads of RocksDB do not exist after a fork: a child that drops a store waits for them for ever, or writes to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
import shutil
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import rocksdict

from windrow.core.errors import CorruptState, StateError, StateLocked
from windrow.core.logs import get_logger
from windrow.stores.files import beheaded, disk_failed, inode_of, inside, make_folder, refuse_links
from windrow.stores.kv import Batch, Pair
from windrow.stores.quarantine import OPEN, TURN

#: A checkpoint that is made to flush a store, and taken away.
FLUSH_DIR: Final = "flush.tmp"
#: Properties of a column family: the number of changes that are not flushed.
_IN_MEMORY: Final = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")


def sweep_flush_dir(path: str) -> None:
    for name in (FLUSH_DIR, FLUSH_DIR + ".tmp"):
        shutil.rmtree(os.path.join(path, name), ignore_errors=True)


def is_written(db: Any, maps: Mapping[str, Any]) -> bool:
    """True if nothing is in memory alone: then a store is whole, whatever fails now. The check itself takes no room."""
    try:
        return all(cf.property_int_value(name) == 0 for cf in (db, *maps.values()) for name in _IN_MEMORY)
    except Exception:
        return False


class Forked(Protocol):
    """A holder of objects that start threads."""

    def leave_to_parent(self) -> list[Any]:
        """Give up what is held, in a child process, and return it."""


#: All of this process, until they are dropped.
FORKED: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def _forked() -> None:
    """Never free here what the parent has open: it would wait for threads that do not exist here, or write."""
    for holder in list(FORKED):
        for held in holder.leave_to_parent():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


os.register_at_fork(after_in_child=_forked)


BLOCK_CACHE_BYTES: Final = 32 << 20
MEMTABLES_BYTES: Final = 64 << 20
#: A checkpoint writes the memtables and blocks all threads of the process meanwhile.
MEMTABLE_BYTES: Final = 8 << 20
BLOCK_BYTES: Final = 16 << 10
#: A commit looks up pages of windows here and there: of each it unpacks a block. Small ones make a larger index.
LOOKED_UP, SMALL_BLOCK_BYTES = ".windows", 4 << 10
#: A scan reads ahead about so much.
CHUNK_BYTES: Final = 1 << 20
_SHARED: dict[int, tuple[rocksdict.Cache, rocksdict.WriteBufferManager]] = {}


class _Source:
    """The RocksDB iterator of an open scan, until the store is closed."""

    __slots__ = ("__weakref__", "_pairs")

    def __init__(self, pairs: Any) -> None:
        self._pairs = pairs

    def pairs(self, path: str) -> Iterator[Pair]:
        if self._pairs is None:
            raise StateError(f"the store {path} was closed while this scan was open")
        return self._pairs  # type: ignore[no-any-return]

    def release(self) -> None:
        self._pairs = None


class RocksKV:
    """One RocksDB store.

    `cfs` are created where they are missing. `read_only` sees what was flushed when it was opened, and does not take the lock.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        cfs: Sequence[str],
        *,
        read_only: bool = False,
        lock_wait_s: float = 10.0,
        memtable_bytes: int = MEMTABLE_BYTES,
    ) -> None:
        self.path = os.fspath(path)
        self._memtable_bytes = memtable_bytes
        self.read_only = read_only
        self._cfs = tuple(cfs)
        self._scans: weakref.WeakSet[_Source] = weakref.WeakSet()
        if self.read_only and not os.path.exists(os.path.join(self.path, "CURRENT")):
            raise CorruptState(f"there is no store at {self.path}")
        if read_only:
            access = rocksdict.AccessType.read_only(False)
        else:
            access = rocksdict.AccessType.read_write()
            make_folder(self.path)
            refuse_links(self.path)
        self._db: rocksdict.Rdict | None = self._open(access, lock_wait_s)
        there = set(self._cfs) & self._found if self.read_only else set(self._cfs)
        self._maps = {cf: self._db.get_column_family(cf) for cf in self._cfs if cf in there}
        self._handles = {cf: self._db.get_column_family_handle(cf) for cf in self._cfs if cf in there}
        self._no_log = rocksdict.WriteOptions()
        self._no_log.disable_wal = True  # type: ignore[method-assign, assignment]
        FORKED.add(self)
        if not self.read_only:
            sweep_flush_dir(self.path)
            self._inode = OPEN[self]
            opened = (self._db, self._maps, self._handles)
            self._left = weakref.finalize(self, _leave, os.getpid(), self.path, self._inode, *opened)

    def _open(self, access: rocksdict.AccessType, lock_wait_s: float) -> rocksdict.Rdict:
        waiting = Waiting(self.path, lock_wait_s)
        while True:
            # Without CURRENT it is new, being made by someone who holds the lock, or has lost its head.
            new = not os.path.exists(os.path.join(self.path, "CURRENT"))
            headless = new and any(
                n.endswith(".sst") or n.startswith("MANIFEST-") for n in os.listdir(self.path)
            )
            try:
                self._found = set() if new else self._families()
                wanted = self._found if self.read_only else self._found | set(self._cfs)
                options = {
                    cf: _options(self._memtable_bytes, not headless, cf) for cf in wanted | {"default"}
                }
                with TURN:
                    if not self.read_only:
                        OPEN[self] = inode_of(self.path)
                    return rocksdict.Rdict(self.path, options.pop("default"), options, access)
            except Exception as error:
                OPEN.pop(self, None)
                if headless and "create_if_missing is false" in str(error):
                    raise CorruptState(
                        f"the store {self.path} has data files but no CURRENT: it would open as an empty one"
                    ) from error
                if not is_passing(error, self.path):
                    raise translate(error, self.path) from error
                waiting.go_on(error)
            time.sleep(0.02)

    def _families(self) -> set[str]:
        """Return the store's column families. Damage is reported later, when RocksDB opens the store under its lock."""
        try:
            return set(rocksdict.Rdict.list_cf(self.path, rocksdict.Options(raw_mode=True)))
        except Exception as error:
            if self.read_only or not str(error).startswith("Corruption"):
                raise
            return set()

    @property
    def cfs(self) -> tuple[str, ...]:
        return self._cfs

    @property
    def found(self) -> frozenset[str]:
        """Column families that were there before it was opened."""
        return frozenset(self._found)

    # -- reads -----------------------------------------------------------------------------------------------

    def get(self, cf: str, key: bytes) -> bytes | None:
        try:
            return self._maps[cf].get(key)
        except KeyError:
            self._refuse_unknown(cf)
            return None
        except Exception as error:
            raise translate(error, self.path) from error

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        try:
            values: Any = self._maps[cf].get(keys if isinstance(keys, list) else list(keys))
            return list(values)
        except KeyError:
            self._refuse_unknown(cf)
            return [None] * len(keys)
        except Exception as error:
            raise translate(error, self.path) from error

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        if cf not in self._maps:
            self._refuse_unknown(cf)
            return iter(())
        if end is not None and end <= start:
            return iter(())
        bounds = rocksdict.ReadOptions()
        if end is not None:
            bounds.set_iterate_upper_bound(end)
        try:
            if reverse:
                source = _Source(self._maps[cf].items(backwards=True, read_opt=bounds))
            else:
                source = _Source(self._maps[cf].items(from_key=start, read_opt=bounds))
        except Exception as error:
            raise translate(error, self.path) from error
        self._scans.add(source)
        return (self._backward if reverse else self._forward)(cf, source, start, end)

    def scan_ranges(self, cf: str, ranges: Sequence[tuple[bytes, bytes]]) -> list[Pair]:
        """Return the pairs of ranges that are in order and apart, with one iterator: a scan takes two."""
        pairs: list[Pair] = []
        if cf not in self._maps:
            self._refuse_unknown(cf)
            return pairs
        raw, bounds = None, rocksdict.ReadOptions()
        if ranges:
            bounds.set_iterate_upper_bound(ranges[-1][1])
        try:
            raw = self._maps[cf].iter(bounds)
            for start, end in ranges:
                raw.seek(start)
                while raw.valid() and (key := raw.key()) < end:
                    pairs.append((key, raw.value()))
                    raw.next()
                if not raw.valid():
                    raw.status()  # damage ends it, too
        except Exception as error:
            raise translate(error, self.path) from error
        finally:
            del raw
        return pairs

    # The frames of an error that somebody holds must not hold the store open, hence the `del`s.

    def _forward(self, cf: str, source: _Source, start: bytes, end: bytes | None) -> Iterator[Pair]:
        after = start
        for chunk in self._chunks(source):
            yield from chunk
            after = chunk[-1][0] + b"\x00"
        self._look_again(cf, end, lambda raw: raw.seek(after))

    def _backward(self, cf: str, source: _Source, start: bytes, end: bytes | None) -> Iterator[Pair]:
        last: bytes | None = None
        for chunk in self._chunks(source):
            if chunk[-1][0] < start:
                yield from (pair for pair in chunk if pair[0] >= start)
                return
            yield from chunk
            last = chunk[-1][0]

        def before(raw: rocksdict.RdictIter) -> None:
            if last is None:
                raw.seek_to_last()
            else:
                raw.seek(last)
                if raw.valid():
                    raw.prev()

        self._look_again(cf, end, before)

    def _chunks(self, source: _Source) -> Iterator[list[Pair]]:
        """Pairs, a growing number at a time; nothing here refers to the store while a chunk is out."""
        size = 1  # most scans look for one pair, and its value may be large
        while chunk := list(itertools.islice(source.pairs(self.path), size)):
            yield chunk
            size = min(4 * size, 1024, max(1, CHUNK_BYTES // (len(chunk[-1][1]) + 1)))

    def _look_again(self, cf: str, end: bytes | None, seek: Callable[[rocksdict.RdictIter], None]) -> None:
        """Raises where the pairs ended because a block is damaged rather than because there are no more."""
        bounds = rocksdict.ReadOptions()
        if end is not None:
            bounds.set_iterate_upper_bound(end)
        raw = None
        try:
            raw = self._maps[cf].iter(bounds)
            seek(raw)
            raw.status()
        except Exception as error:
            raise translate(error, self.path) from error
        finally:
            del raw

    def _refuse_unknown(self, cf: str) -> None:
        """Raise for an unknown cf. One that a read-only store was opened with and lacks reads as empty."""
        if self._db is None:
            raise StateError(f"the store {self.path} is closed")
        if cf not in self._cfs:
            raise KeyError(cf)

    # -- writes ----------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        self._alive()
        rows = rocksdict.WriteBatch(raw_mode=True)
        handle = None
        try:
            for cf in batch.cfs:
                handle = self._handles[cf]
                for start, end in batch.ranges(cf):
                    rows.delete_range(start, end, handle)
                points = batch.points(cf)
                keys = sorted(points)  # a memtable takes neighbours in turn three times as fast
                rows.set_default_column_family(handle)
                if None in points.values():
                    for key in keys:
                        value = points[key]
                        if value is None:
                            rows.delete(key)
                        else:
                            rows.put(key, value)
                else:
                    deque(map(rows.put, keys, map(points.__getitem__, keys)), maxlen=0)
            self._alive().write(rows, self._no_log)
        except KeyError as error:
            raise KeyError(f"{error.args[0]!r} is no column family of {self.path}") from error
        except Exception as error:
            raise translate(error, self.path) from error
        finally:
            del rows, handle

    def flush(self) -> None:
        """Makes everything written so far survive a crash, all column families as one."""
        sweep_flush_dir(self.path)
        self.checkpoint(os.path.join(self.path, FLUSH_DIR))
        sweep_flush_dir(self.path)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent copy to `path` (which must not exist), hard-linked where it is the same file
        system."""
        try:
            rocksdict.Checkpoint(self._alive()).create_checkpoint(os.fspath(path))
        except Exception as error:
            raise translate(error, self.path) from error

    def compact(self) -> None:
        """Rewrites the files so that deleted rows no longer take space."""
        try:
            for cf in self._maps:
                self._maps[cf].compact_range(None, None)
        except Exception as error:
            raise translate(error, self.path) from error

    def close(self) -> None:
        """Flush, and release the lock. A scan that is still open fails at its next read.

        All column families are flushed as one first: a process killed between two of them, each of which
        rocksdict flushes alone when it drops the handle, would leave a marker ahead of its data."""
        if self._db is None:
            return
        try:
            if not self.read_only:
                self._left.detach()
                self.flush()
        except Exception:
            whole = is_written(self._alive(), self._maps)
            left = contextlib.nullcontext() if whole else beheaded(self.path, self._inode)
            with left, contextlib.suppress(StateError):
                self._release()
            raise
        finally:
            if self._db is not None:
                self._release()

    def _release(self) -> None:
        assert self._db is not None
        for source in list(self._scans):
            source.release()
        db, self._db = self._db, None
        OPEN.pop(self, None)
        self._maps.clear()
        self._handles.clear()
        try:
            db.close()
        except Exception as error:
            raise translate(error, self.path) from error

    def leave_to_parent(self) -> list[Any]:
        """Give up the store in a child process: it is closed here and remains the parent's."""
        held = [self._db, self._no_log, *self._maps.values(), *self._handles.values()]
        self._db, self._maps, self._handles = None, {}, {}
        OPEN.pop(self, None)
        return [
            *held,
            *(source._pairs for source in self._scans),
            *(x for both in _SHARED.values() for x in both),
        ]

    def __enter__(self) -> RocksKV:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> rocksdict.Rdict:
        if self._db is None:
            raise StateError(f"the store {self.path} is closed")
        return self._db


def _leave(pid: int, path: str, inode: tuple[int, int], db: Any, maps: dict[str, Any], handles: Any) -> None:
    """Leave a store that nobody has closed: it was dropped, or its process ends."""
    if os.getpid() != pid:
        return
    try:
        sweep_flush_dir(path)  # an interrupt may have come as it was flushed
        rocksdict.Checkpoint(db).create_checkpoint(os.path.join(path, FLUSH_DIR))
        sweep_flush_dir(path)
    except Exception:
        if is_written(db, maps):
            return
        with beheaded(path, inode), contextlib.suppress(Exception):
            maps.clear()
            handles.clear()
            db.close()


def _shared() -> tuple[rocksdict.Cache, rocksdict.WriteBufferManager]:
    """Return one cache and one memtable budget for all stores of this process, however many shards it holds."""
    pid = os.getpid()
    if pid not in _SHARED:
        cache = rocksdict.Cache(BLOCK_CACHE_BYTES)
        _SHARED[pid] = (cache, rocksdict.WriteBufferManager(MEMTABLES_BYTES, False))
    return _SHARED[pid]


def _options(memtable_bytes: int, create: bool, cf: str) -> rocksdict.Options:
    cache, memtables = _shared()
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(10, False)
    table.set_block_size(SMALL_BLOCK_BYTES if cf.endswith(LOOKED_UP) else BLOCK_BYTES)
    table.set_format_version(5)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.create_if_missing(create)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_write_buffer_manager(memtables)
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_background_jobs(2)
    options.set_max_file_opening_threads(2)  # 16 if not said, which take longer to start than a store to open
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_manifest_file_size(1 << 20)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 18)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


# -- rocks errors -----------------------------------------------------------------------------------------------------
# Errors of rocksdict, which are plain Exceptions and differ by text only; and the wait for a store that is open elsewhere.

logger = get_logger()

#: A wait of this length for another process's lock is logged.
PATIENCE_S = 0.1
#: No code of this process releases a store while it waits, unless another thread is just closing it.
OWN_WAIT_S = 1.0

#: Text of the system in RocksDB's errors when the disk fails.
_OF_THE_DISK = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


def is_passing(error: Exception, path: str) -> bool:
    """True if the store is in use elsewhere, or was given another column family since we looked.

    Each open, or attempt, deletes old logs of RocksDB, which another process may have done first. An open writes a new
    manifest, and deletes the one that CURRENT named when we began to look.
    """
    text = str(error)
    gone = "No such file" in text
    in_use = "/LOCK:" in text or (gone and "/LOG.old." in text)
    if gone and (manifest := re.search(r"/(MANIFEST-\d+): No such file", text)):
        in_use = manifest[1] != _manifest(path)
    return (text.startswith("IO error") and in_use) or "Column families not opened" in text


class Waiting:
    """Wait for a store that is open elsewhere: it logs the wait once, and ends with an error."""

    def __init__(self, path: str, wait_s: float) -> None:
        self._path, self._wait_s = path, wait_s
        self._began, self._reported = time.monotonic(), False

    def go_on(self, error: Exception) -> None:
        """Raises `StateLocked` when it has been long enough."""
        by, waited_s = _holder(error), time.monotonic() - self._began
        wait_s = min(self._wait_s, OWN_WAIT_S) if by == "this process" else self._wait_s
        if waited_s >= wait_s:
            raise StateLocked(
                f"the store {self._path} is still open in {by or 'another process'} after {wait_s:g} seconds: wait until it is "
                f"closed there, or build a private copy ({error})"
            ) from error
        if by is not None and waited_s >= PATIENCE_S and not self._reported:
            self._reported = True
            logger.warning(
                "waiting for a store that is open elsewhere", path=self._path, by=by, seconds=wait_s
            )


def _holder(error: Exception) -> str | None:
    """Return the process that has the store open; None if the error says nothing of that."""
    text = str(error)
    if "/LOCK:" not in text:
        return None
    return "this process" if "lock hold by current process" in text else "another process"


def _manifest(path: str) -> str:
    """Return the manifest that counts."""
    with open(os.path.join(path, "CURRENT"), errors="replace") as file:
        return file.read().strip()


def translate(error: Exception, path: str) -> Exception:
    """Our error for one of rocksdict's."""
    if isinstance(error, StateError):
        return error
    text = str(error)
    if text.startswith("Corruption") or "No such file or directory" in text:
        return CorruptState(f"the store {path} is damaged: {text}")
    for number in _OF_THE_DISK:
        of_rocksdict = text.endswith(f"(os error {number})")  # of the file that it writes itself
        if of_rocksdict or (text.startswith("IO error") and os.strerror(number) in text):
            return disk_failed(f"the store {path}", text, number)
    return StateError(f"the store {path} failed: {text}")


# -- read replica of a store that another process has open, in a folder of its own ------------------------------------
# RocksDB's secondary and read-only openings take no lock, but rocksdict writes its `rocksdict-config.json` into whatever folder
# it opens, and RocksDB its LOG. So the small files that say what the store is (CURRENT, MANIFEST, options) are copied, the
# immutable SST files are linked by name, and that folder is opened read-only. It holds what was flushed when it was made: whole
# commits, as `atomic_flush` is on. SST files stay open from then on, whatever the owner deletes.

#: Only these are copied; logs are empty (RocksDB's own log is off), LOCK is the owner's.
_COPIED = ("OPTIONS-", "IDENTITY", "rocksdict-config.json")


def mirror(path: str, target: str) -> None:
    """Make at `target`, which must not be there, a folder that opens read-only as the store at `path` was just now.

    Raises CorruptState where the owner replaced files meanwhile (try again) or the store is none.
    """
    os.makedirs(target)
    try:
        with open(os.path.join(path, "CURRENT"), "rb") as file:
            current = file.read()
        manifest = current.decode(errors="replace").strip()
        if not manifest.startswith("MANIFEST-"):
            raise CorruptState(f"the store {path} is damaged: its CURRENT says {manifest!r}")
        # The manifest before the folder: it may name a file that is deleted since, never one that we do not see.
        shutil.copyfile(inside(path, manifest), inside(target, manifest))
        for name in os.listdir(path):
            source = os.path.join(path, name)
            if name.endswith(".sst"):
                os.symlink(os.path.abspath(source), os.path.join(target, name))
            elif name.startswith(_COPIED):
                shutil.copyfile(source, os.path.join(target, name))
        with open(os.path.join(target, "CURRENT"), "wb") as file:
            file.write(current)
    except FileNotFoundError as error:
        raise CorruptState(f"the store {path} changed while it was looked at: {error}") from error
