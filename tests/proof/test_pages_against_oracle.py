"""Whatever the triggers, cuts and crashes: windows in pages of a key or two, folded all the time, say what the oracle says.

WINDROW_DEEP=1 runs many more examples.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from tests.proof.test_against_oracle import ACTIONS, Case, cases, messages, play
from windrow.stores import blocks, paged

MANY = st.builds(lambda row, key: {**row, "k": key}, messages(), st.sampled_from([*"abcdefghij", None]))
FED = st.one_of(
    st.tuples(st.just("feed"), st.lists(MANY, min_size=4, max_size=12)),
    st.tuples(st.just("feed"), st.lists(MANY, min_size=1, max_size=3)),
    ACTIONS,
)


@pytest.mark.proves("Windows: what a commit costs follows what changed, not what is stored")
@given(
    case=cases(),
    actions=st.lists(FED, min_size=3, max_size=14),
    page_rows=st.sampled_from([1, 2, 16]),
    fold_at=st.sampled_from([2, 16]),
)
@examples(80, deep=10_000)
def test_windows_in_small_pages_say_what_the_oracle_says(
    case: Case, actions: list[tuple[str, Any]], page_rows: int, fold_at: int
) -> None:
    with mock.patch.object(paged, "PAGE_ROWS", page_rows), mock.patch.object(blocks, "FOLD_AT", fold_at):
        play(case, [*actions, ("clock", 10), ("timeout", None), ("drain", None)])
