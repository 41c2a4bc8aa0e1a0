"""What every operator has to hold, whatever it does: tried with the cases that its folder gives.

WINDROW_DEEP=1 runs many more examples.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.contract import PUBLISHED, Operator, life, same
from windrow.testing import CommitPoint

HERE = Path(__file__).parent
FOUND: list[str] = sorted(file.parent.name for file in HERE.glob("*/cases.py"))
OPERATORS: dict[str, Operator] = {
    name: importlib.import_module(f"tests.operators.{name}.cases").OPERATOR for name in FOUND
}
DEATHS = [None, PUBLISHED, *CommitPoint]


def actions(operator: Operator) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """What may happen to a job, in any order."""
    feed = st.tuples(st.just("feed"), st.lists(operator.rows, min_size=1, max_size=10))
    one = st.one_of(
        feed,
        feed,
        st.tuples(st.just("watermark"), st.sampled_from([0, 1, 2, 3, 5, 12])),
        st.tuples(st.just("clock"), st.integers(0, 6)),
        st.tuples(st.just("commit"), st.none()),
        st.tuples(st.just("die"), st.tuples(st.sampled_from(DEATHS), st.integers(1, 4))),
    )
    return st.lists(one, min_size=3, max_size=10)


@pytest.mark.proves("Operators: deduplication, and functions of your own over keyed state and timers")
@pytest.mark.parametrize("name", FOUND)
@given(data=st.data())
@examples(40, deep=2_000)
def test_an_operator_tells_what_its_oracle_says_however_it_is_fed_cut_and_killed(
    name: str, data: st.DataObject
) -> None:
    operator = OPERATORS[name]
    with life(data.draw(operator.cases)) as job:
        for kind, value in data.draw(actions(operator)):
            job.act(kind, value)
        job.check()
        job.driver.drain()
        job.die(data.draw(st.sampled_from(DEATHS)), 3)
        job.driver.drain()
        wanted = job.check()
        event(f"{name}: {'some' if wanted.rows else 'no'} rows, {'some' if wanted.letters else 'no'} letters")


@pytest.mark.parametrize("name", FOUND)
def test_a_reader_sees_what_the_operator_told(name: str, tmp_path: Path) -> None:
    operator = OPERATORS[name]
    definition = operator.one.definition
    with definition.open(str(tmp_path), schema=operator.one.schema) as op:
        for row in operator.messages:
            op.add_messages([operator.one.message(row, row["v"])])
            op.next_offsets()
        op.drain()
        rows, letters = op.get_result(), op.dead_letters()
    with wr.read_state(str(tmp_path), definition=definition) as state:
        assert list(definition.values(state.panes(), state.job)) == rows
        assert state.dead_letters() == letters


@pytest.mark.spark
@pytest.mark.parametrize("name", FOUND)
def test_spark_tells_what_the_embedded_operator_tells(name: str, tmp_path: Path, spark: Any) -> None:
    operator = OPERATORS[name]
    definition, schema = operator.one.definition, operator.one.schema
    payloads = [operator.one.message(row, row["v"]).payload for row in operator.messages]
    table = pa.Table.from_pylist([dict(p) for p in payloads], schema)
    with definition.open(str(tmp_path)) as op:
        op.add_messages(table)
        op.drain()
        rows = op.get_result()
    told = definition.apply(spark.createDataFrame(table)).toArrow()
    found = [
        (r.pop("pane")["timing"], {n: v for n, v in r.items() if n != "commit"}) for r in told.to_pylist()
    ]
    same(sorted(found, key=repr), sorted(((r.timing.value, r.values) for r in rows), key=repr))
