"""Cache of Spark plans that run a function over the rows of each shard, for all batches that come alike.

Each batch of a query has other rows under the same columns, and the same transformations before rows cross. To analyze,
optimize and plan them again takes a twentieth of a batch of half a million rows, in which every core waits. So the cache
keeps the plan without rows, and inserts those of each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from windrow.core.logs import get_logger
from windrow.runners.spark import jvm_calls

logger = get_logger()


class Planned:
    """The plan of a function over rows that are there. Make it with `planned`."""

    def __init__(self, nodes: Sequence[Any], rows: DataFrame) -> None:
        top, *between, leaf = nodes
        calls = jvm_calls.known(rows)
        assert calls is not None
        self._calls, self._session = calls, rows._jdf.sparkSession()
        self._output, self._arguments = top.output(), top.func().children()
        self._leaf = leaf.output(), leaf.name(), leaf.outputPartitioning(), leaf.outputOrdering()
        # Nodes hold the data that they ran on, files of a shuffle too: these are copies that never run.
        nothing = self._session.sparkContext().emptyRDD(self._calls.of_rows)
        self._between = self._over(between, self._calls.scan(self._leaf, nothing, leaf.stream()))
        self._calls.map_in_arrow(
            top.func(), self._output, self._between[0]
        )  # raises where that is made otherwise

    def _over(self, between: Sequence[Any], node: Any) -> list[Any]:
        """Copy nodes, each over the one after it, the last over `node`."""
        copies = [node]
        for above in reversed(between):
            copies.insert(0, self._calls.above(above, copies[0]))
        return copies[:-1]

    def is_of(self, rows: DataFrame) -> bool:
        """True if it is of the session of these rows."""
        return bool(self._session.equals(rows._jdf.sparkSession()))

    def answers(self, rows: DataFrame, function: Any, locations: Sequence[str] | None) -> list[bytes]:
        """Run the function over another batch's rows, which have the same columns, and return its results.

        locations: where each shard's rows prefer to be, if anywhere.
        """
        plan = _there(rows)
        [first, *_] = self._over(self._between, self._calls.scan(self._leaf, plan.rdd(), plan.stream()))
        if locations is not None:
            first = self._calls.placed(first, locations)
        top = self._calls.map_in_arrow(function.builder(self._arguments), self._output, first)
        return [bytes(row.get(1)) for row in top.executeCollectPublic()]


def planned(rows: DataFrame, mapped: DataFrame, *, grouped: bool) -> Planned | None:
    """Return the plan of `mapped`, which `calls.mapped` made of `rows`. None where it joins several inputs, or where groups
    (`grouped`) were not made of each partition, so that it depends on the place of rows.
    """
    calls = jvm_calls.known(rows)
    if calls is None:
        return None
    node, nodes = mapped._jdf.queryExecution().executedPlan(), list[Any]()
    while (kind := node.getClass().getSimpleName()) != "RDDScanExec":
        nodes.append(node)
        if node.children().size() != 1 or (len(nodes) == 1) != (kind == "MapInArrowExec"):
            return None
        node = node.children().head()
    if len(nodes) < 2 or (grouped and not node.outputPartitioning().equals(calls.whole)):
        return None
    try:
        return Planned([*nodes, node], rows)
    except Py4JError as error:
        logger.warning("batches are planned each time: this Spark makes plans otherwise", error=str(error))
        return None


def are_there(rows: DataFrame, most: int | None) -> bool:
    """True if the frame is nothing but existing rows, as the input of a streaming query is, in `most` partitions."""
    plan = _there(rows)
    if plan.nodeName() != "LogicalRDD":
        return False
    return most is None or bool(plan.rdd().getNumPartitions() <= most)


def _there(rows: DataFrame) -> Any:
    # A plan with `df.cache()` holds its cache: read anew it may be other rows.
    return rows._jdf.queryExecution().withCachedData()
