"""Generated jobs, drawn by a seed, of all operators: the default of simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import windrow as wr
from windrow.operators.operator import Definition
from windrow.runners.replay import replayable
from windrow.testing.generators import BASE_US, HOUR, SCHEMA, WRONG, WRONG_KEY, Draw, S
from windrow.testing.scenario import ONLY, Feed
from windrow.testing.variation import Variation


def drawn(chance: Random) -> Feed:
    """Any job."""
    return _feed(chance, (*ONE, several, several), chance.randint(14, 36), 0)


def one_definition(chance: Random) -> Feed:
    """Any job of one operator, or of one graph of them; some have watermarks that the reader advances."""
    n = chance.choice([10, 40, 80])
    variation = Variation(chance)
    feed = _feed(chance, ONE, n, n)
    return replace(feed, definitions=tuple(map(variation.watermarks, feed.definitions)))


def replayed(chance: Random) -> Feed:
    """Any job of several shards that keeps messages, all of which can be read from the source again."""
    while True:
        feed = _feed(chance, (*ONE, several), chance.randint(14, 36), 0)
        definitions = feed.definitions
        alone = any(d.one_shard() is not None or d.copied or not d.by for d in definitions)
        ids = any(part.ids is not None for part in feed.parts.values())
        kept = any(d.logic().message_cfs for d in definitions) and all(map(replayable, definitions))
        if kept and not alone and not ids:
            return replace(feed, replays=True)


def one_aggregate(draw: Draw) -> list[Definition]:
    draw.unit_us = draw.pick(*[S] * 7, 6 * HOUR)
    return [draw.aggregate("panes")]


def one_join(draw: Draw) -> list[Definition]:
    right = draw.pick("parcels", "parcels", "parcels", "orders")  # which is a join with itself
    static = {"parcels": {"static": draw.pick(False, False, False, True)}}
    return [draw.join("pairs", "orders", right, said=static)]


def one_of_rows(draw: Draw) -> list[Definition]:
    made = {
        "once": draw.deduplicate,
        "busy": draw.process,
        "near": draw.over,
        "listed": draw.join_window,
        "fresh": draw.delivery,
        "alerts": draw.alert,
    }
    name = draw.pick(*made)
    return [made[name](name)]


def one_of_inputs(draw: Draw) -> list[Definition]:
    """Draw an operator of several inputs that is no join."""
    kind = draw.pick("cogroup", "rules", "anchors", "history")
    if kind == "cogroup":
        return [draw.cogroup("both", "orders", "parcels")]
    if kind == "rules":
        return [draw.rules("rules", "orders", "parcels")]
    if kind == "history":
        return [draw.alert("alerts", input="orders", history="parcels")]
    return [draw.anchored("marked", "orders", draw.pick("parcels", "parcels", "parcels", None))]


def a_chain(draw: Draw) -> list[Definition]:
    """Draw operators one after the other."""
    return [draw.valid(lambda: wr.chain(*_line(draw)))]


def _line(draw: Draw) -> list[Definition]:
    if draw.pick(True, *[False] * 5):  # of rows that are emitted once
        before = draw.pick(draw.deduplicate, draw.delivery)("first")
        return [before, draw.alert("alerts", watermark="0 seconds", deliver=None)]
    first = draw.pick(_aggregate_first, _aggregate_first, _join_first, _join_first, _rows_first)(draw)
    before, time, value = first
    if isinstance(before, wr.Aggregate) and "k" in before.by and draw.pick(True, False, False):
        return [
            before,
            draw.deduplicate("last", by="k", ids=wr.ids("n"), event_time=time, watermark="0 seconds"),
        ]
    by = tuple(name for name in before.by if draw.pick(True, True, False))
    return [before, draw.aggregate("last", **_after(draw, time, value), by=by)]


#: An operator, and the event time and a column of its rows.
First = tuple[Any, str, str]


def _aggregate_first(draw: Draw) -> First:
    agg = {"n": wr.count(), "total": wr.sum("v")}
    if draw.pick(True, False, False):
        return draw.cogroup("first", "orders", "parcels", **_before(draw), agg=agg), "window_time", "n"
    return draw.aggregate("first", **_before(draw), agg=agg), "window_time", "n"


def _join_first(draw: Draw) -> First:
    hows = ("inner", "left", "semi", "anti", "asof")
    join = draw.join("first", "orders", "parcels", hows=hows, emit=None)
    return (join, "t", "v") if join.how in ("semi", "anti") else (join, "orders_t", "orders_v")


def _rows_first(draw: Draw) -> First:
    match draw.pick("deduplicate", "process", "over", "join window", "delivery", "anchors", "alert"):
        case "alert":
            return draw.alert("first"), "time", "count"
        case "deduplicate":
            return draw.deduplicate("first"), "t", "v"
        case "over":
            return draw.over("first"), "t", "v"
        case "join window":
            return draw.join_window("first", window="in time"), "t", "v"
        case "delivery":
            return draw.delivery("first"), "t", "v"
        case "anchors":
            return draw.anchored("first", "orders", "parcels"), "t", "v"
        case _:
            return draw.process("first"), "t", "n"


def a_graph(draw: Draw) -> list[Definition]:
    """Draw a join of the rows of two operators, on inputs of their own or on one; then perhaps an aggregate."""
    return [draw.valid(lambda: wr.chain(*_diamond(draw)))]


def _diamond(draw: Draw) -> list[Definition]:
    names = ("orders", draw.pick("orders", "parcels"))
    watermarks = {name: draw.pick(draw.units(0), draw.units(3)) for name in names}
    by = draw.pick("k", "k", ())
    sides = [
        _side(draw, part, by=by, input=name, watermark=watermarks[name])
        for part, name in zip(("one", "other"), names, strict=True)
    ]
    (one, time, value), (other, beside, _) = sides
    said = {
        side.name: {"event_time": at, "watermark": draw.units(0), "deliver": draw.policy(surely=False)}
        for side, at in ((one, time), (other, beside))
    }
    hows = ("inner", "left", "full", "semi")
    both = draw.join("both", "one", "other", hows=hows, said=said, on=by, emit=None)
    if both.how == "full" or draw.pick(True, False):
        return [one, other, both]
    if both.how != "semi" and type(one) is type(other):
        time, value = f"one_{time}", f"one_{value}"  # both have them
    return [one, other, both, draw.aggregate("last", **_after(draw, time, value), by=by)]


def _side(draw: Draw, name: str, **decided: Any) -> First:
    if decided["by"] and draw.pick(True, False, False):
        return draw.deduplicate(name, **decided), "t", "v"
    agg = {"n": wr.count(), "total": wr.sum("v")}
    return draw.aggregate(name, **_before(draw), agg=agg, **decided), "window_time", "n"


def several(draw: Draw) -> list[Definition]:
    """Draw operators side by side: on one input without a name, or on two."""
    if draw.pick(True, False):
        made = [
            draw.aggregate("panes"),
            draw.aggregate("more"),
            draw.deduplicate("once"),
            draw.process("busy"),
            draw.over("near"),
            draw.join_window("listed"),
            draw.delivery("fresh"),
            draw.alert("alerts"),
        ]
        return draw.chance.sample(made, draw.pick(2, 2, 3))
    said = {
        name: {"watermark": wr.bounded(draw.units(draw.pick(0, 3)), idle=draw.pick(None, draw.units(10)))}
        for name in ("orders", "parcels")
    }
    beside = [
        draw.aggregate("panes", input="orders", **said["orders"]),
        draw.deduplicate("once", input="parcels", **said["parcels"]),
        draw.process("busy", input="orders", **said["orders"]),
    ]
    both = draw.pick(
        draw.join("pairs", "orders", "parcels", said=said),
        draw.join("pairs", "orders", "parcels", said=said),
        draw.anchored("marked", "orders", "parcels", watermark=said["orders"]["watermark"]),
        draw.cogroup("both", "orders", "parcels"),
        draw.rules("rules", "orders", "parcels"),
    )
    return [both, draw.pick(*beside)]


def _before(draw: Draw) -> dict[str, Any]:
    """Draw the options that an aggregate needs before another operator."""
    append = wr.Emit.append()
    parts = wr.Emit(early=draw.pick(wr.never, wr.every(2)), late=wr.every_batch, mode="discarding")
    emit = draw.variation.triggers(draw.pick(append, parts))
    return {"window": "in time", "emit": emit, "allowed_lateness": None, "null_keys": "group"}


def _after(draw: Draw, event_time: str, column: str) -> dict[str, Any]:
    """Draw the options of an aggregate that takes the rows of another operator."""
    return {
        "window": "in time",
        "event_time": event_time,
        "agg": {"n": wr.count(), "total": wr.sum(column), "least": wr.min(column)},
        "watermark": "0 seconds",
        "ids": None,
        "deliver": draw.policy(surely=False),
    }


Kind = Callable[[Draw], list[Definition]]
#: Jobs of one definition; an entry that is listed twice is drawn twice as often.
ONE: tuple[Kind, ...] = (
    *(one_aggregate, one_aggregate, one_aggregate),
    *(one_join, one_join, one_join, one_of_rows, one_of_rows, one_of_inputs, one_of_inputs, a_chain, a_graph),
)


def _feed(chance: Random, kinds: Sequence[Kind], n: int, late: int) -> Feed:
    """Draw a job of one of these kinds, and so many messages for it; late: after so many of them the clock begins."""
    draw = Draw(chance)
    definitions = tuple(chance.choice(kinds)(draw))
    names = list(dict.fromkeys(i.name for d in definitions for i in d.inputs if d.by_input)) or [ONLY]
    arrivals = draw.messages(names, n)
    keyed = all("k" in d.keys(i) for d in definitions for i in d.inputs)
    return Feed(
        definitions,
        dict.fromkeys(names, SCHEMA),
        arrivals,
        BASE_US + late * draw.unit_us,
        draw.unit_us,
        (*WRONG, WRONG_KEY) if keyed else WRONG,
    )
