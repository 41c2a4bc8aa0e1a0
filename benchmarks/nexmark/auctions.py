"""The queries that bring bids and auctions together by time: q4, q9 and q20.

Nexmark's own SQL joins them without a bound of time, and keeps both for good. Where a side has to forget, it is told what holds
of every auction here: it lasts less than ten seconds, and bids come at most a second before it opens.
"""

from __future__ import annotations

from typing import Any

import polars as pl

import windrow as wr

from .events import AUCTION, BID, FIRST_CATEGORY
from .query import NONE, WATERMARK, Plan, Query, as_frame

_LIFE = "10 seconds"
_WITHIN = ", within 10 s"
_LOT = ["item", "initial_bid", "reserve", "expires", "seller", "category"]
_LOTS, _OF_AUCTION = ", ".join(_LOT), ", ".join(f"A.{c}" for c in _LOT)
_IN_LIFE = {
    "": "B.t BETWEEN A.t AND A.expires",
    _WITHIN: "B.t >= A.t AND B.t <= A.t + INTERVAL '10' SECOND AND CAST(B.t AS TIMESTAMP(3)) <= A.expires",
}


def _bids_within(name: str, agg: dict[str, Any], select: list[str]) -> wr.Over:
    """A row for each auction on which somebody bid, with what is aggregated of the bids from its beginning to its end."""
    return wr.Over(
        by="auction",
        event_time="t",
        watermark=WATERMARK,
        input="bids",
        anchors=wr.Input("auctions", event_time="t", watermark=WATERMARK),
        frame=wr.between("t", "expires"),
        retention=_LIFE,
        agg=agg,
        select=select,
        empty="skip",
        name=name,
    )


def _winners(events: pl.LazyFrame) -> pl.LazyFrame:
    """Auctions with their highest bid, of equal ones the first."""
    columns = ["auction", "bidder", "price", pl.col("t").alias("bid_t"), pl.col("extra").alias("bid_extra")]
    bids = events.filter(pl.col("kind") == BID).select(columns)
    auctions = events.filter(pl.col("kind") == AUCTION).select("id", "t", *_LOT)
    pairs = auctions.join(bids, left_on="id", right_on="auction", maintain_order="right")
    pairs = pairs.filter(pl.col("bid_t").is_between("t", "expires")).sort(
        "price", descending=True, maintain_order=True
    )
    return pairs.unique("id", keep="first", maintain_order=True)


# -- q4: the average price at which auctions of a category close -------------------------------------------------------------

_FINAL = _bids_within("prices", {"final": wr.max("price")}, ["category"])
_AVERAGES = wr.Aggregate(
    by="category",
    event_time="t",
    window=wr.global_window(),
    agg={"average": wr.avg("final")},
    retention=wr.forever,
    emit=wr.Emit.update(),
    name="averages",
    input="prices",
)


def _averages(events: pl.LazyFrame) -> pl.LazyFrame:
    price = pl.col("price")
    return _winners(events).group_by("category").agg((price.sum() / price.len()).alias("average"))


Q4 = Query(
    name="q4, average price for a category",
    published=28_200,
    plans={
        "": Plan(
            wr.chain(_FINAL, _AVERAGES),
            {
                "bids": (BID, ["t", "auction", "price"]),
                "auctions": (AUCTION, ["t", "id", "expires", "category"]),
            },
            lambda rows: as_frame(wr.latest(rows.to_arrow(), by="category")),
            renamed={"id": "auction"},
        )
    },
    columns=("category", "average"),
    expected=_averages,
    spark=None,
    flink={
        name: f"""
        SELECT Q.category, avg(CAST(Q.final AS DOUBLE)) AS average
        FROM (
            SELECT max(B.price) AS final, A.category
            FROM auction A, bid B
            WHERE A.id = B.auction AND {life}
            GROUP BY A.id, A.category
        ) Q
        GROUP BY Q.category
        """
        for name, life in _IN_LIFE.items()
    },
)

# -- q9: the winning bid of each auction -------------------------------------------------------------------------------------

_WON = _bids_within(
    "won",
    {
        "bidder": wr.max_by("bidder", "price"),
        "price": wr.max("price"),
        "bid_t": wr.max_by("t", "price"),
        "bid_extra": wr.max_by("extra", "price"),
    },
    _LOT,
)
Q9 = Query(
    name="q9, winning bids",
    published=13_800,
    plans={
        "": Plan(
            _WON,
            {
                "bids": (BID, ["t", "auction", "bidder", "price", "extra"]),
                "auctions": (AUCTION, ["t", "id", *_LOT]),
            },
            lambda rows: rows.rename({"auction": "id"}),
            shards=2,
            renamed={"id": "auction"},
        )
    },
    columns=("id", "t", *_LOT, "bidder", "price", "bid_t", "bid_extra"),
    expected=_winners,
    spark=f"""
        SELECT id, t, {_LOTS}, won.bidder, won.price, timestamp_millis(-won.before) AS bid_t, won.bid_extra
        FROM (
            SELECT id, t, {_LOTS}, max(struct(price, before, bidder, bid_extra)) AS won
            FROM (
                SELECT A.id, A.t, {_LOTS}, bidder, price, -unix_millis(B.t) AS before, B.extra AS bid_extra
                FROM (SELECT id, t, {_LOTS} FROM auction) A
                JOIN (SELECT t, auction, bidder, price, extra FROM bid) B
                ON A.id = B.auction AND B.t >= A.t AND B.t <= A.expires AND B.t <= A.t + INTERVAL 10 SECONDS
            )
            GROUP BY id, t, {_LOTS}
        )
    """,
    flink={
        name: f"""
        SELECT id, t, {_LOTS}, bidder, price, bid_t, bid_extra
        FROM (
            SELECT A.id, CAST(A.t AS TIMESTAMP(3)) AS t, {_OF_AUCTION}, B.bidder, B.price,
                CAST(B.t AS TIMESTAMP(3)) AS bid_t, B.extra AS bid_extra,
                ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.t ASC) AS rownum
            FROM auction A, bid B
            WHERE A.id = B.auction AND {life}
        )
        WHERE rownum <= 1
        """
        for name, life in _IN_LIFE.items()
    },
    closes=("t", "10s1ms"),
)

# -- q20: bids with their auction, of one category ---------------------------------------------------------------------------

_EXPANDED = wr.Join(
    left=wr.Input("bids", event_time="t", watermark=WATERMARK),
    right=wr.Input(
        "auctions", event_time="t", watermark=WATERMARK, where=wr.col("category") == FIRST_CATEGORY
    ),
    on={"auction": "id"},
    within=("-10 seconds", "1 second"),
    allowed_lateness=NONE,
    name="expanded",
)


def _expanded(events: pl.LazyFrame) -> pl.LazyFrame:
    columns = ["auction", "bidder", "price", pl.col("t").alias("bid_t"), "extra"]
    bids = events.filter(pl.col("kind") == BID).select(columns)
    auctions = events.filter((pl.col("kind") == AUCTION) & (pl.col("category") == FIRST_CATEGORY))
    return bids.join(auctions.select("id", "t", *_LOT), left_on="auction", right_on="id")


Q20 = Query(
    name="q20, expand bid with auction",
    published=17_800,
    plans={
        "": Plan(
            _EXPANDED,
            {
                "bids": (BID, ["t", "auction", "bidder", "price", "extra"]),
                "auctions": (AUCTION, ["t", "id", *_LOT]),
            },
            lambda rows: rows.rename({"bids_t": "bid_t", "auctions_t": "t"}),
            shards=2,
        )
    },
    columns=("auction", "bidder", "price", "bid_t", "extra", "t", *_LOT),
    expected=_expanded,
    spark=f"""
        SELECT auction, bidder, price, B.t AS bid_t, extra, A.t AS t, {_LOTS}
        FROM (SELECT t, auction, bidder, price, extra FROM bid) B
        JOIN (SELECT id, t, {_LOTS} FROM auction WHERE category = {FIRST_CATEGORY}) A
        ON auction = id AND A.t >= B.t - INTERVAL 10 SECONDS AND A.t <= B.t + INTERVAL 1 SECOND
    """,
    flink={
        name: f"""
        SELECT B.auction, B.bidder, B.price, CAST(B.t AS TIMESTAMP(3)) AS bid_t, B.extra,
            CAST(A.t AS TIMESTAMP(3)) AS t, {_OF_AUCTION}
        FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id{within}
        WHERE A.category = {FIRST_CATEGORY}
        """
        for name, within in {
            "": "",
            _WITHIN: " AND A.t BETWEEN B.t - INTERVAL '10' SECOND AND B.t + INTERVAL '1' SECOND",
        }.items()
    },
    closes=None,
)
