"""Retention of a join by the number of messages, of a key or of a whole input. Seed 003 "Window Retention Size".

Each `advance` first evicts the oldest messages of the previous steps, by event time and position. An eviction leaves a floor:
a message at or below it is out of retention. Static inputs are not limited.

    <side>.order   <time><position> -> message key         of a whole input: the messages that are kept
    aux  c<side>                -> u64                     how many these are
    aux  t<side><key>           -> u64                     how many messages a key has got since the last `advance`
    aux  m<side><key>           -> u64                     how many it had before, unless some have expired by time since
    aux  f<side><key>           -> <time><position>        the floor of a key; of a whole input under no key
    aux  g                      -> timers                  floors at their times, by key; kind: the side

A side is one byte. The messages of a key are adjacent (`MessageStore`, fields first). They are counted again only if some of
them have expired by time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from windrow.core.arrays import BoolArray
from windrow.core.byte_order import decode_i64, decode_u64, encode_i64, encode_u64, prefix_end
from windrow.core.keys import FIELDS_END
from windrow.core.message_keys import position_prefix
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.reach import LEFT, RIGHT, Reach
from windrow.stores.incremental_work import in_batches
from windrow.stores.kv import KV, Batch, Pair, scan_ranges
from windrow.stores.message_store import MessageStore
from windrow.stores.timers import TimerIndex

_COUNT, _TOUCHED, _HAD, _FLOOR, _BY_TIME = b"c", b"t", b"m", b"f", b"g"
_SIDES = (b"\x00", b"\x01")
#: All messages of a key with no more than this are read to find the oldest; about so many are read of several keys.
_FEW, _READ = 64, 1 << 16


class Sizes:
    """Count-based retention of the messages of each side of a join."""

    def __init__(self, definition: JoinDefinition, reach: Reach, aux_cf: str) -> None:
        self.most, self.by_key = definition.retention.messages or 0, definition.sizes == "key"
        inputs = (definition.left, definition.right)
        limited = definition.sizes is not None
        self.sides = tuple(side for side in (LEFT, RIGHT) if limited and not inputs[side].static)
        self.aux_cf, self._reach = aux_cf, reach
        self._floors = TimerIndex(aux_cf, _BY_TIME)
        self._order = tuple(f"{definition.name}.{side}.order" for side in ("left", "right"))

    @property
    def cfs(self) -> tuple[str, ...]:
        return () if self.by_key else tuple(self._order[side] for side in self.sides)

    # -- intake -----------------------------------------------------------------------------------------------------

    def above(self, kv: KV, side: int, places: Sequence[bytes], keys: Sequence[bytes] | None) -> BoolArray:
        """True for messages above the floor. places: their event times and positions; keys: encoded."""
        groups = self._groups(len(places), keys)
        distinct = list(dict.fromkeys(groups))
        values = kv.multi_get(self.aux_cf, [_FLOOR + _SIDES[side] + key for key in distinct])
        floors = {key: value for key, value in zip(distinct, values, strict=True) if value is not None}
        if not floors:
            return np.ones(len(places), dtype=bool)
        return np.array(
            [place > floors.get(key, b"") for place, key in zip(places, groups, strict=True)], dtype=bool
        )

    def note(
        self,
        kv: KV,
        batch: Batch,
        side: int,
        places: Sequence[bytes],
        keys: Sequence[bytes] | None,
        stored: Sequence[bytes],
        floor_us: int,
    ) -> None:
        """Note filed messages. stored: their keys in the store; floor_us: older ones expire by time in the next `advance`."""
        low = encode_i64(floor_us)
        if self.by_key:
            groups = zip(places, self._groups(len(places), keys), strict=True)
            came = Counter(key for place, key in groups if place >= low)
            names = [_TOUCHED + _SIDES[side] + key for key in came]
            known = [0 if v is None else decode_u64(v) for v in kv.multi_get(self.aux_cf, names)]
            sums = [encode_u64(n + more) for n, more in zip(known, came.values(), strict=True)]
            batch.put_many(self.aux_cf, names, sums)
            return
        lasting = [pair for pair in zip(places, stored, strict=True) if pair[0] >= low]
        if lasting:
            batch.put_many(self._order[side], *map(list, zip(*lasting, strict=True)))
            self._count(kv, batch, side, len(lasting))

    def _groups(self, n: int, keys: Sequence[bytes] | None) -> Sequence[bytes]:
        return keys if self.by_key and keys is not None else [b""] * n

    # -- eviction ---------------------------------------------------------------------------------------------------

    def excess(
        self, kv: KV, side: int, store: MessageStore, floor_us: int, batch: Batch
    ) -> tuple[list[bytes], list[bytes]]:
        """Return (places, stored keys) of messages beyond the limit, by place; raise the floors to them. floor_us: by time."""
        excess = list[tuple[bytes, bytes]]()
        if self.by_key:
            low, high = _range(_TOUCHED, side)
            # Few enough keys at once that the reads for them stay small.
            for touched in in_batches(kv.scan(self.aux_cf, low, high), max(_READ // (self.most + 1), 1)):
                excess += self._oldest(kv, side, store, touched, floor_us, batch)
            batch.delete_range(self.aux_cf, low, high)
        else:
            many = self._counted(kv, side) - self.most
            for pair in kv.scan(self._order[side], encode_i64(floor_us)) if many > 0 else ():
                if len(excess) == many:
                    break
                excess.append(pair)
            if excess:
                self._raise(batch, side, b"", excess[-1][0])
                batch.delete_range(self._order[side], b"", excess[-1][0] + b"\x00")
                self._count(kv, batch, side, -len(excess))
        batch.delete_many(store.cf, [key for _, key in excess])
        excess.sort()
        return [place for place, _ in excess], [key for _, key in excess]

    def _oldest(
        self,
        kv: KV,
        side: int,
        store: MessageStore,
        touched: Sequence[Pair],
        floor_us: int,
        batch: Batch,
    ) -> list[tuple[bytes, bytes]]:
        """Return (place, key in the store) of the messages of keys beyond the limit. touched: keys with new messages."""
        excess, keys = list[tuple[bytes, bytes]](), [name[2:] for name, _ in touched]
        names = [_HAD + _SIDES[side] + key for key in keys]
        # A key none of whose messages expired since the last count keeps that count.
        some_gone = self._some_gone(kv, store, keys, floor_us)
        had = kv.multi_get(self.aux_cf, names)
        sure = [
            -1 if n is None or not came or gone else decode_u64(n) + decode_u64(came)
            for n, (_, came), gone in zip(had, touched, some_gone, strict=True)
        ]
        looked = [key for key, n in zip(keys, sure, strict=True) if n < 0 or self.most < n <= _FEW]
        lying = dict(zip(looked, self._lying(kv, store, looked, floor_us), strict=True))
        for key, name, n in zip(keys, names, sure, strict=True):
            live = lying.get(key)
            count = n if live is None or n >= 0 else len(live)
            batch.put(self.aux_cf, name, encode_u64(min(count, self.most)))
            if count > self.most:
                head = key + FIELDS_END
                pairs = (
                    kv.scan(store.cf, head + encode_i64(floor_us), prefix_end(head)) if live is None else live
                )
                gone = [stored for stored, _ in itertools.islice(pairs, count - self.most)]
                excess += [(stored[len(head) :], stored) for stored in gone]
                self._raise(batch, side, key, excess[-1][0])
        return excess

    def _some_gone(self, kv: KV, store: MessageStore, keys: Sequence[bytes], floor_us: int) -> list[bool]:
        """Return, per key, False if none of its stored messages has expired by time."""
        head = encode_i64(floor_us // store.bucket)
        if next(iter(kv.scan(store.index_cf, b"", head)), None) is not None:
            return [True] * len(keys)
        return [value is not None for value in kv.multi_get(store.index_cf, [head + key for key in keys])]

    def _lying(self, kv: KV, store: MessageStore, keys: Sequence[bytes], floor_us: int) -> list[list[Pair]]:
        """Return the stored messages of each key from a time on, with one lookup for all keys."""
        live = encode_i64(floor_us)
        spans = sorted((key + FIELDS_END, i) for i, key in enumerate(keys))
        ranges = [(head + live, prefix_end(head) or b"") for head, _ in spans]
        pairs, at, by_key = scan_ranges(kv, store.cf, ranges), 0, [list[Pair]() for _ in keys]
        for (_, end), (_, i) in zip(ranges, spans, strict=True):
            first = at
            while at < len(pairs) and pairs[at][0] < end:
                at += 1
            by_key[i] = pairs[first:at]
        return by_key

    def recount(self, kv: KV, side: int, store: MessageStore, floor_us: int | None = None) -> None:
        """Recount the keys whose messages are deleted otherwise: in whole buckets before `floor_us`, or any."""
        batch = Batch()
        if self.by_key and floor_us is not None:
            end = encode_i64(floor_us // store.bucket)
            keys = {name[8:] for name, _ in kv.scan(store.index_cf, b"", end)}
            batch.delete_many(self.aux_cf, [_HAD + _SIDES[side] + key for key in keys])
        elif self.by_key:
            batch.delete_range(self.aux_cf, *_range(_HAD, side))
        kv.write(batch)

    def _raise(self, batch: Batch, side: int, key: bytes, place: bytes) -> None:
        batch.put(self.aux_cf, _FLOOR + _SIDES[side] + key, place)
        self._floors.set(batch, decode_i64(place), key, side)

    def forget(self, kv: KV, side: int, floor_us: int, done_us: int) -> None:
        """Expire messages below `floor_us`, and floors that reject only messages that are too late as of `done_us`."""
        batch, end = Batch(), encode_i64(floor_us)
        gone = 0 if self.by_key else sum(1 for _ in kv.scan(self._order[side], b"", end))
        if gone:
            batch.delete_range(self._order[side], b"", end)
            self._count(kv, batch, side, -gone)
        due = self._floors.due(kv, floor_us - 1).of(side)
        names = [_FLOOR + _SIDES[side] + key for key in due.keys]
        over = (self._reach.open_until(side, due.times) <= done_us).tolist()
        for name, floor, is_over, timer in zip(
            names, kv.multi_get(self.aux_cf, names), over, due, strict=True
        ):
            at_us, key, _, _ = timer
            is_one = floor is not None and decode_i64(floor) == at_us
            if is_over or not is_one:
                self._floors.cancel(batch, at_us, key, side)
            if is_over and is_one:
                batch.delete(self.aux_cf, name)
        kv.write(batch)

    def settle(self, kv: KV, side: int, store: MessageStore) -> None:
        """Evict replayed messages again that had been evicted before."""
        batch, gone = Batch(), []
        for name, _ in kv.scan(store.cf):
            parts = store.split(name)
            key = parts.fields or b"" if self.by_key else b""
            floor = kv.get(self.aux_cf, _FLOOR + _SIDES[side] + key)
            if (
                floor is not None
                and encode_i64(parts.time_us or 0) + position_prefix(parts.position) <= floor
            ):
                gone.append(name)
        batch.delete_many(store.cf, gone)
        kv.write(batch)

    # -- how many there are -----------------------------------------------------------------------------------------

    def _counted(self, kv: KV, side: int) -> int:
        value = kv.get(self.aux_cf, _COUNT + _SIDES[side])
        return 0 if value is None else decode_u64(value)

    def _count(self, kv: KV, batch: Batch, side: int, more: int) -> None:
        n = self._counted(kv, side) + more
        name = _COUNT + _SIDES[side]
        if n:
            batch.put(self.aux_cf, name, encode_u64(n))
        else:
            batch.delete(self.aux_cf, name)


def _range(what: bytes, side: int) -> tuple[bytes, bytes]:
    """Return all records of that kind of a side."""
    return what + _SIDES[side], what + bytes((_SIDES[side][0] + 1,))
