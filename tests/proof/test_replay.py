"""Any definition that keeps messages, any input: messages that are lost come back from the source, and all goes on."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from tests.proof.test_against_oracle import ACTIONS, ONE_BY_ONE, Case, Run, cases
from windrow.runners.embedded import Embedded
from windrow.testing import ManualClock, TestDriver
from windrow.testing.ledger import all_panes_equal, values_equal


class Rereading(TestDriver):
    """A driver whose operator may read again all that was ever fed."""

    reads = 0

    def _open(self) -> Embedded:
        def again(ranges: Any) -> list[Any]:
            self.reads += 1
            return [message for _, message in sorted(self._fed.items(), reverse=True)]

        return Embedded(
            self.definition,
            self.location,
            clock=self.clock,
            sink=self._sink,
            schema=self._schema,
            replay=again,
        )

    def lose_messages(self) -> None:
        self.crash()
        for folder in ("local", "snapshots", "segments"):
            shutil.rmtree(os.path.join(self.location, folder), ignore_errors=True)
        self.restart()


def seen(driver: TestDriver, limited: bool) -> list[Any]:
    """What queries tell; of messages only where no size limit lets go of them at its leisure."""
    windows = [
        (i.key, i.window, i.messages, i.first, i.last, i.panes, i.values) for i in driver.op.get_windows()
    ]
    return [windows, [] if limited else [(m.position, m.payload) for m in driver.messages()]]


def check(case: Case, before: list[Any], after: list[Any]) -> None:
    retention = case.definition.retention
    tuples = case.definition.tuple_window
    limited = not tuples and (retention.windows is not None or retention.messages is not None)
    with (
        Rereading(case.definition, clock=ManualClock(case.base_us)) as loser,
        TestDriver(case.definition, clock=ManualClock(case.base_us)) as twin,
    ):
        runs = Run(case, loser), Run(case, twin)
        for kind, value in before:
            for run in runs:
                run.act(kind, value)
        for driver in (loser, twin):
            driver.next_offsets()  # commits what is staged
        loser.lose_messages()
        assert values_equal(seen(loser, limited), seen(twin, limited))
        for kind, value in after:
            for run in runs:
                run.act(kind, value)
        loser.check()
        assert all_panes_equal(loser.committed_panes(), twin.committed_panes())


LATER = st.lists(ACTIONS, min_size=1, max_size=6)


@pytest.mark.proves("Coming back: messages lost: replayed from the source, embedded")
@given(case=cases(full=True), before=st.lists(ACTIONS, min_size=1, max_size=10), after=LATER)
@examples(40, deep=2_000)
def test_lost_messages_come_back_from_the_source(case: Case, before: list[Any], after: list[Any]) -> None:
    check(case, before, after)


@given(case=cases(steady=True, full=True), before=st.lists(ONE_BY_ONE, min_size=1, max_size=8), after=LATER)
@examples(40, deep=2_000)
def test_lost_messages_that_were_added_one_by_one_come_back(
    case: Case, before: list[Any], after: list[Any]
) -> None:
    check(case, before, after)
