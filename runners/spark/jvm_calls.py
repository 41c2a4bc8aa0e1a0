"""Spark calls of every batch, in few calls into the JVM.

A call takes a part of a millisecond, and an object that it returns as long again when it is released. Spark's own wrappers
make dozens of them for a frame. Objects that every batch shares are made once for a context: columns, which are text until a
frame reads them, and the arguments of each Python function.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark import __version__ as _pyspark
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.util import PythonEvalType

from windrow.core.logs import get_logger

logger = get_logger()

#: So many lists of columns are kept, newest first.
KEPT = 64
#: Functions that are larger travel as Spark's broadcasts.
INLINE_BYTES = 1 << 18

#: The newest PySpark whose internals were checked. `pyproject.toml` allows no newer one.
NEWEST = (4, 3)
#: Since 4.3 a function of Python comes with what it is in SQL (nothing), and rows that are there with whether they are of a
#: checkpoint (they are not).
_SINCE_4_3 = tuple(int(n) for n in _pyspark.split(".")[:2]) >= (4, 3)

#: Plan nodes above existing rows that leave each in its partition: columns, conditions, a Python function.
_OF_EACH_ROW = ("Project", "Filter", "MapInArrow")

Mapped = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class _Known:
    """The JVM objects that batches share."""

    def __init__(self, sc: Any) -> None:
        # They must not hold the context, of which this is a value.
        self._jvm: Any = sc._jvm
        self._context = sc._jsc.sc()
        #: The host of each executor, by its number.
        self._hosts: dict[str, str] = {}
        self._gateway: Any = sc._gateway
        self._lock = threading.RLock()
        self._columns: OrderedDict[tuple[str, ...], Any] = OrderedDict()
        self._types: dict[str, Any] = {}
        self._converted: tuple[dict[str, str], list[str]] | None = None
        self._with_each: tuple[Any, Any, Any] = (None, None, None)
        jvm = self._jvm
        self._to_seq = jvm.PythonUtils.toSeq
        catalyst = jvm.org.apache.spark.sql.catalyst.plans.physical
        #: That all rows are in one place.
        self.whole = getattr(getattr(catalyst, "SinglePartition$"), "MODULE$")
        self._none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        execution = jvm.org.apache.spark.sql.execution
        self._rdd, self._scan = execution.LogicalRDD, execution.RDDScanExec
        self._map_in_arrow = execution.python.MapInArrowExec
        self._coalesced = jvm.org.apache.spark.rdd.CoalescedRDD
        self._coalesced_partition = jvm.org.apache.spark.rdd.CoalescedRDDPartition
        self._some: dict[str, Any] = {}
        self._itself: dict[int, Any] = {}
        #: The type of an RDD's rows, as Scala asks for it.
        self.of_rows = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").Any()
        self._datasets = getattr(getattr(jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
        self._simple = jvm.SimplePythonFunction
        self._python = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
        self._of_python = jvm.org.apache.spark.sql.execution.python.UserDefinedPythonFunction

    def columns(self, texts: tuple[str, ...]) -> Any:
        """Return a Seq of columns, each from SQL text."""
        with self._lock:
            columns = self._columns.pop(texts, None)
            if columns is None:
                columns = self._to_seq([F.expr(text)._jc for text in texts])
            self._columns[texts] = columns
            while len(self._columns) > KEPT:
                self._columns.popitem(last=False)
            return columns

    def function(
        self, sc: Any, pickled: bytes, kind: T.StructType, eval_type: int, held: Sequence[Any]
    ) -> Any:
        """Return a Python function as a Spark object. held: the broadcasts that it uses"""
        setup = (dict(sc.environment), list(sc._python_includes))
        if setup != self._converted:
            environment = self._jvm.java.util.HashMap()
            for name, value in setup[0].items():
                environment.put(name, value)
            includes = self._jvm.java.util.ArrayList()
            for path in setup[1]:
                includes.add(path)
            self._converted, self._with_each = setup, (environment, includes, self._jvm.java.util.ArrayList())
        environment, includes, broadcasts = self._with_each
        if held:
            broadcasts = self._jvm.java.util.ArrayList()
            for broadcast in held:
                broadcasts.add(broadcast)
        name = kind.json()
        if name not in self._types:
            self._types[name] = self._jvm.org.apache.spark.sql.types.DataType.fromJson(name)
        simple = self._simple(
            bytearray(pickled),
            environment,
            includes,
            sc.pythonExec,
            sc.pythonVer,
            broadcasts,
            sc._javaAccumulator,
        )
        in_sql: tuple[Any, ...] = ([], []) if _SINCE_4_3 else ()
        return self._of_python("windrow", simple, self._types[name], eval_type, True, *in_sql)

    def has_python(self, jdf: Any) -> bool:
        """See the function of this name."""
        return bool(jdf.queryExecution().analyzed().containsPattern(self._python))

    def each_whole(self, jdf: Any, partitions: int | None) -> Any | None:
        """See `each_partition`."""
        # A plan with `df.cache()` holds its cache: read anew it may be other rows.
        plan, above = jdf.queryExecution().withCachedData(), []
        while (kind := plan.nodeName()) in _OF_EACH_ROW:
            above.append(plan)
            plan = plan.child()
        if kind != "LogicalRDD" or (partitions is not None and plan.rdd().getNumPartitions() > partitions):
            return None
        session = jdf.sparkSession()
        rows = plan.rdd(), self.whole, plan.outputOrdering(), False, plan.stream()
        checkpointed = (False,) if _SINCE_4_3 else ()
        whole = self._rdd(plan.output(), *rows, session, self._none, self._none, *checkpointed)
        for node in reversed(above):
            whole = self.above(node, whole)
        return self._datasets.ofRows(session, whole)

    def above(self, node: Any, child: Any) -> Any:
        """Return a plan node over another one."""
        return node.withNewChildren(self._to_seq([child]))

    def scan(self, leaf: tuple[Any, Any, Any, Any], rdd: Any, stream: Any) -> Any:
        """Return the plan node that scans existing rows. leaf: output, name, partitioning, ordering."""
        output, name, partitioning, ordering = leaf
        return self._scan(output, rdd, name, partitioning, ordering, stream)

    def placed(self, node: Any, locations: Sequence[str]) -> Any:
        """Return a node of the rows of `node`, whose partitions prefer these locations.

        Of Spark's RDDs that have one narrow parent, one keeps a preferred location for each partition: the one that coalesces
        partitions. Each of its partitions is one of the parent here. It computes the locations of shuffled rows, which are
        replaced before a job knows them.
        """
        rdd = node.execute()
        coalesced = self._coalesced(rdd, len(locations), self._none, self.of_rows)
        partitions = coalesced.partitions()
        for i, location in enumerate(locations):
            partitions[i] = self._coalesced_partition(i, rdd, self._one(i), self._location(location))
        leaf = node.output(), "placed", node.outputPartitioning(), node.outputOrdering()
        return self.scan(leaf, coalesced, self._none)

    def executors(self) -> list[tuple[int, str]]:
        """Return the number and host of each executor that takes tasks: of none that is lost, or is about to leave."""
        active = str(self._context.getExecutorIds().mkString("\n")).splitlines()
        if not self._hosts.keys() >= set(active):
            known = self._context.statusStore().executorList(True)
            each = (known.apply(i) for i in range(known.size()))
            self._hosts = {str(e.id()): str(e.hostPort()).rpartition(":")[0] for e in each}
        return sorted((int(number), self._hosts[number]) for number in active if number in self._hosts)

    def _one(self, number: int) -> Any:
        if number not in self._itself:
            self._itself[number] = self._gateway.new_array(self._jvm.int, 1)
            self._itself[number][0] = number
        return self._itself[number]

    def _location(self, location: str) -> Any:
        if location not in self._some:
            self._some[location] = self._jvm.scala.Some(location)
        return self._some[location]

    def map_in_arrow(self, function: Any, output: Any, child: Any) -> Any:
        """Return the plan node that runs a Python function over rows."""
        return self._map_in_arrow(function, output, child, False, self._none)


_of_contexts: WeakKeyDictionary[SparkContext, _Known | None] = WeakKeyDictionary()
#: A setting of the application: "false" leaves Spark's internals alone.
INTERNALS = "spark.windrow.internals"


def known(of: DataFrame | SparkSession) -> _Known | None:
    """Return the JVM objects of the context of a frame or session; None where only Spark's public API is used.

    That is so where the startup check fails, and where the setting `spark.windrow.internals` is "false". Batches are then
    planned one by one, and shards have no owners.
    """
    spark = of if isinstance(of, SparkSession) else of.sparkSession
    sc = spark.sparkContext
    if sc not in _of_contexts:
        wanted = (sc.getConf().get(INTERNALS) or "true").strip().lower() != "false"
        _of_contexts[sc] = _checked(spark) if wanted else None
    return _of_contexts[sc]


def is_local(spark: SparkSession) -> bool:
    """True if tasks run in the driver's JVM."""
    return (spark.sparkContext.master or "").startswith("local[")


def _checked(spark: SparkSession) -> _Known | None:
    """Return the JVM objects of a context; None where this Spark makes one of them otherwise.

    The check makes all that is made of Spark's internals, over one row that is never read.
    """
    try:
        calls = _Known(spark.sparkContext)
        rows = spark.range(0, 1, 1, 1)._jdf
        calls.columns(("id", "id as again"))
        calls.has_python(rows)
        kind = T.StructType([T.StructField("id", T.LongType())])
        function = calls.function(spark.sparkContext, b"", kind, PythonEvalType.SQL_MAP_ARROW_ITER_UDF, ())
        mapped = rows.mapInArrow(function.apply(calls.columns(("id",))), False, None)
        top = mapped.queryExecution().executedPlan()
        there = calls.placed(top.child(), ["executor_none_0"])
        calls.map_in_arrow(top.func(), top.output(), there)
        calls.above(top, there)
        if not is_local(spark):  # Spark warns there
            calls.executors()
    except (Py4JError, AttributeError, TypeError) as error:
        logger.warning(
            "windrow does not know the internals of this Spark, and uses its public API: batches take longer to plan",
            spark=spark.version,
            error=str(error),
        )
        return None
    return calls


def _known(of: DataFrame | SparkSession) -> _Known:
    """Return the JVM objects where the caller has seen that there are any."""
    calls = known(of)
    assert calls is not None
    return calls


def select(df: DataFrame, *texts: str) -> DataFrame:
    """Call `df.selectExpr(...)`."""
    calls = known(df)
    return (
        df.selectExpr(*texts)
        if calls is None
        else DataFrame(df._jdf.select(calls.columns(texts)), df.sparkSession)
    )


def grouped(df: DataFrame, by: Sequence[str], aggregates: Sequence[str]) -> DataFrame:
    """Call `df.groupBy(...).agg(...)` with SQL text."""
    calls = known(df)
    if calls is None:
        return df.groupBy(*map(F.expr, by)).agg(*map(F.expr, aggregates))
    first, *others = aggregates
    groups = df._jdf.groupBy(calls.columns(tuple(by)))
    head = calls.columns((first,)).head()
    return DataFrame(groups.agg(head, calls.columns(tuple(others))), df.sparkSession)


def each_partition(df: DataFrame, partitions: int | None) -> DataFrame | None:
    """Return the same rows, declared to Spark as one partition each: `grouped` then makes the groups of each partition.

    Groups then need no shuffle; a key's group comes once for each partition that has its rows.
    None where the frame is not a streaming query's input with chosen columns, filtered rows and results of `mapInArrow`. None
    also where some of that is cached, or where there are more than `partitions`, if that is given.
    """
    calls = known(df)
    whole = None if calls is None else calls.each_whole(df._jdf, partitions)
    return None if whole is None else DataFrame(whole, df.sparkSession)


def has_python(df: DataFrame) -> bool:
    """True if rows may pass through Python inside the frame's plan; the input of a streaming query has done so already."""
    calls = known(df)
    return calls is None or calls.has_python(df._jdf)


def repartitioned(df: DataFrame, partitions: int, by: str) -> DataFrame:
    """Call `df.repartitionById(partitions, by)`."""
    calls = known(df)
    if calls is None:
        return df.repartitionById(partitions, F.col(by))
    return DataFrame(df._jdf.repartitionById(partitions, calls.columns((by,)).head()), df.sparkSession)


def function_of(df: DataFrame, function: Mapped, kind: T.StructType) -> Any | None:
    """Return a Python function as a Spark object; None where it is large, and by the public API."""
    calls = known(df)
    if calls is None:
        return None
    sc: Any = df.sparkSession.sparkContext
    sc._pickled_broadcast_vars.clear()
    pickled = bytes(CloudPickleSerializer().dumps((function, kind)))  # type: ignore[no-untyped-call]
    broadcasts = [broadcast._jbroadcast for broadcast in sc._pickled_broadcast_vars]
    sc._pickled_broadcast_vars.clear()
    if len(pickled) > INLINE_BYTES:
        return None
    return calls.function(sc, pickled, kind, PythonEvalType.SQL_MAP_ARROW_ITER_UDF, broadcasts)


def answers_of(on_shards: DataFrame, locations: Sequence[str]) -> list[bytes]:
    """Run what `mapped` returned over the rows of each shard, at its location, and return the results."""
    calls, top = _known(on_shards), on_shards._jdf.queryExecution().executedPlan()
    there = calls.map_in_arrow(top.func(), top.output(), calls.placed(top.child(), locations))
    return [bytes(row.get(1)) for row in there.executeCollectPublic()]


def mapped(df: DataFrame, columns: Sequence[str], function: Mapped, kind: T.StructType) -> DataFrame:
    """Call `df.mapInArrow(function, kind)`. columns: those of `df`, quoted."""
    called = function_of(df, function, kind)
    if called is None:
        return df.mapInArrow(function, kind)
    applied = called.apply(_known(df).columns(tuple(columns)))
    return DataFrame(df._jdf.mapInArrow(applied, False, None), df.sparkSession)
