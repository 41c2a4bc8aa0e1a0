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
from pyspark import SparkContext
from pyspark import __version__ as _pyspark
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.util import PythonEvalType

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
        #: The type of an RDD's rows, as Scala asks for it.
        self.of_rows = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").Any()
        self._datasets = getattr(getattr(jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
        self._simple = jvm.SimplePythonFunction
        #: An array as text: of its items each is a call of its own.
        self.shown = jvm.java.util.Arrays.toString
        self._python = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
        self._of_python = jvm.org.apache.spark.sql.execution.python.UserDefinedPythonFunction

    def columns(self, texts: tuple[str, ...]) -> Any:
        """Return a Seq of columns, each from SQL text."""
        with self._lock:
            found = self._columns.pop(texts, None)
            if found is None:
                found = self._to_seq([F.expr(text)._jc for text in texts])
            self._columns[texts] = found
            while len(self._columns) > KEPT:
                self._columns.popitem(last=False)
            return found

    def function(
        self, sc: Any, pickled: bytes, kind: T.StructType, eval_type: int, held: Sequence[Any]
    ) -> Any:
        """Return a Python function as a Spark object. held: the broadcasts that it uses"""
        given = (dict(sc.environment), list(sc._python_includes))
        if given != self._converted:
            environment = self._jvm.java.util.HashMap()
            for name, value in given[0].items():
                environment.put(name, value)
            includes = self._jvm.java.util.ArrayList()
            for path in given[1]:
                includes.add(path)
            self._converted, self._with_each = given, (environment, includes, self._jvm.java.util.ArrayList())
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

    def map_in_arrow(self, function: Any, output: Any, child: Any) -> Any:
        """Return the plan node that runs a Python function over rows."""
        return self._map_in_arrow(function, output, child, False, self._none)


_of_contexts: WeakKeyDictionary[SparkContext, _Known] = WeakKeyDictionary()


def known(of: DataFrame | SparkSession) -> _Known:
    """Return the JVM objects of the context of a frame or session."""
    sc = (of if isinstance(of, SparkSession) else of.sparkSession).sparkContext
    if sc not in _of_contexts:
        _of_contexts[sc] = _Known(sc)
    return _of_contexts[sc]


def select(df: DataFrame, *texts: str) -> DataFrame:
    """Call `df.selectExpr(...)`."""
    return DataFrame(df._jdf.select(known(df).columns(texts)), df.sparkSession)


def grouped(df: DataFrame, by: Sequence[str], aggregates: Sequence[str]) -> DataFrame:
    """Call `df.groupBy(...).agg(...)` with SQL text."""
    ours = known(df)
    first, *others = aggregates
    groups = df._jdf.groupBy(ours.columns(tuple(by)))
    head = ours.columns((first,)).head()
    return DataFrame(groups.agg(head, ours.columns(tuple(others))), df.sparkSession)


def each_partition(df: DataFrame, partitions: int | None) -> DataFrame | None:
    """Return the same rows, declared to Spark as one partition each: `grouped` then makes the groups of each partition.

    Groups then need no shuffle; a key's group comes once for each partition that has its rows.
    None where the frame is not a streaming query's input with chosen columns, filtered rows and results of `mapInArrow`. None
    also where some of that is cached, or where there are more than `partitions`, if that is given.
    """
    whole = known(df).each_whole(df._jdf, partitions)
    return None if whole is None else DataFrame(whole, df.sparkSession)


def has_python(df: DataFrame) -> bool:
    """True if rows pass through Python inside the frame's plan; the input of a streaming query has done so already."""
    return known(df).has_python(df._jdf)


def repartitioned(df: DataFrame, partitions: int, by: str) -> DataFrame:
    """Call `df.repartitionById(partitions, by)`."""
    return DataFrame(df._jdf.repartitionById(partitions, known(df).columns((by,)).head()), df.sparkSession)


def function_of(df: DataFrame, function: Mapped, kind: T.StructType) -> Any | None:
    """Return a Python function as a Spark object; None where it is large."""
    sc: Any = df.sparkSession.sparkContext
    sc._pickled_broadcast_vars.clear()
    pickled = bytes(CloudPickleSerializer().dumps((function, kind)))  # type: ignore[no-untyped-call]
    broadcasts = [broadcast._jbroadcast for broadcast in sc._pickled_broadcast_vars]
    sc._pickled_broadcast_vars.clear()
    if len(pickled) > INLINE_BYTES:
        return None
    return known(df).function(sc, pickled, kind, PythonEvalType.SQL_MAP_ARROW_ITER_UDF, broadcasts)


def mapped(df: DataFrame, columns: Sequence[str], function: Mapped, kind: T.StructType) -> DataFrame:
    """Call `df.mapInArrow(function, kind)`. columns: those of `df`, quoted."""
    called = function_of(df, function, kind)
    if called is None:
        return df.mapInArrow(function, kind)
    applied = called.apply(known(df).columns(tuple(columns)))
    return DataFrame(df._jdf.mapInArrow(applied, False, None), df.sparkSession)
