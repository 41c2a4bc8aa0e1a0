"""Any definition of a join, and any messages for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S, policies
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.messages import Message, Position
from windrow.core.windows import Rows
from windrow.operators.join.definition import JoinDefinition, Where

ALL = ("inner", "left", "right", "full", "semi", "anti", "asof")
ALIKE = {"k": pa.string(), "key": pa.string(), "g": pa.int64(), "v": pa.int64(), "x": pa.float64()}
#: The columns of each input but event time; most are of both.
COLUMNS = {"l": {**ALIKE, "a": pa.string()}, "r": {**ALIKE, "b": pa.int64()}}


def less(left: pa.Table, right: pa.Table) -> Any:
    """A condition as a user would write it."""
    return pc.less(left.column("v"), right.column("v"))


def unlike(left: pa.Table, right: pa.Table) -> Any:
    """Raises on pairs of some values."""
    sums = pc.add(left.column("v"), right.column("v"))
    if pc.any(pc.equal(sums, 4)).as_py():
        raise ValueError("4")
    return pc.greater(sums, 1)


@dataclass(frozen=True)
class JoinCase:
    """A definition, how long a unit of its event times is, and whether these are times or plain integers."""

    definition: JoinDefinition
    unit_us: int
    timestamps: bool

    def columns(self, source: Input) -> dict[str, pa.DataType]:
        time = pa.timestamp("us", "UTC") if self.timestamps else pa.int64()
        return {source.event_time: time, **COLUMNS[source.name]}

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        return {source.name: pa.schema(self.columns(source)) for source in self.definition.inputs}

    def drawn(self, row: dict[str, Any]) -> Drawn:
        """The message of a drawn row."""
        source = self.definition.inputs[row["side"] % len(self.definition.inputs)]
        time_us = row["t"] * self.unit_us + row["jitter"]
        payload = {source.event_time: row.get("bad", time_us)}
        payload |= {name: row[name] for name in COLUMNS[source.name]}
        return Drawn(payload, source.name, row["partition"])

    def message(self, row: dict[str, Any], offset: int) -> Message:
        """The same, where the log has it."""
        payload, name, partition = self.drawn(row)
        return Message(payload, Position(f"{name}:s", partition, offset))


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    hows: Sequence[str] = ALL,
    rows: bool = True,
    never_late: bool = False,
    unit_us: int = S,
) -> JoinCase:
    """rows: with windows of rows, and limits by number; never_late: nothing can be too late."""

    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    def units(n: int) -> timedelta:
        return timedelta(microseconds=n * unit_us)

    def window() -> Any:
        closed = pick("both", "both", "left", "right", "neither")
        match pick(
            None, "sliding", "sliding", "both ways", "from ever", "ever", "tumbling", "hopping", "uneven"
        ):
            case None:
                return None
            case "sliding":
                return wr.sliding(units(pick(0, 2, 5)), closed=closed)
            case "both ways":
                return wr.sliding(units(pick(0, 3)), units(pick(1, 4)), closed=closed)
            case "from ever":
                return wr.sliding(*pick((wr.forever, units(2)), (units(2), wr.forever)), closed=closed)
            case "ever":
                return wr.unbounded()
            case "tumbling":
                return wr.tumbling(units(6), offset=units(pick(0, 1)))
            case "hopping":
                return wr.hopping(units(6), units(3))
            case _:
                return wr.hopping(units(5), units(2), offset=units(1))

    how = pick(*hows)
    windows = [None, None] if pick(True, False) or how == "asof" else [window(), window()]
    if rows and how != "asof" and pick(True, False, False):
        counted = wr.rows(pick(1, 2, 3), per=pick("key", "key", "input"))
        beside = pick(None, wr.unbounded(), wr.rows(pick(1, 2)))
        windows = [counted, beside] if pick(True, False) else [beside, counted]
    sessions = pick("both", "left", "right", None, None, None, None) if how != "asof" else None
    spec = None
    if sessions is not None:
        own = [wr.col("g") * unit_us, wr.lit(6) / wr.col("v") * unit_us]
        gap = pick(units(1), units(2), units(4), *own)
        spec = wr.session(gap, cut=pick(None, None, wr.tumbling(units(7))))
        windows = [spec if sessions == side else None for side in ("left", "right")]
    alone = pick(True, False, False, False) and sessions is None
    filters = pick(
        (None, None),
        (None, None),
        (wr.col("v") > 1, None),
        (None, wr.col("g") == 0),
        (wr.col("v") > 0, wr.col("v") < 3),
    )
    left = wr.Input(
        "l", event_time="t", window=windows[0], max_ahead=pick(wr.forever, wr.forever, units(40)), where=filters[0]
    )  # fmt: skip
    static = pick(True, False, False, False) and sessions is None
    right = wr.Input(
        "r", event_time=pick("t", "u"), window=windows[1], max_ahead=wr.forever, static=static, where=filters[1]
    )  # fmt: skip
    right = left if alone else right
    low, high = sorted((draw(st.integers(-6, 6)), draw(st.integers(-6, 6))))
    within = pick((low, high), None) if sessions is None else pick((low, high), None, None)
    if how == "asof":
        within = (min(low, -high), pick(0, 0, min(low, -high)))
        within = (-abs(within[0]), max(-abs(within[0]), -abs(within[1])))
    prefix = ("left", "right") if alone else ("l", "r")
    options: dict[str, Any] = {
        "left": left,
        "right": right,
        "on": pick((), "k", "k", ("k", "g"), {"k": "key"})
        if spec is None
        else pick("k", "k", ("k", "g"), {"k": "key"}),
        "window": spec if sessions == "both" else None,
        "within": None if within is None else (units(within[0]), units(within[1])),
        "closed": pick("both", "both", "both", "left", "right", "neither"),
        "how": how,
        "where": pick(
            None,
            None,
            None,
            None,
            wr.col(f"{prefix[0]}_v") < wr.col(f"{prefix[1]}_v"),
            wr.pairs(less, name="less"),
        ),
        "emit": pick(
            None,
            wr.Emit(early=wr.every("5 seconds"), late=wr.every_batch),
            wr.Emit(early=wr.every_batch, late=wr.every("7 seconds")),
            wr.Emit(early=wr.every("5 seconds"), late=wr.every("7 seconds")),
        ),
    }
    lateness = None if never_late else pick(None, 0, 0, 3, 12)
    for retention in (pick(None, None, 9, 15), 15, 60):
        kept = None if retention is None else units(retention)
        asked: Any = wr.forever if pick(*[False] * 5, True) else kept
        counted_windows = any(isinstance(w, type(wr.rows(1))) for w in windows)
        if pick(False, False, True) and rows and not (alone or spec or counted_windows):
            asked = wr.Retain(kept, messages=pick(1, 2, 3), per=pick("key", "job"))
        if spec is not None and pick(False, False, True):
            asked = wr.Retain(
                kept or wr.forever,
                windows=pick(None, 1, 2),
                messages=pick(None, 2, 4),
                per=pick("key", "job"),
            )
        try:
            late = None if lateness is None else units(lateness)
            return JoinCase(
                wr.Join(**options, retention=asked, allowed_lateness=late), unit_us, draw(st.booleans())
            )
        except wr.ConfigurationError:
            continue
    assume(False)
    raise AssertionError


@st.composite
def rows(draw: st.DrawFn, *, good: bool = False) -> dict[str, Any]:
    """A row; good: it is no dead letter, unless it is too late."""
    row = {
        "side": draw(st.sampled_from([0, 1])),
        "partition": draw(st.sampled_from([0, 0, 1])),
        "t": draw(st.one_of(st.integers(2, 10), st.integers(2, 10), st.integers(-3, 25))),
        "jitter": draw(st.sampled_from([0, 0, 0, 0, -1, 1])),
        "k": draw(st.sampled_from(["a", "a", "a", "b", None])),
        "key": draw(st.sampled_from(["a", "a", "b", None])),
        "g": draw(st.sampled_from([1, 1, 1, 2, None])),
        "v": draw(st.sampled_from([None, 0, 1, 2, 3])),
        "x": draw(st.sampled_from([None, 0.25, -3.0, math.nan])),
        "a": draw(st.sampled_from([None, "one", "two"])),
        "b": draw(st.sampled_from([None, 7, 8])),
    }
    if not good and draw(st.integers(0, 12)) == 0:
        row["bad"] = draw(st.sampled_from([None, 2**62, -(2**62)]))
    return row


@st.composite
def raising(draw: st.DrawFn, join: JoinDefinition) -> Any:
    """Its condition, or one that raises on some pairs, each message of which may be fine with others: where nothing but the
    messages of a pair decides whether it is one."""
    counted = any(isinstance(source.window, Rows) for source in join.inputs)
    if counted or draw(st.integers(0, 3)) == 0:
        return join.where
    one, other = ("left_v", "right_v") if join.is_self_join else ("l_v", "r_v")
    quotient = Where(Expr(wr.lit(6) / (wr.col(one) - wr.col(other)) > -4))
    return draw(st.sampled_from([join.where, wr.pairs(unlike, name="unlike"), quotient]))


@st.composite
def jobs(draw: st.DrawFn) -> Case:
    case = draw(cases())
    left, right = case.definition.left, case.definition.right
    raises = Expr(wr.lit(6) / wr.col("v") < 4)
    where = left.where if draw(st.booleans()) else draw(st.sampled_from([left.where, left.where, raises]))
    first = replace(left, deliver=None if left.static else draw(policies("v")), where=where)
    second = first if right == left else replace(right, deliver=None if right.static else draw(policies("v")))
    case = replace(case, definition=case.definition._changed(left=first, right=second))
    where = draw(raising(case.definition))
    raises = where != case.definition.where
    case = replace(case, definition=case.definition._changed(where=where))
    schema = draw(st.sampled_from([None, case.schemas]))
    return Case(
        definition=case.definition,
        messages=rows().map(case.drawn),
        schema=schema,
        unit_us=case.unit_us,
        start_us=draw(st.sampled_from([0, 100 * S])),
        raises=raises,
    )


def _shown() -> Operator:
    definition = wr.Join(
        left=wr.Input("l", event_time="t", watermark="1 second", max_ahead=wr.forever),
        right=wr.Input("r", event_time="u", watermark="1 second", max_ahead=wr.forever),
        on="k", within=("-2 seconds", "3 seconds"), how="full", allowed_lateness="0 seconds", retention="30 seconds",
    )  # fmt: skip
    case = JoinCase(definition, S, True)
    nothing = dict.fromkeys(["key", "g", "x", "a", "b"])
    sides = [(0, 1, "a"), (1, 2, "a"), (1, 9, "b"), (0, 3, "a"), (0, 8, "b"), (1, 30, "a"), (0, 30, None)]
    rows = [
        {**nothing, "side": side, "t": t, "k": k, "v": v, "partition": 0, "jitter": 0}
        for v, (side, t, k) in enumerate(sides)
    ]
    return Operator(jobs(), definition, case.schemas, [case.drawn(row) for row in rows])


OPERATOR = _shown()
