"""From which time on messages of a join can still meet somebody: found among all times there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import windrow as wr
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.join.reach import LEFT, RIGHT, Reach
from windrow.operators.steps.intake import FIRST_US, LAST_US

S = 1_000_000


def reach(left: Any = None, right: Any = None, **changes: Any) -> Reach:
    sides = {
        "left": wr.Input("a", event_time="t", window=left),
        "right": wr.Input("b", event_time="t", window=right),
    }
    return Reach(wr.Join(**sides, on="k", **changes))


REACHES = {
    "within": reach(within=("-4 seconds", "6 seconds")),
    "tumbling": reach(wr.tumbling("10 seconds"), wr.tumbling("10 seconds")),
    "hopping": reach(wr.hopping("10 seconds", "3 seconds"), wr.tumbling("7 seconds")),
    "sliding": reach(wr.sliding("10 seconds"), wr.sliding("4 seconds")),
    "newest rows": reach(wr.rows(2), wr.rows(2), retention="1 minute"),
    "for ever": reach(wr.rows(2), wr.rows(2), retention=wr.forever),
}


@pytest.mark.parametrize("name", REACHES)
@pytest.mark.parametrize("side", [LEFT, RIGHT], ids=["left", "right"])
def test_the_first_time_that_still_meets_somebody_is_found_for_any_watermark(name: str, side: int) -> None:
    one = REACHES[name]

    def expires(time_us: int) -> int:
        return int(one.expires(side, np.array([time_us], dtype=np.int64))[0])

    for watermark_us in (
        START_OF_TIME_US,
        -(10**15),
        -1,
        0,
        1,
        5 * S,
        10 * S - 1,
        10 * S,
        10 * S + 1,
        10**15,
        0,
        10**17,
    ):
        first = one.expired_before(side, watermark_us)
        assert first == START_OF_TIME_US or expires(first - 1) <= watermark_us
        assert first > LAST_US or expires(max(first, FIRST_US)) > watermark_us
    assert one.expired_before(side, END_OF_TIME_US) == END_OF_TIME_US
