"""Message store: every message of the retained windows, once, under a key that suits its reads.

Seed 003's matrix chooses the layout (`choose_layout`):

    OFFSET              <position>                                tuple windows
    FIELDS_OFFSET       <equal fields> 00 <position>              tuple joins on equal fields, large windows
    TIME_OFFSET         <time i64><position>                      time windows; joins without equal fields
    FIELDS_TIME_OFFSET  <equal fields> 00 <time i64><position>    time joins on equal fields
    TIME_FIELDS_OFFSET  <time i64><equal fields> 00 <position>    the same, with a time range and small windows

Fields are `encode_key` of the equal fields (a session key first, where there is one); `00` closes them, so
that a key can be parsed without knowing the definition. The position makes a replayed message the same
row.

Expiry of a layout that begins with time is one range. Where fields come first, a second cf lists which fields
have rows in which bucket of time, `<bucket i64><fields>` -> b"" (tuple windows: `<source><partition><bucket
i64><fields>`), so that a key that never returns is deleted too, by one range for each key and not by one delete
for each row. It deletes whole buckets only; readers clip to the retention floor themselves. The width of a
bucket is part of the layout.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import bytes_to_i64_array, decode_i64, encode_i64, prefix_end
from windrow.core.keys import FIELDS_END, decode_fields
from windrow.core.message_keys import (
    Position,
    decode_position,
    decode_positions,
    message_keys,
    position_prefix,
)
from windrow.stores.kv import KV, Batch, Pair, scan_ranges


class Layout(enum.Enum):
    """Layout of a message key: its parts, in order."""

    OFFSET = "offset"
    FIELDS_OFFSET = "fields_offset"
    TIME_OFFSET = "time_offset"
    FIELDS_TIME_OFFSET = "fields_time_offset"
    TIME_FIELDS_OFFSET = "time_fields_offset"

    @property
    def has_time(self) -> bool:
        return "time" in self.value

    @property
    def has_fields(self) -> bool:
        return "fields" in self.value

    @property
    def fields_first(self) -> bool:
        return self.value.startswith("fields")


def times_of(layout: Layout, keys: Sequence[bytes]) -> IntArray:
    """Event time of each key, in microseconds."""
    if not layout.has_time:
        raise ValueError(f"the layout {layout.name} has no time")
    starts = _after_fields(layout, keys) if layout.fields_first else [0] * len(keys)
    packed = b"".join([key[at : at + 8] for key, at in zip(keys, starts, strict=True)])
    return bytes_to_i64_array(np.frombuffer(packed, dtype=np.uint8).reshape(-1, 8))


def positions_of(layout: Layout, keys: Sequence[bytes]) -> tuple[pa.Array, IntArray, IntArray, IntArray]:
    """Return (sources, partitions, offsets, ordinals) of keys."""
    timed = layout.has_time and layout is not Layout.TIME_FIELDS_OFFSET
    return decode_positions(keys, [at + 8 if timed else at for at in _after_fields(layout, keys)])


def _after_fields(layout: Layout, keys: Sequence[bytes]) -> list[int]:
    """Return the offsets in keys after the fields, which are parsed once where keys of the same fields are adjacent."""
    begin = 8 if layout is Layout.TIME_FIELDS_OFFSET else 0
    if not layout.has_fields:
        return [begin] * len(keys)
    fields, end, offsets = None, 0, list[int]()
    for key in keys:
        if fields is None or not key.startswith(fields, begin):
            end = decode_fields(key, begin)[1] + 1
            fields = key[begin:end]
        offsets.append(end)
    return offsets


HOUR_US: Final = 3_600_000_000
_I64_MIN: Final = -(1 << 63)

#: Keys of more lengths than this are not looked for: that would cost more than to read what is of none of them.
_LENGTHS: Final = 8
#: Times of more buckets than this are not looked up in the index: that would cost as much as to look for messages.
_BUCKETS: Final = 4

KeysAndValues: TypeAlias = tuple[list[bytes], list[bytes]]
Bound: TypeAlias = tuple[int, int | Sequence[Any] | None]
"""(time, offset): the offset as a number, as the leading parts of a position, or None for all of that
time."""


def choose_layout(
    *, tuples: bool, equal: bool = False, time_range: bool = False, large: bool = True
) -> Layout:
    """Choose by seed 003's matrix. `equal`: a join on equal fields; `time_range`: it also has a time condition;
    `large`: its window.

    Aggregates and joins without equal fields take the defaults.
    """
    if tuples:
        return Layout.FIELDS_OFFSET if equal and large else Layout.OFFSET
    if not equal:
        return Layout.TIME_OFFSET
    return Layout.TIME_FIELDS_OFFSET if time_range and not large else Layout.FIELDS_TIME_OFFSET


class PositionColumns(NamedTuple):
    """Positions of rows, column by column; a scalar is a column of one value."""

    sources: Sequence[str] | pa.Array | pa.ChunkedArray
    partitions: npt.ArrayLike
    offsets: npt.ArrayLike
    ordinals: npt.ArrayLike


class Parts(NamedTuple):
    """Parts of a message key; those that the layout does not have are None."""

    fields: bytes | None
    time_us: int | None
    position: Position


class MessageStore:
    """Reads and writes messages of one layout in a cf of any store. It holds no state of its own."""

    def __init__(
        self, layout: Layout, cf: str = "messages", index_cf: str = "message_index", bucket: int = HOUR_US
    ) -> None:
        """`bucket`: microseconds (tuple windows: offsets) that are freed together where fields come first."""
        if bucket <= 0:
            raise ValueError(f"a bucket of {bucket} has no width: use a positive one")
        self.layout = layout
        # Used for each key that is parsed.
        self._has_fields, self._has_time = layout.has_fields, layout.has_time
        self._time_first = layout is Layout.TIME_FIELDS_OFFSET
        self.cf = cf
        self.index_cf = index_cf
        self.bucket = bucket

    @property
    def cfs(self) -> tuple[str, ...]:
        """Column families that the layout needs."""
        return (self.cf, self.index_cf) if self.layout.fields_first else (self.cf,)

    # -- keys ------------------------------------------------------------------------------------------------

    def row_keys(
        self,
        times: IntArray | None,
        positions: PositionColumns | tuple[Any, Any, Any, Any],
        keys: Sequence[bytes] | None = None,
    ) -> list[bytes]:
        """Return the store's key of each row; `keys` are the encoded equal fields of each row."""
        if self.layout.has_fields != (keys is not None):
            raise ValueError(
                f"the layout {self.layout.name} {'needs' if keys is None else 'has no'} equal fields"
            )
        if not self.layout.has_time:
            times = None
        if keys is None:
            return message_keys(times, *positions)
        if self.layout.fields_first:
            sources, partitions, offsets, ordinals = positions
            heads = [key + FIELDS_END for key in keys]
            return message_keys(times, sources, partitions, offsets, ordinals, heads)
        rows = zip(encode_times(times), keys, message_keys(None, *positions), strict=True)
        return [b"%b%b\x00%b" % row for row in rows]

    def split(self, key: bytes) -> Parts:
        """Split a stored key into its parts."""
        at, fields, time_us = 0, None, None
        if self._time_first:
            at, time_us = 8, decode_i64(key)
        if self._has_fields:
            _, end = decode_fields(key, at)
            fields, at = key[at:end], end + 1
        if self._has_time and time_us is None:
            time_us, at = decode_i64(key, at), at + 8
        return Parts(fields, time_us, decode_position(key, at)[0])

    def times(self, keys: Sequence[bytes]) -> IntArray:
        """Event time of each stored key, in microseconds."""
        return times_of(self.layout, keys)

    def positions(self, keys: Sequence[bytes]) -> tuple[pa.Array, IntArray, IntArray, IntArray]:
        """Return (sources, partitions, offsets, ordinals) of stored keys."""
        return positions_of(self.layout, keys)

    # -- writing ---------------------------------------------------------------------------------------------

    def put_rows(
        self,
        batch: Batch,
        times: IntArray | None,
        positions: PositionColumns | tuple[Any, Any, Any, Any],
        keys: Sequence[bytes] | None,
        values: Sequence[bytes],
    ) -> list[bytes]:
        """Files rows, and where fields come first their index; returns the rows' keys."""
        rows = self.row_keys(times, positions, keys)
        batch.put_many(self.cf, rows, values)
        if self.layout.fields_first and keys:
            index = self._index_keys(times, positions, keys)
            batch.put_many(self.index_cf, index, [b""] * len(index))
        return rows

    def _index_keys(
        self,
        times: IntArray | None,
        positions: PositionColumns | tuple[Any, ...],
        keys: Sequence[bytes],
    ) -> list[bytes]:
        """Distinct index keys of rows, in the order in which they first occur."""
        if self.layout.has_time:
            buckets = np.asarray(times, dtype=np.int64) // self.bucket
            heads = encode_times(buckets)
        else:
            sources, partitions, offsets, _ = positions
            buckets = np.asarray(offsets, dtype=np.int64) // self.bucket
            # <source><partition><bucket><ordinal 0>, less the ordinal
            heads = [head[:-4] for head in message_keys(None, sources, partitions, buckets, 0)]
        return [head + key for head, key in dict.fromkeys(zip(heads, keys, strict=True))]

    # -- reading ---------------------------------------------------------------------------------------------

    def scan(
        self,
        kv: KV,
        start_time: int,
        end_time: int,
        key: bytes | None = None,
        *,
        key_prefix: bytes | None = None,
        keys: Collection[bytes] = (),
    ) -> KeysAndValues:
        """Return (keys, values) with start_time <= time < end_time, in key order; of one `key`, of the keys whose
        first fields are `key_prefix`, or of all. Where time comes before fields, `keys` leaves out rows of none of
        them, if that costs less than to read it.
        """
        if not self.layout.has_time:
            raise ValueError(f"the layout {self.layout.name} has no time: use scan_between with positions")
        if end_time <= start_time:
            return [], []
        return self.scan_between(
            kv, (start_time, None), (end_time - 1, None), key, key_prefix=key_prefix, keys=keys
        )

    def spans(self, keys: Sequence[bytes], starts: Sequence[int], ends: Sequence[int]) -> list[Pair]:
        """Return the key range of each key's messages with start <= time < end. Fields come first."""
        if not self.layout.fields_first:
            raise ValueError(f"the layout {self.layout.name} does not begin with the fields")
        spans = zip((key + FIELDS_END for key in keys), starts, ends, strict=True)
        return [(head + encode_i64(start), head + encode_i64(end)) for head, start, end in spans]

    def scan_spans(
        self, kv: KV, keys: Sequence[bytes], starts: Sequence[int], ends: Sequence[int]
    ) -> tuple[list[bytes], list[bytes], list[int]]:
        """Return (keys, values, how many of each span): of each key what has start <= time < end. Fields come first."""
        pairs, counts = list[Pair](), []
        for low, high in self.spans(keys, starts, ends):
            before = len(pairs)
            pairs.extend(kv.scan(self.cf, low, high))
            counts.append(len(pairs) - before)
        return [key for key, _ in pairs], [value for _, value in pairs], counts

    def scan_between(
        self,
        kv: KV,
        start: Bound,
        end: Bound,
        key: bytes | None = None,
        *,
        key_prefix: bytes | None = None,
        keys: Collection[bytes] = (),
    ) -> KeysAndValues:
        """Return (keys, values) from `start` to `end`, both inclusive, in key order: seed 003's get_messages."""
        pairs = list(self.pairs_between(kv, start, end, key, key_prefix=key_prefix, keys=keys))
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def pairs_between(
        self,
        kv: KV,
        start: Bound,
        end: Bound,
        key: bytes | None = None,
        *,
        key_prefix: bytes | None = None,
        keys: Collection[bytes] = (),
    ) -> Iterable[Pair]:
        """Yield as `scan_between`, one by one.

        A bound's offset counts among messages of the bound's own time. Layouts without time ignore the times.
        """
        if key is not None and key_prefix is not None:
            raise ValueError("give a whole key or its first fields, not both")
        if (key is not None or key_prefix is not None) and not self.layout.has_fields:
            raise ValueError(f"the layout {self.layout.name} has no equal fields to look for")
        pairs: Iterable[Pair]
        if key is None and self.layout.fields_first:
            low = key_prefix or b""
            pairs = kv.scan(self.cf, low, prefix_end(low))
            exact = False
        else:
            low, high = self._bounds(start, end, key)
            pairs = kv.scan(self.cf, low, high)
            by_time = self.layout is Layout.TIME_FIELDS_OFFSET
            # Positions come after fields: without them in the bounds the range is what is asked for.
            exact = not by_time or (start[1] is None and end[1] is None)
            wanted = key_prefix if key is None else key + FIELDS_END
            if by_time and wanted:
                pairs = [pair for pair in pairs if pair[0].startswith(wanted, 8)]
            elif by_time and keys:
                pairs = _of_keys(pairs, keys)
        if not exact or isinstance(start[1], int) or isinstance(end[1], int):
            pairs = self._within(pairs, start, end)
        return pairs

    def scan_keys(self, kv: KV, ranges: Mapping[bytes, tuple[int, int]]) -> KeysAndValues:
        """Return (keys, values) of each key from its first to its last time, inclusive, in key order. Fields come first."""
        if self.layout is not Layout.FIELDS_TIME_OFFSET:
            raise ValueError(f"the layout {self.layout.name} does not lead with fields and time: use scan")
        spans = [(key + FIELDS_END, low, high + 1) for key, (low, high) in ranges.items() if low <= high]
        if not spans:
            return [], []
        heads, low, high = zip(*spans, strict=True)
        edges = zip(heads, encode_times(np.array(low)), encode_times(np.array(high)), strict=True)
        pairs = scan_ranges(kv, self.cf, sorted((head + a, head + b) for head, a, b in edges))
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _bounds(self, start: Bound, end: Bound, key: bytes | None) -> tuple[bytes, bytes | None]:
        """Return a key range that holds all rows between the bounds; a little more for number offsets and
        TIME_FIELDS_OFFSET."""
        head = key + FIELDS_END if key is not None and self.layout.fields_first else b""
        with_positions = self.layout is not Layout.TIME_FIELDS_OFFSET

        def edge(bound: Bound) -> bytes:
            time, position = bound
            parts = () if position is None or isinstance(position, int) or not with_positions else position
            return head + (encode_i64(time) if self.layout.has_time else b"") + position_prefix(parts)

        return edge(start), prefix_end(edge(end))

    def _within(self, pairs: Iterable[Pair], start: Bound, end: Bound) -> Iterator[Pair]:
        """Yield the pairs between the bounds. Each key is parsed."""
        timed = self.layout.has_time
        for pair in pairs:
            parts = self.split(pair[0])
            if parts.time_us is not None and not start[0] <= parts.time_us <= end[0]:
                continue
            if (not timed or parts.time_us == start[0]) and compare(parts.position, start[1]) < 0:
                continue
            if (not timed or parts.time_us == end[0]) and compare(parts.position, end[1]) > 0:
                continue
            yield pair

    def holding(self, kv: KV, ranges: Mapping[bytes, tuple[int, int]]) -> list[bytes]:
        """Return the keys that may have messages of their times, first and last. By the index the others have none, which costs
        less than a read. Fields come first.
        """
        keys = list(ranges)
        low, high = (np.array(edges) // self.bucket for edges in zip(*ranges.values(), strict=True))
        widest = int((high - low).max())
        if widest >= _BUCKETS:
            return keys
        holds = np.zeros(len(keys), dtype=bool)
        for further in range(widest + 1):
            asked = np.flatnonzero(~holds & (low + further <= high))
            heads = encode_times(low[asked] + further)
            index = [head + keys[i] for head, i in zip(heads, asked.tolist(), strict=True)]
            holds[asked] = [value is not None for value in kv.multi_get(self.index_cf, index)]
        return [keys[i] for i in np.flatnonzero(holds).tolist()]

    # -- expiry ----------------------------------------------------------------------------------------------

    def expire(self, kv: KV, batch: Batch, floor_time: int) -> int:
        """Plan the deletion of messages older than `floor_time`; returns the number of ranges that it takes.

        Where fields come first only whole buckets are deleted, up to the one that holds the floor.
        """
        if not self.layout.has_time:
            raise ValueError(f"the layout {self.layout.name} has no time: use expire_offsets")
        if self.layout.fields_first:
            return self._expire_buckets(kv, batch, b"", b"", floor_time)
        return self._expire_range(kv, batch, b"", encode_i64(floor_time))

    def expire_offsets(self, kv: KV, batch: Batch, source: str, partition: int, floor_offset: int) -> int:
        """Tuple windows: plans the deletion of messages of a partition below `floor_offset`."""
        if self.layout.has_time:
            raise ValueError(f"the layout {self.layout.name} is by time: use expire")
        group = position_prefix((source, partition))
        if self.layout.fields_first:
            return self._expire_buckets(kv, batch, group, group, floor_offset)
        return self._expire_range(kv, batch, group, group + encode_i64(floor_offset))

    def expire_key(self, batch: Batch, key: bytes, floor: int | tuple[str, int, int]) -> None:
        """Plan the deletion of one key's messages below a time, or below (source, partition, offset),
        exactly."""
        if not self.layout.fields_first:
            raise ValueError(f"the layout {self.layout.name} does not lead with fields: use expire")
        head = key + FIELDS_END
        if isinstance(floor, int):
            batch.delete_range(self.cf, head, head + encode_i64(floor))
        else:
            batch.delete_range(self.cf, head + position_prefix(floor[:2]), head + position_prefix(floor))

    def _expire_range(self, kv: KV, batch: Batch, start: bytes, end: bytes) -> int:
        if next(kv.scan(self.cf, start, end), None) is None:
            return 0
        batch.delete_range(self.cf, start, end)
        return 1

    def _expire_buckets(self, kv: KV, batch: Batch, group: bytes, head: bytes, floor: int) -> int:
        """Delete every bucket of `group` that lies wholly below the floor; `head` is the key's part between fields and
        number."""
        last = floor // self.bucket
        end = group + encode_i64(last)
        at = len(group)
        entries = [entry for entry, _ in kv.scan(self.index_cf, group, end)]
        # The first bucket of each key: it comes last here, and overwrites those after it.
        first_of = {entry[at + 8 :]: entry for entry in reversed(entries)}
        if first_of and not group and next(kv.scan(self.index_cf, end), None) is None:  # nothing stays
            heads = [fields + FIELDS_END for fields in first_of]
            after = prefix_end(max(heads))
            assert after is not None  # they do not end with ff
            batch.delete_range(self.cf, min(heads), after)
            batch.delete_range(self.index_cf, group, end)
            return 1
        for fields, entry in first_of.items():
            low = fields + FIELDS_END + head
            start = encode_i64(max(decode_i64(entry, at) * self.bucket, _I64_MIN))
            batch.delete_range(self.cf, low + start, low + encode_i64(last * self.bucket))
        if first_of:
            batch.delete_range(self.index_cf, group, end)
        return len(first_of)


def encode_times(values: IntArray | None) -> list[bytes]:
    """Return `encode_i64` of each value."""
    packed = (np.asarray(values, dtype=np.int64).view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8").tobytes()
    return [packed[i : i + 8] for i in range(0, len(packed), 8)]


def _of_keys(pairs: Iterable[Pair], keys: Collection[bytes]) -> Iterable[Pair]:
    """Return the pairs, time before fields, that are of one of the keys; all, where keys are of many lengths."""
    wanted = {key + FIELDS_END for key in keys}
    ends = {8 + len(key) for key in wanted}
    if len(ends) > _LENGTHS:
        return pairs
    if len(ends) == 1:
        [end] = ends
        return [pair for pair in pairs if pair[0][8:end] in wanted]
    return [pair for pair in pairs if any(pair[0][8:end] in wanted for end in ends)]


def compare(position: Position, bound: int | Sequence[Any] | None) -> int:
    """Compare with a bound: -1 below, 0 at, 1 above. A shorter bound equals all positions that begin with it."""
    if bound is None:
        return 0
    if isinstance(bound, int):
        compared: Any = position[2]
        other: Any = bound
    else:
        compared, other = tuple(position[: len(bound)]), tuple(bound)
    return int(compared > other) - int(compared < other)
