"""Without too-late messages, the final contents of windows and consumers do not depend on the cut into steps.

That each cut tells what the oracle makes of it is the contract suite's (tests/operators/test_contract.py). WINDROW_DEEP=1 runs
many more examples.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from tests.operators.aggregate.cases import Scaled, cases, messages
from tests.operators.session.cases import sessions
from windrow.core.messages import Message, Position, TupleWindow
from windrow.testing import ManualClock, TestDriver
from windrow.testing.ledger import ledger, ledger_key, values_equal


def in_the_end(case: Scaled, rows: list[dict[str, Any]], cut: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the contents of windows after all rows, `cut` a step, and those of a consumer after the end of time."""
    with TestDriver(case.definition, clock=ManualClock(case.base_us)) as driver:
        made = [Message(case.drawn(row).payload, Position("s", row["p"], n)) for n, row in enumerate(rows)]
        for i in range(0, len(made), cut):
            driver.feed(made[i : i + cut], driver.definition.inputs[0].name)
        held = {
            ledger_key(i.key, i.window): (i.messages, i.first, i.last, i.values) for i in driver.windows()
        }
        driver.advance_clock("1 day")
        driver.timeout()
        driver.drain()
        retracting, grows = case.definition.emit.mode == "retracting", case.definition.session
        emitted = ledger(driver.committed_panes(), retracting=retracting, grows=grows)
        assert [letter for letter in driver.dead_letters() if letter.reason == "too_late"] == []
    partial = [key for key in held if isinstance(key[1], TupleWindow) and held[key][0] < _size(key[1])]
    return held, {key: values for key, values in emitted.items() if key not in partial}


def _size(window: TupleWindow) -> int:
    return window.last - window.first + 1


@given(
    case=st.one_of(
        st.booleans().flatmap(
            lambda ids: cases(ids=ids, unbounded=True, modes=("accumulating", "retracting"))
        ),
        sessions(unbounded=True),
    ),
    rows=st.lists(messages(good=True), min_size=1, max_size=15),
    cuts=st.tuples(st.integers(1, 3), st.integers(4, 15)),
)
@examples(16, deep=6_000)
def test_where_nothing_is_too_late_contents_and_ledger_do_not_depend_on_the_cut(
    case: Scaled, rows: list[dict[str, Any]], cuts: tuple[int, int]
) -> None:
    # Positions of two partitions interleave by the cut, and with them the numbers of tuple windows.
    rows = [{**row, "p": 0} for row in rows]
    (held, emitted), (held_too, told_too) = (in_the_end(case, rows, cut) for cut in cuts)
    assert values_equal(held, held_too)
    assert values_equal(emitted, told_too)
