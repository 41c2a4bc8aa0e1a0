"""The three records of a job's log, and their bytes.

A record is a value: what one driver claimed (`Epoch`), was about to do (`Intent`) or has done (`Commit`).
All three share one sequence of numbers, so that a claim of an epoch also takes the number that the
driver before it would have used next (docs/explanation/adr/0002).

Bytes: the envelope of `windrow.core.envelope` with kind `LOG_RECORD`, around one msgpack map from field
name to value, with `"record"` naming the type. docs/explanation/commit-protocol.md lists the fields. Maps keyed by
partition are lists of `[source, partition, ...]`, sorted, so that equal records have equal bytes. A field
that is missing, unknown or of the wrong type is corruption: a release that adds one writes a higher
version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgpack
import xxhash

from windrow.checkpoint.offsets import Offsets
from windrow.core.check import name as operator_name
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState
from windrow.core.positions import Partition
from windrow.stores.files import plain_name

VERSION = 1
UNNUMBERED = -1  # `seq` of a record that no log has taken yet

Plain = Mapping[
    str, Any
]  # str keys; values are None, bool, int, float, str, bytes, and lists and such maps of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One driver's claim on the job; every record after it carries its number, until the next claim.

    job: identity of the job, chosen once and random in part: a job recreated under the same name is another
    first_seq: records below this number are no part of the log any more
    voids: numbers right below this record whose files are torn; they were never committed
    """

    epoch: int
    opened_us: int
    driver: str
    fingerprints: Mapping[str, str]  # operator name -> hex of its definition's fingerprint
    shards: int
    job: str
    meta: Plain = field(default_factory=dict)
    first_seq: int = 0
    voids: tuple[int, ...] = ()
    seq: int = UNNUMBERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Record of what commit `commit` will be computed from. Nothing of it is visible before its `Commit`."""

    epoch: int
    commit: int
    now_us: int
    watermark_us: int | None  # None: no message has been seen yet
    next_offsets: Offsets = field(default_factory=dict)  # before the commit
    query_id: str | None = None  # Spark's query and batch; both or neither
    batch_id: int | None = None
    idle: tuple[Partition, ...] = ()  # judged idle for this commit
    floors: Plain = field(default_factory=dict)  # retention floors
    meta: Plain = field(default_factory=dict)
    seq: int = UNNUMBERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One `advance` or `ingest` of a commit. An ingest took `rows` messages of `[first_offsets,
    next_offsets)`."""

    kind: Literal["advance", "ingest"]
    now_us: int
    watermark_us: int | None
    first_offsets: Offsets = field(default_factory=dict)
    next_offsets: Offsets = field(default_factory=dict)
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """State of a partition's input. max_time_us: highest event time; seen_us: `now` of its newest message."""

    max_time_us: int | None
    seen_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """Answer of one shard in one commit. Names of files; None where it wrote none.

    kept: kind of file -> [first, last] offset of it in the topic of segments, where the log is in Kafka
    digests: kind of file -> hex, of panes and dead letters
    ranges: kind of file -> [begin, end) of this shard's segment in it, where it holds those of several shards
    """

    shard: int
    segment: str | None = None
    digest: str | None = None  # hex, of the segment
    panes: str | None = None
    panes_rows: int = 0
    snapshot: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


#: Counters of a shard's answer: rows of an operator's pane file.
PANES_OF = "panes_file."
#: Key in `meta` of a commit that set a watermark or `now` back by hand: the user, the time, the old and the new value.
REPAIR = "repair"
#: In a commit's `meta`: `[source, partition, from, to]` of unread offsets, whose records a delivery policy would have skipped.
UNREAD = "unread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One atomic step of all shards. That this record exists *is* the commit."""

    epoch: int
    commit: int  # numbered from 1; 0 is the empty state
    steps: tuple[Step, ...]
    next_offsets: Offsets  # after the commit
    shards: tuple[ShardResult, ...]
    published: int  # highest commit known to be published when this one was made
    watermark_us: int | None  # after the commit
    marks: Mapping[Partition, Mark] = field(default_factory=dict)
    query_id: str | None = None
    batch_id: int | None = None
    floors: Plain = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    meta: Plain = field(default_factory=dict)
    seq: int = UNNUMBERED

    @property
    def now_us(self) -> int | None:
        """`now` of the last step; the next commit's is not lower."""
        return max((step.now_us for step in self.steps), default=None)

    @property
    def identity(self) -> str:
        """Hash that distinguishes a commit from that of the same number in another history: a restored backup's."""
        wrote = [[r.shard, r.segment, r.digest] for r in self.shards]
        emitted: bytes = msgpack.packb([self.seq, self.epoch, self.commit, self.now_us, wrote])
        return xxhash.xxh3_64_hexdigest(emitted)

    def result_of(self, shard: int) -> ShardResult | None:
        """Return the answer of a shard; None where it gave none."""
        if shard < len(self.shards) and self.shards[shard].shard == shard:
            return self.shards[shard]
        return next((r for r in self.shards if r.shard == shard), None)


def now_of(commit: Commit) -> int | None:
    """Return `now` of a commit; a commit without steps has it in `meta`."""
    now_us: int | None = commit.now_us if commit.now_us is not None else commit.meta.get("now_us")
    return now_us


Record = Epoch | Intent | Commit
R = TypeVar("R", Epoch, Intent, Commit)


def encode(record: Record) -> bytes:
    """Return the bytes of a record that has its number."""
    if record.seq < 0:
        raise ValueError(f"{type(record).__name__} has no number: only a log gives one")
    spark = (getattr(record, "query_id", None), getattr(record, "batch_id", None))
    if (spark[0] is None) != (spark[1] is None):
        raise ValueError(f"query_id={spark[0]!r} and batch_id={spark[1]!r}: give both or neither")
    name = type(record).__name__.lower()
    body = {"record": name, **_dump_fields(record)}
    payload: bytes = msgpack.packb(body, strict_types=True)
    return seal(Kind.LOG_RECORD, payload, VERSION)


def decode(data: bytes) -> Record:
    """Return the record in `data`. CorruptState if damaged, NewerFormat if written by a later release."""
    return decode_payload(unseal(Kind.LOG_RECORD, data, VERSION))


def decode_payload(payload: bytes) -> Record:
    """Return the record in an envelope's payload. CorruptState if it is not one, though its checksum was right."""
    try:
        body = msgpack.unpackb(payload, strict_map_key=True)
        if not isinstance(body, dict):
            raise ValueError("not a map")
        name = body.pop("record", None)
        if not isinstance(name, str) or name not in _RECORDS:
            raise ValueError(f"unknown record type {name!r}")
        record: Record = _load_fields(_RECORDS[name], body)
    except ValueError as error:
        raise CorruptState(
            f"log record is whole but wrong: {error}. Restore this file from a backup of the log folder"
        ) from error
    return record


# --- field by field: (to msgpack, from msgpack); loading raises ValueError for any other type ---

Dump = Callable[[Any], Any]
Load = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _typed(*types: type) -> Load:
    def load(value: Any) -> Any:
        if type(value) not in types:  # `type`, not isinstance: a bool is no integer here
            raise ValueError(f"{value!r} is not {' or '.join(t.__name__ for t in types)}")
        return value

    return load


_load_int, _load_str = _typed(int), _typed(str)
_load_list, _load_map = _typed(list), _typed(dict)
_NONE = type(None)


def _load_items(load: Load) -> Load:
    return lambda value: tuple(load(item) for item in _load_list(value))


def _load_partition(value: Any) -> Partition:
    source, partition = _sized(value, 2)
    return _load_str(source), _load_int(partition)


def _sized(value: Any, size: int) -> list[Any]:
    items: list[Any] = _load_list(value)
    if len(items) != size:
        raise ValueError(f"{items!r} has not {size} items")
    return items


def _dump_offsets(offsets: Offsets) -> list[list[Any]]:
    if not offsets:
        return []
    return [[*partition, offset] for partition, offset in sorted(offsets.items())]


def _load_offsets(value: Any) -> dict[Partition, int]:
    rows = [_sized(row, 3) for row in _load_list(value)]
    offsets = {_load_partition(row[:2]): _load_int(row[2]) for row in rows}
    if len(offsets) != len(rows):
        raise ValueError("a partition is named twice")
    return offsets


def _dump_marks(marks: Mapping[Partition, Mark]) -> list[list[Any]]:
    return [[*p, mark.max_time_us, mark.seen_us] for p, mark in sorted(marks.items())]


def _load_marks(value: Any) -> dict[Partition, Mark]:
    load = _typed(int, _NONE)
    rows = [_sized(row, 4) for row in _load_list(value)]
    return {_load_partition(r[:2]): Mark(max_time_us=load(r[2]), seen_us=load(r[3])) for r in rows}


def _load_map_of(load: Load) -> Load:
    return lambda value: {_load_str(key): load(item) for key, item in _load_map(value).items()}


def _load_kind(value: Any) -> str:
    if value not in ("advance", "ingest"):
        raise ValueError(f"unknown step {value!r}")
    return str(value)


def _dump_nested(values: Sequence[Any]) -> list[Any]:
    return [_dump_fields(value) for value in values]


def _dump_steps(steps: Sequence[Step]) -> list[Any]:
    """Dump steps as `_dump_nested` does, field by field: a commit of single messages has two for each."""
    return [
        {
            "kind": step.kind,
            "now_us": step.now_us,
            "watermark_us": step.watermark_us,
            "first_offsets": _dump_offsets(step.first_offsets),
            "next_offsets": _dump_offsets(step.next_offsets),
            "rows": step.rows,
        }
        for step in steps
    ]


def _load_nested(cls: type) -> Load:
    return _load_items(lambda value: _load_fields(cls, dict(_load_map(value))))


def _dump_kept(kept: Mapping[str, tuple[int, int]]) -> dict[str, list[int]]:
    return {kind: list(at) for kind, at in sorted(kept.items())}


def _load_kept(value: Any) -> dict[str, tuple[int, int]]:
    kept = {}
    for kind, at in _load_map(value).items():
        first, last = _sized(at, 2)
        kept[plain_name(kind)] = (_load_int(first), _load_int(last))
    return kept


_MOST_SHARDS = 1 << 16  # a loop over the shards of a job comes to an end


def _load_name(value: Any) -> str | None:
    return None if value is None else plain_name(value)


def _load_operators(value: Any) -> dict[str, str]:
    """Load texts by operator, whose name is part of names of files, column families and topics."""
    return {operator_name(name, "operator"): item for name, item in _load_map_of(_load_str)(value).items()}


def _load_counters(value: Any) -> dict[str, int]:
    """Load counters. Some are of an operator's file, whose name contains the operator's."""
    counters: dict[str, int] = _load_map_of(_load_int)(value)
    for name in (n for n in counters if n.startswith(PANES_OF)):
        operator_name(name[len(PANES_OF) :], "operator")
    return counters


def _load_shards(value: Any) -> int:
    if not 0 <= _load_int(value) <= _MOST_SHARDS:
        raise ValueError(f"{value!r} shards")
    return int(value)


def _load_meta(value: Any) -> dict[str, Any]:
    """Names that readers know have the types that they rely on; others are anything."""
    return {key: _META_KEYS.get(key, _same)(item) for key, item in _load_map_of(_same)(value).items()}


_INT = (_same, _load_int)
_NAME = (_same, _load_name)
_STR = (_same, _load_str)
_OPT_INT = (_same, _typed(int, _NONE))
_OPT_STR = (_same, _typed(str, _NONE))
_OFFSETS = (_dump_offsets, _load_offsets)
_PARTITIONS = (lambda ps: [list(p) for p in sorted(ps)], _load_items(_load_partition))
_MAP = (dict, _load_map_of(_same))
_INT_MAP = (dict, _load_map_of(_load_int))
_META = (dict, _load_meta)
_META_KEYS: dict[str, Load] = {
    "definitions": _load_map_of(_load_str),
    "described": _load_map_of(_load_str),
    "grown": _load_map_of(_load_str),
    "now_us": _typed(int, _NONE),
    "ordinals": lambda rows: [_sized(row, 3) for row in _load_list(rows)],
    "sharding": _load_map_of(_load_int),
    "time_zones": _load_str,
    UNREAD: lambda rows: [_sized(row, 4) for row in _load_list(rows)],
    "watermarks": _load_map_of(_load_int),
}

_FIELDS: dict[type, dict[str, tuple[Dump, Load]]] = {
    Epoch: {
        "seq": _INT,
        "epoch": _INT,
        "opened_us": _INT,
        "driver": _STR,
        "fingerprints": (dict, _load_operators),
        "shards": (_same, _load_shards),
        "job": (_same, plain_name),
        "meta": _META,
        "first_seq": _INT,
        "voids": (list, _load_items(_load_int)),
    },
    Intent: {
        "seq": _INT,
        "epoch": _INT,
        "commit": _INT,
        "query_id": _OPT_STR,
        "batch_id": _OPT_INT,
        "now_us": _INT,
        "watermark_us": _OPT_INT,
        "next_offsets": _OFFSETS,
        "idle": _PARTITIONS,
        "floors": _MAP,
        "meta": _META,
    },
    Step: {
        "kind": (_same, _load_kind),
        "now_us": _INT,
        "watermark_us": _OPT_INT,
        "first_offsets": _OFFSETS,
        "next_offsets": _OFFSETS,
        "rows": _INT,
    },
    ShardResult: {
        "shard": _INT,
        "segment": _NAME,
        "digest": _OPT_STR,
        "panes": _NAME,
        "panes_rows": _INT,
        "snapshot": _NAME,
        "counters": (dict, _load_counters),
        "kept": (_dump_kept, _load_kept),
        "digests": (dict, _load_map_of(_load_str)),
        "ranges": (_dump_kept, _load_kept),
    },
    Commit: {
        "seq": _INT,
        "epoch": _INT,
        "commit": _INT,
        "query_id": _OPT_STR,
        "batch_id": _OPT_INT,
        "steps": (_dump_steps, _load_nested(Step)),
        "next_offsets": _OFFSETS,
        "marks": (_dump_marks, _load_marks),
        "watermark_us": _OPT_INT,
        "floors": _MAP,
        "shards": (_dump_nested, _load_nested(ShardResult)),
        "published": _INT,
        "counters": _INT_MAP,
        "meta": _META,
    },
}
#: Fields that are left out where they are empty.
_OPTIONAL: dict[type, frozenset[str]] = {ShardResult: frozenset({"kept", "digests", "ranges"})}
_RECORDS: dict[str, type] = {"epoch": Epoch, "intent": Intent, "commit": Commit}


def _dump_fields(value: Any) -> dict[str, Any]:
    optional = _OPTIONAL.get(type(value), frozenset())
    return {
        name: dump(getattr(value, name))
        for name, (dump, _) in _FIELDS[type(value)].items()
        if name not in optional or getattr(value, name)
    }


def _load_fields(cls: type, body: dict[str, Any]) -> Any:
    codecs = _FIELDS[cls]
    body = {**{name: {} for name in _OPTIONAL.get(cls, ())}, **body}
    if body.keys() != codecs.keys():
        missing, unknown = sorted(codecs.keys() - body.keys()), sorted(body.keys() - codecs.keys(), key=str)
        raise ValueError(f"{cls.__name__} lacks {missing} and has unknown {unknown}")
    values = {}
    for name, (_, load) in codecs.items():
        try:
            values[name] = load(body[name])
        except ValueError as error:
            raise ValueError(f"{cls.__name__}.{name}: {error}") from error
    return cls(**values)


def numbered(record: R, seq: int) -> R:
    """Return the same record with its number."""
    return dataclasses.replace(record, seq=seq)
