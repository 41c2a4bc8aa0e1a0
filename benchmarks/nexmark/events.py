"""The events of an online auction: persons, auctions and bids, as the generator of Nexmark makes them.

Ids, prices and the shares of hot auctions, sellers and bidders follow the generator of github.com/nexmark/nexmark with its
settings, and so do the times: in order, in milliseconds. Of the columns only those are made that a query here reads; in
Parquet the others would cost nobody anything.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..data import FIRST_US, files

#: Events of 50 in a row, in this order.
PERSONS, AUCTIONS, BIDS = 1, 3, 46
PERSON, AUCTION, BID = 0, 1, 2
#: One of so many is not hot.
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS = 2, 4, 4
#: A hot one is the first (of bidders the second) of so many.
HOT_OF = 100
IN_FLIGHT, ACTIVE, AHEAD = 100, 1_000, 10
FIRST_ID = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
ITEM_BYTES, EXTRA_BYTES = (3, 20), (54, 82)
FILES = 25
SCHEMA = pa.schema(
    [
        ("kind", pa.int32()),
        ("t", pa.timestamp("ms", "UTC")),
        ("id", pa.int64()),
        ("name", pa.string()),
        ("seller", pa.int64()),
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("extra", pa.string()),
        ("item", pa.string()),
        ("category", pa.int64()),
        ("initial_bid", pa.int64()),
        ("reserve", pa.int64()),
        ("expires", pa.timestamp("ms", "UTC")),
    ]
)
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")


def stream(n: int, per_second: int) -> str:
    """A directory of 25 Parquet files with `n` events in all, `per_second` of them in a second of event time."""
    return files(
        f"nexmark-auctions-{n}-{per_second}", lambda first, m: events(first, m, per_second), n, n // FILES
    )


def events(first: int, n: int, per_second: int) -> pa.Table:
    """Events `first` to `first + n` of the stream."""
    rng = np.random.default_rng(first)
    number = np.arange(first, first + n)
    epoch, place = np.divmod(number, PERSONS + AUCTIONS + BIDS)
    kind = np.select([place < PERSONS, place < PERSONS + AUCTIONS], [PERSON, AUCTION], BID)
    millis = _millis(number, per_second)
    person = epoch  # the last one made, from 0, as is each of these
    auction = np.where(
        place < PERSONS, epoch * AUCTIONS - 1, epoch * AUCTIONS + np.minimum(place - PERSONS, AUCTIONS - 1)
    )
    oldest = np.maximum(auction - IN_FLIGHT, 0)
    some_auction = oldest + rng.integers(0, auction - oldest + 1 + AHEAD)
    active = np.minimum(person + 1, ACTIVE)
    some_person, other_person = (person + 1 - active + rng.integers(0, active + AHEAD) for _ in range(2))
    bid_on = np.where(rng.integers(0, HOT_AUCTIONS, n) > 0, auction // HOT_OF * HOT_OF, some_auction)
    seller = np.where(rng.integers(0, HOT_SELLERS, n) > 0, person // HOT_OF * HOT_OF, some_person)
    bidder = np.where(rng.integers(0, HOT_BIDDERS, n) > 0, person // HOT_OF * HOT_OF + 1, other_person)
    price = _prices(rng, n)
    columns = [
        pa.array(kind, pa.int32()),
        pa.array(millis).cast(SCHEMA.field("t").type),
        pa.array(np.where(kind == PERSON, person, auction) + FIRST_ID, mask=kind == BID),
        _names(rng, kind != PERSON),
        pa.array(seller + FIRST_ID, mask=kind != AUCTION),
        *(pa.array(x, mask=kind != BID) for x in (bid_on + FIRST_ID, bidder + FIRST_ID, price)),
        _random_text(rng, np.full(n, True), EXTRA_BYTES),
        *_lots(rng, number, per_second, kind != AUCTION),
    ]
    return pa.table(columns, schema=SCHEMA)


def _millis(number: np.ndarray, per_second: int) -> np.ndarray:
    return FIRST_US // 1_000 + number * 1_000 // per_second


def _prices(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.round(10.0 ** (rng.random(n) * 6) * 100).astype(np.int64)


def _lots(rng: np.random.Generator, number: np.ndarray, per_second: int, none: np.ndarray) -> list[pa.Array]:
    """Draw the columns of auctions, which last, on average, as long as it takes to open as many as are in flight."""
    n, begin = len(number), _millis(number, per_second)
    horizon = _millis(number + IN_FLIGHT * (PERSONS + AUCTIONS + BIDS) // AUCTIONS, per_second) - begin
    expires = begin + 1 + rng.integers(0, np.maximum(2 * horizon, 1))
    first = _prices(rng, n)
    numbers = (rng.integers(FIRST_CATEGORY, FIRST_CATEGORY + CATEGORIES, n), first, first + _prices(rng, n))
    return [
        _random_text(rng, ~none, ITEM_BYTES),
        *(pa.array(x, mask=none) for x in numbers),
        pa.array(expires, mask=none).cast(SCHEMA.field("expires").type),
    ]


def _names(rng: np.random.Generator, none: np.ndarray) -> pa.Array:
    names = pa.array([f"{a} {b}" for a in _FIRST for b in _LAST])
    return names.take(pa.array(rng.integers(0, len(names), len(none)), mask=none))


def _random_text(rng: np.random.Generator, chosen: np.ndarray, lengths: tuple[int, int]) -> pa.Array:
    """Texts of random letters, which no compression makes smaller by much, where there are some."""
    ends = np.concatenate([[0], np.cumsum(chosen * rng.integers(*lengths, len(chosen)))]).astype(np.int32)
    letters = rng.integers(ord("a"), ord("z") + 1, ends[-1], dtype=np.uint8)
    texts = pa.StringArray.from_buffers(len(chosen), pa.py_buffer(ends), pa.py_buffer(letters))
    return pc.if_else(pa.array(chosen), texts, None)
