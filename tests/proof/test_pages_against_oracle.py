"""Whatever the triggers, cuts and crashes: windows in pages of a key or two, folded all the time, say what the oracle says.

WINDROW_DEEP=1 runs many more examples.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from tests.operators.aggregate.cases import jobs
from tests.operators.contract import Drawn, life
from tests.operators.test_contract import actions
from windrow.stores import delta_blocks, page_store

KEYS = st.sampled_from([*"abcdefghij", None])


def of_key(message: Drawn, key: str | None) -> Drawn:
    return message._replace(payload={**message.payload, "k": key})


@given(data=st.data(), page_rows=st.sampled_from([1, 2, 16]), fold_at=st.sampled_from([2, 16]))
@examples(18, deep=10_000)
def test_windows_in_small_pages_say_what_the_oracle_says(
    data: st.DataObject, page_rows: int, fold_at: int
) -> None:
    case = data.draw(jobs())
    many = replace(case, messages=st.builds(of_key, case.messages, KEYS))
    with (
        mock.patch.object(page_store, "PAGE_ROWS", page_rows),
        mock.patch.object(delta_blocks, "FOLD_AT", fold_at),
        life(many) as job,
    ):
        for kind, value in data.draw(actions(many)):
            job.act(kind, value)
        job.act("clock", 10)
        job.driver.drain()
        job.check()
