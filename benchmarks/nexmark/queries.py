"""The queries that windows of one stream answer, and all of them."""

from __future__ import annotations

from typing import Any

import polars as pl

import windrow as wr

from .auctions import Q4, Q9, Q20
from .events import AUCTION, BID, PERSON
from .query import NONE, WATERMARK, Plan, Query, ends

_TEN = wr.tumbling("10 seconds")
_FINAL: dict[str, Any] = {"retention": NONE, "emit": wr.Emit.append()}
_OUTSIDE: dict[str, Any] = {"event_time": "t", "watermark": WATERMARK, "input": "bids", **_FINAL}
_END = pl.col("t").dt.truncate("10s").dt.offset_by("10s").alias("window_end")

# -- q5: the auctions with the most bids of the last ten seconds, every two --------------------------------------------------

_COUNTS = wr.Aggregate(
    by="auction",
    window=wr.hopping("10 seconds", "2 seconds"),
    agg={"num": wr.count()},
    name="counts",
    **_OUTSIDE,
)
#: One window of two seconds holds what one hopping window told, as that is dated by its end.
_MOST = wr.Aggregate(
    event_time="window_time",
    window=wr.tumbling("2 seconds"),
    agg={"most": wr.max("num")},
    name="most",
    input="counts",
    **_FINAL,
)
_HOT = wr.Join(
    left=wr.Input("counts", event_time="window_time"),
    right=wr.Input("most", event_time="window_time"),
    on={"num": "most"},
    within=(NONE, NONE),
    allowed_lateness=NONE,
    name="hot",
)


def _hot_items(events: pl.LazyFrame) -> pl.LazyFrame:
    ends = [pl.col("t").dt.truncate("2s").dt.offset_by(f"{2 * i}s") for i in range(1, 6)]
    bids = events.filter(pl.col("kind") == BID)
    counts = pl.concat([bids.select(e.alias("window_end"), "auction") for e in ends])
    counted = counts.group_by("window_end", "auction").agg(pl.len().cast(pl.Int64).alias("num"))
    return counted.filter(pl.col("num") == pl.col("num").max().over("window_end"))


Q5 = Query(
    name="q5, hot items",
    published=74_500,
    plans={
        "": Plan(
            wr.chain(_COUNTS, _MOST, _HOT),
            {"bids": (BID, ["t", "auction"])},
            lambda rows: rows.with_columns(window_end="counts_window_end"),
        )
    },
    columns=("window_end", "auction", "num"),
    expected=_hot_items,
    spark="""
        WITH counts AS (
            SELECT window, auction, count(*) AS num FROM bid GROUP BY window(t, '10 seconds', '2 seconds'), auction
        ), most AS (
            SELECT window, max(num) AS most FROM counts GROUP BY window
        )
        SELECT counts.window.end AS window_end, auction, num
        FROM counts JOIN most ON counts.window = most.window AND num = most
    """,
    flink={
        "": """
        SELECT AuctionBids.endtime AS window_end, AuctionBids.auction, AuctionBids.num
        FROM (
            SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(t), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end
        ) AS AuctionBids
        JOIN (
            SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
            FROM (
                SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
                FROM TABLE(HOP(TABLE bid, DESCRIPTOR(t), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
                GROUP BY auction, window_start, window_end
            ) AS CountBids
            GROUP BY CountBids.starttime, CountBids.endtime
        ) AS MaxBids
        ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
            AND AuctionBids.num >= MaxBids.maxn
        """
    },
)

# -- q7: the highest bids of ten seconds -------------------------------------------------------------------------------------

_HIGHEST = wr.Aggregate(window=_TEN, agg={"price": wr.max("price")}, name="top", **_OUTSIDE)
_THOSE_BIDS = wr.Join(
    left=wr.Input("bids", event_time="t", watermark=WATERMARK),
    right=wr.Input("top", event_time="window_time"),
    on="price",
    within=(NONE, "9999999 microseconds"),
    allowed_lateness=NONE,
    name="highest",
)
_BID = ["auction", "bidder", "price", "extra"]
_TOP = wr.Aggregate(
    window=_TEN,
    agg={c: wr.max_by(c, "price") for c in _BID} | {"at": wr.max_by("t", "price")},
    **_OUTSIDE,
)


def _highest_bids(events: pl.LazyFrame) -> pl.LazyFrame:
    bids = events.filter(pl.col("kind") == BID).with_columns(_END)
    return bids.filter(pl.col("price") == pl.col("price").max().over("window_end"))


Q7 = Query(
    name="q7, highest bid",
    published=22_900,
    plans={
        "": Plan(wr.chain(_HIGHEST, _THOSE_BIDS), {"bids": (BID, ["t", *_BID])}, lambda rows: rows),
        ", one of them": Plan(
            _TOP, {"bids": (BID, ["t", *_BID])}, lambda rows: ends(rows).with_columns(t="at")
        ),
    },
    columns=("window_end", "t", *_BID),
    expected=_highest_bids,
    spark="""
        WITH top AS (
            SELECT window, max(price) AS most FROM bid GROUP BY window(t, '10 seconds')
        )
        SELECT window.end AS window_end, t, auction, bidder, price, extra
        FROM bid JOIN top ON price = most AND t >= window.start AND t < window.end
    """,
    flink={
        "": """
        SELECT B1.endtime AS window_end, B.t, B.auction, B.bidder, B.price, B.extra
        FROM bid B JOIN (
            SELECT max(price) AS maxprice, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(t), INTERVAL '10' SECOND))
            GROUP BY window_start, window_end
        ) B1
        ON B.price = B1.maxprice
        WHERE B.t BETWEEN B1.endtime - INTERVAL '10' SECOND AND B1.endtime
        """
    },
)

# -- q8: the persons that came and opened an auction in the same ten seconds -------------------------------------------------

_NEW = wr.Join(
    left=wr.Input("persons", event_time="t", watermark=WATERMARK, window=_TEN),
    right=wr.Input("auctions", event_time="t", watermark=WATERMARK, window=_TEN),
    on={"id": "seller"},
    how="semi",
    allowed_lateness=NONE,
    name="new",
)


def _new_users(events: pl.LazyFrame) -> pl.LazyFrame:
    persons = events.filter(pl.col("kind") == PERSON).select(_END, "id", "name")
    sellers = events.filter(pl.col("kind") == AUCTION).select(_END, "seller")
    return persons.join(sellers, left_on=["window_end", "id"], right_on=["window_end", "seller"], how="semi")


Q8 = Query(
    name="q8, new users",
    published=162_000,
    plans={
        "": Plan(
            _NEW,
            {"persons": (PERSON, ["t", "id", "name"]), "auctions": (AUCTION, ["t", "seller"])},
            lambda rows: rows.with_columns(_END),
            shards=2,
        )
    },
    columns=("window_end", "id", "name"),
    expected=_new_users,
    spark="""
        WITH p AS (
            SELECT window, id, name FROM person GROUP BY window(t, '10 seconds'), id, name
        ), a AS (
            SELECT window, seller FROM auction GROUP BY window(t, '10 seconds'), seller
        )
        SELECT p.window.end AS window_end, id, name FROM p JOIN a ON id = seller AND p.window = a.window
    """,
    flink={
        "": """
        SELECT P.endtime AS window_end, P.id, P.name
        FROM (
            SELECT id, name, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(t), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end
        ) P
        JOIN (
            SELECT seller, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(t), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end
        ) A
        ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
        """
    },
)

# -- q11: the bids of each bidder between two pauses of ten seconds ----------------------------------------------------------

_SESSIONS = wr.Aggregate(by="bidder", window=wr.session("10 seconds"), agg={"num": wr.count()}, **_OUTSIDE)


def _user_sessions(events: pl.LazyFrame) -> pl.LazyFrame:
    bids = events.filter(pl.col("kind") == BID).select("bidder", "t").sort("bidder", "t")
    begins = (pl.col("t").diff() > pl.duration(seconds=10)).fill_null(False)
    numbered = bids.with_columns(begins.cast(pl.Int64).cum_sum().over("bidder").alias("session"))
    end = pl.col("t").max().dt.offset_by("10s").alias("window_end")
    return numbered.group_by("bidder", "session").agg(end, pl.len().cast(pl.Int64).alias("num"))


Q11 = Query(
    name="q11, user sessions",
    published=46_100,
    plans={"": Plan(_SESSIONS, {"bids": (BID, ["t", "bidder"])}, ends, shards=2)},
    columns=("window_end", "bidder", "num"),
    expected=_user_sessions,
    spark="""
        SELECT session_window.end AS window_end, bidder, count(*) AS num
        FROM bid GROUP BY session_window(t, '10 seconds'), bidder
    """,
    flink={
        "": """
        SELECT SESSION_END(B.t, INTERVAL '10' SECOND) AS window_end, B.bidder, count(*) AS num
        FROM bid B
        GROUP BY B.bidder, SESSION(B.t, INTERVAL '10' SECOND)
        """,
        ", by a table of windows": """
        SELECT window_end, bidder, count(*) AS num
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(t), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
        """,
    },
)

# -- q12: the bids of each bidder in ten seconds -----------------------------------------------------------------------------

_PER_BIDDER = wr.Aggregate(by="bidder", window=_TEN, agg={"num": wr.count()}, **_OUTSIDE)


def _per_bidder(events: pl.LazyFrame) -> pl.LazyFrame:
    bids = events.filter(pl.col("kind") == BID).select(_END, "bidder")
    return bids.group_by("window_end", "bidder").agg(pl.len().cast(pl.Int64).alias("num"))


Q12 = Query(
    name="q12, bids of a bidder",
    published=195_000,
    plans={"": Plan(_PER_BIDDER, {"bids": (BID, ["t", "bidder"])}, ends, shards=2)},
    columns=("window_end", "bidder", "num"),
    expected=_per_bidder,
    spark="""
        SELECT window.end AS window_end, bidder, count(*) AS num FROM bid GROUP BY window(t, '10 seconds'), bidder
    """,
    flink={
        "": """
        SELECT window_end, bidder, count(*) AS num
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(t), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
        """
    },
)

QUERIES = (Q4, Q5, Q7, Q8, Q9, Q11, Q12, Q20)
