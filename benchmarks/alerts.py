"""Alerts, durable, beside our own windows without a status, Esper and Drools, in memory, and Flink, with RocksDB."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr
from windrow.testing import ManualClock

from .cep import SETTINGS, drools_mean, run
from .flink import Events, flink, lacking
from .harness import Context, Row, fresh, median, rate, scratch
from .sparks import PROVIDERS, SHARDS, end_session, run_to_end, session
from .spent import all_processes, measured

ROWS, COMMIT, FIRST_MS = 600_000, 20_000, 1_700_000_000_000
WINDOW_S, HIGH, LOW = 300, 82.5, 71.5
KEYS = (1, 1_000, 100_000)
SPARK_ROWS, SPARK_BATCHES, SHARE_OF_PANDAS = 600_000, 6, 3
IN_PANDAS = "transformWithStateInPandas"
QUIET, QUIET_ROUNDS, SAMPLES = 1_000_000, 15, 100
LEAST, LEAST_STATUS, SHARE_OF_OVER, MOST_MS, MOST_TO_WEBHOOK_MS = 100_000, 1_000_000, 0.5, 20.0, 50.0
#: Flink takes a tenth of the samples, Drools as many: both keep all, and judge one at a time.
SHARE_OF_FLINK, SHARE_OF_DROOLS = 10, 4
DROOLS, FLINK = f"Drools 10.1, window:time, {' '.join(SETTINGS)}", "Flink 2.2, OVER and a status, RocksDB"
ESPER = f"Esper 9, #time, {' '.join(SETTINGS)}"
START = "2013-07-01 05:00Z"


def alerts(context: Context) -> list[Row]:
    """Samples a second, of processor time, of an alert over the mean of five minutes, a sample a millisecond. Each sample is of
    a process of its own. Transitions are compared before speed."""
    n = ROWS // (10 if context.quick else 1)
    if shutil.which("mvn") is None:
        context.bar.write("alerts runs without Esper, Drools and Flink: mvn cannot be found")
    measures = [row for keys in KEYS for row in _compared(context, keys, n)]
    measures += _on_spark(context)
    samples = context.interleave({"windrow": partial(fresh, _status, n)})
    measures.append(_least("alerts: the status alone, 1,000 keys", "rows/s", LEAST_STATUS, samples))
    many = QUIET // (10 if context.quick else 1)
    measures += _quiet_ones(context, many)
    samples = context.interleave({"windrow": partial(fresh, _to_webhook, many // 10)})
    what, took = (
        f"alerts: {SAMPLES} samples, {many // 10:,} keys, to the webhook's answer",
        samples["windrow"],
    )
    bound = f"aim <= {MOST_TO_WEBHOOK_MS:g} ms"
    return [*measures, Row(what, "ms", median(took), bound=bound, meets=median(took) <= MOST_TO_WEBHOOK_MS)]


def _compared(context: Context, keys: int, n: int) -> Iterator[Row]:
    sides = {"windrow": partial(fresh, _alert, keys, n), "wr.Over": partial(fresh, _over, keys, n)}
    if shutil.which("mvn") is not None:
        sides[ESPER] = partial(fresh, _esper, keys, n)
    if keys == 1 and shutil.which("mvn") is not None:
        sides[DROOLS] = partial(fresh, _drools, n // SHARE_OF_DROOLS)
    if keys == KEYS[1] and not lacking():
        sides[FLINK] = partial(fresh, _flink, keys, n // SHARE_OF_FLINK)
    samples = context.interleave(sides)
    what, ours = f"alerts: mean of five minutes, {keys:,} keys", median(samples["windrow"])
    for side in list(sides)[1:]:
        aims = {"wr.Over": SHARE_OF_OVER if keys == KEYS[1] else None, DROOLS: 1.0, FLINK: 10.0}
        aim = aims.get(side, 1.0 if keys > 1 else None)
        yield rate(
            f"{what}, beside {side}", "samples/s", ours, median(samples[side]), side, aim=aim, samples=samples
        )
    if keys == KEYS[-1]:
        yield _least(what, "samples/s", LEAST, samples)


def _quiet_ones(context: Context, many: int) -> Iterator[Row]:
    """Milliseconds beside those of a thousand keys."""
    for what, once in (("a commit, all keys quiet", _quiet), ("an advance, no repeat is due", _waiting)):
        sides = {"windrow": partial(fresh, once, many), "1,000 keys": partial(fresh, once, 1_000)}
        samples = context.interleave(sides)
        took, few = (median(samples[side]) for side in sides)
        meets, name = took <= MOST_MS, f"alerts: {what}, {many:,} keys"
        yield Row(name, "ms", took, few, "1,000 keys", few / took, f"aim <= {MOST_MS:g} ms", meets, samples)


def _on_spark(context: Context) -> Iterator[Row]:
    """Samples a second of processor time, of all processes, of streams of Parquet files through two shards."""
    n = SPARK_ROWS // (10 if context.quick else 1)
    names = ("windrow", "wr.Over", IN_PANDAS)
    sides = {name: partial(fresh, _of_spark, name, n) for name in names}
    samples = context.interleave(sides)
    ours = median(samples["windrow"])
    what = f"alerts: mean of five minutes, {KEYS[1]:,} keys, on Spark, batches of {n // SPARK_BATCHES:,}"
    for side, aim in (("wr.Over", SHARE_OF_OVER), (IN_PANDAS, 20.0)):
        yield rate(
            f"{what}, beside {side}", "samples/s", ours, median(samples[side]), side, aim=aim, samples=samples
        )


def _least(what: str, unit: str, least: int, samples: dict[str, list[float]]) -> Row:
    ours = median(samples["windrow"])
    return Row(what, unit, ours, bound=f"aim >= {least:,}", meets=ours >= least, samples=samples)


# -- the samples ----------------------------------------------------------------------------------------------------


def _samples(keys: int, n: int) -> pa.Table:
    """Return whole numbers about a mean that rises and falls, so that alerts open and are cancelled."""
    random, places = np.random.default_rng(1), np.arange(n)
    amounts = 77 + 12 * np.sin(places / 100_000) + random.normal(0, 3, n)
    return pa.table(
        {
            "k": random.integers(0, keys, n),
            "t": pa.array((FIRST_MS + places) * 1_000).cast(pa.timestamp("us", "UTC")),
            "x": amounts.astype(np.int64),
        }
    )


def _cuts(table: pa.Table) -> list[pa.Table]:
    return [table.slice(first, COMMIT) for first in range(0, len(table), COMMIT)]


# -- the sides ------------------------------------------------------------------------------------------------------

FRAME = wr.range_between(f"-{WINDOW_S} seconds", 0, closed="right")


def _watch() -> wr.Alert:
    mean = wr.col("mean")
    return wr.Alert(
        by="k",
        event_time="t",
        frame=FRAME,
        agg={"mean": wr.avg("x")},
        when=mean > HIGH,
        until=mean < LOW,
        max_ahead=wr.forever,
    )


def _alert(keys: int, n: int) -> float:
    """Samples a second; transitions are those of the same in a loop."""
    table = _samples(keys, n)
    speed, rows = _run(_watch(), _cuts(table))
    _check("windrow", _found(rows), table)
    return speed


def _found(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return transitions and their keys: twice the millisecond, and 1 more where one cancels."""
    if "m" in rows.column_names:
        return np.column_stack([rows["m"].to_numpy(), rows["k"].to_numpy()])
    cancelled = np.array([status == "CANCEL" for status in rows["status"].to_pylist()])
    return np.column_stack([2 * _milliseconds(rows["time"]) + cancelled, rows["k"].to_numpy()])


def _mean() -> wr.Over:
    return wr.Over(by="k", event_time="t", frame=FRAME, agg={"mean": wr.avg("x")}, max_ahead=wr.forever)


def _over(keys: int, n: int) -> float:
    return _run(_mean(), _cuts(_samples(keys, n)))[0]


def _esper(keys: int, n: int) -> float:
    table = _samples(keys, n)
    times = _milliseconds(table["t"])
    events = np.column_stack([np.zeros(n, dtype=np.int64), table["k"], times, table["x"]])
    spent, changes = run("Means", events, f"{WINDOW_S} {HIGH} {LOW}")
    _check(ESPER, changes[changes[:, 0] // 2 <= times[-1]], table)
    return n / spent


def _drools(n: int) -> float:
    """Samples a second of one key, judged once a millisecond: one sample leaves as another comes."""
    table = _samples(1, n)
    times = _milliseconds(table["t"])
    events = np.column_stack([np.zeros(n, dtype=np.int64), table["k"], times, table["x"]])
    window_s = WINDOW_S // SHARE_OF_DROOLS  # so that samples leave
    spent, changes = run("Drools", events, drools_mean(window_s, HIGH, LOW), firing=1)
    _check(DROOLS, changes[changes[:, 0] // 2 <= times[-1]], table, window_s, once=True)
    return n / spent


def _flink(keys: int, n: int) -> float:
    """Samples a second; its windows are not evaluated as samples leave."""
    table = _samples(keys, n)
    span = f"PARTITION BY k ORDER BY t RANGE BETWEEN INTERVAL '{WINDOW_S - 0.001}' SECOND(3) PRECEDING AND CURRENT ROW"
    level = f"CASE WHEN mean > {HIGH} THEN 1 WHEN mean < {LOW} THEN 0 ELSE CAST(NULL AS INT) END"
    rows = "PARTITION BY k ORDER BY t ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    queries = [
        f"CREATE TEMPORARY VIEW means AS SELECT k, t, AVG(CAST(x AS DOUBLE)) OVER ({span}) AS mean FROM events",
        f"CREATE TEMPORARY VIEW levels AS SELECT k, t, LAST_VALUE({level}) OVER ({rows}) AS level FROM means",
        "SELECT k, t, level FROM (SELECT k, t, level, LAG(level) OVER (PARTITION BY k ORDER BY t) AS former FROM levels) "
        "WHERE COALESCE(level, 0) <> COALESCE(former, 0)",
    ]
    with flink() as engine:
        for _ in range(2):
            with scratch() as folder:
                os.mkdir(f"{folder}/rows")
                for i, cut in enumerate(_cuts(table)):
                    cut = cut.set_column(1, "t", cut["t"].cast(pa.timestamp("ms", "UTC")))
                    pq.write_table(cut, f"{folder}/rows/{i:05d}.parquet")
                columns = {"k": "BIGINT", "t": "TIMESTAMP", "x": "BIGINT"}
                events = Events(f"{folder}/rows", columns, 0)
                spent, rows = engine.run(events, queries, ("k", "t", "level"), folder)
    changes = rows.select((2 * rows["t"] + (rows["level"] == 0)).alias("m"), "k").to_numpy()
    _check(FLINK, changes, table, leaving=False)
    return n / spent.cpu


# -- on Spark -------------------------------------------------------------------------------------------------------


def _of_spark(side: str, n: int) -> float:
    """Samples a second of a second run. Transitions up to the last sample of each key are those of a plain loop."""
    from pyspark.sql import functions as F

    table = _samples(KEYS[1], n // (SHARE_OF_PANDAS if side == IN_PANDAS else 1))
    spark = session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS["Spark, RocksDB"])
    spent = [0.0]
    for _ in range(2):
        with scratch() as folder:
            os.mkdir(f"{folder}/in")
            size = n // SPARK_BATCHES // SHARDS
            for first in range(0, len(table), size):
                pq.write_table(table.slice(first, size), f"{folder}/in/{first:09d}.parquet")
            schema = spark.read.parquet(f"{folder}/in").schema
            stream = (
                spark.readStream.schema(schema).option("maxFilesPerTrigger", SHARDS).parquet(f"{folder}/in")
            )
            function = None
            if side == IN_PANDAS:
                rows = stream.select("k", (F.unix_micros("t") / 1_000).cast("long").alias("t"), "x")
                by_key = rows.groupBy("k").transformWithStateInPandas(
                    _in_pandas(), "m LONG, k LONG", "Update", "None"
                )
                writer = by_key.writeStream.outputMode("update").foreachBatch(
                    partial(_append, f"{folder}/out")
                )
            else:
                definition = _watch() if side == "windrow" else _mean()
                sink = wr.sinks.parquet(f"{folder}/out")
                function = definition.foreach_batch(f"{folder}/job", sink=sink, shards=SHARDS)
                writer = stream.writeStream.foreachBatch(function)
            with measured(all_processes) as spent_now:
                run_to_end(writer, function, folder)
            spent.append(spent_now.cpu)
            if side != "wr.Over":
                _check(side, _found(pq.read_table(f"{folder}/out")), table, of_keys=True)
    end_session()
    return len(table) / spent[-1]


def _append(path: str, rows: Any, number: int) -> None:
    rows.write.mode("append").parquet(path)


def _in_pandas() -> Any:
    """Return the same alert as a processor of transformWithStateInPandas: a deque of samples, and their sum."""
    from collections import deque

    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    window_ms, high, low = 1_000 * WINDOW_S, HIGH, LOW

    class Means(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("state", "samples BINARY, is_open BOOLEAN")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            former, is_open = self.state.get() or (b"", False)
            samples = deque(map(tuple, np.frombuffer(former, np.int64).reshape(-1, 2).tolist()))
            total, moments = sum(x for _, x in samples), []
            batch = pd.concat(list(rows)).sort_values("t", kind="stable")
            for t, x in zip(batch["t"].tolist(), batch["x"].tolist(), strict=True):
                while samples and samples[0][0] + window_ms <= t:
                    left, value = samples.popleft()
                    total -= value
                    mean = total / len(samples) if samples else (low + high) / 2
                    if mean < low if is_open else mean > high:
                        moments.append(2 * (left + window_ms) + is_open)
                        is_open = not is_open
                samples.append((t, x))
                total += x
                mean = total / len(samples)
                if mean < low if is_open else mean > high:
                    moments.append(2 * t + is_open)
                    is_open = not is_open
            self.state.update((np.array(samples, np.int64).tobytes(), is_open))
            yield pd.DataFrame({"m": moments, "k": [key[0]] * len(moments)})

        def close(self) -> None: ...

    return Means()


def _milliseconds(times: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    milliseconds: npt.NDArray[np.int64] = times.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
    return milliseconds


def _status(n: int) -> float:
    """Rows a second of a status over rows as they come."""
    x = wr.col("x")
    watch = wr.Alert(by="k", event_time="t", when=x > 90, until=x < 70, max_ahead=wr.forever)
    return _run(watch, _cuts(_samples(1_000, n)))[0]


def _run(definition: Any, cuts: list[pa.Table]) -> tuple[float, pa.Table]:
    """Return rows a second of a second run, and its rows."""
    for _ in range(2):
        with scratch() as folder:
            begin = time.process_time()
            with definition.open(f"{folder}/job", sink=wr.sinks.parquet(f"{folder}/rows")) as op:
                for cut in cuts:
                    op.add_messages(cut)
                    op.next_offsets()
            spent = time.process_time() - begin
            rows = pq.read_table(f"{folder}/rows")
    return sum(map(len, cuts)) / spent, rows


def _check(
    side: str,
    changes: npt.NDArray[np.int64],
    table: pa.Table,
    window_s: int = WINDOW_S,
    *,
    leaving: bool = True,
    once: bool = False,
    of_keys: bool = False,
) -> None:
    """Compare transitions with those of a plain loop.

    leaving: windows are evaluated as samples leave, too. once: only after all that happens in a millisecond. of_keys: those up
    to the last sample of each key
    """
    expected, ours = _expected(table, window_s, leaving, once), {(int(a), int(b)) for a, b in changes}
    if of_keys:
        last = dict(zip(table["k"].to_pylist(), _milliseconds(table["t"]).tolist(), strict=True))
        expected, ours = ({(m, k) for m, k in of if m // 2 <= last[k]} for of in (expected, ours))
    assert ours == expected, (
        f"{side} has {len(ours):,} transitions, of {len(expected):,} {len(ours & expected):,}"
    )


def _expected(table: pa.Table, window_s: int, leaving: bool, once: bool) -> set[tuple[int, int]]:
    keys, times = table["k"].to_numpy(), _milliseconds(table["t"])
    amounts, last = table["x"].to_numpy(), int(times[-1])
    order = np.argsort(keys, kind="stable")
    expected = set()
    for places in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        leaves = times[places] + 1_000 * window_s
        moments = np.r_[leaves, times[places]]
        changes = np.r_[-amounts[places], amounts[places]]
        many = np.r_[np.full(len(places), -1), np.ones(len(places), dtype=np.int64)]
        by_time = np.argsort(moments, kind="stable")  # what leaves comes first
        sums, counts = np.cumsum(changes[by_time]), np.cumsum(many[by_time])
        is_open = False
        means = np.divide(sums, counts, out=np.full(len(sums), (HIGH + LOW) / 2), where=counts > 0)
        outside = (means > HIGH) | (means < LOW)
        if not leaving:
            outside &= by_time >= len(places)
        if once:
            outside[:-1] &= moments[by_time][1:] != moments[by_time][:-1]
        outside = np.flatnonzero(outside)
        for place in outside.tolist():
            moment, rises = int(moments[by_time[place]]), bool(means[place] > HIGH)
            if moment <= last and is_open != rises:
                is_open = rises
                expected.add((2 * moment + (not rises), int(keys[places[0]])))
    return expected


# -- much state, little work ----------------------------------------------------------------------------------------


def _quiet(keys: int) -> float:
    """Milliseconds of a commit of one sample."""
    watch = wr.Alert(
        by="k",
        event_time="t",
        frame="1 hour",
        agg={"mean": wr.avg("x")},
        when=wr.col("mean") > 100,
        max_ahead=wr.forever,
    )

    def once(op: Any, clock: ManualClock, second: int) -> None:
        op.add_messages(_of_keys(np.array([5]), second))
        op.next_offsets()

    return _repeated(watch, keys, once)


def _waiting(keys: int) -> float:
    """Milliseconds of an advance of `now` while a repeat of each key waits."""
    actions = {"mail": wr.Action(repeat=wr.every("6 hours"))}
    watch = wr.Alert(by="k", event_time="t", when=wr.col("x") > 0, actions=actions, max_ahead=wr.forever)

    def once(op: Any, clock: ManualClock, second: int) -> None:
        op.timeout()
        op.next_offsets()

    return _repeated(watch, keys, once)


def _of_keys(keys: npt.NDArray[np.int64], second: int) -> pa.Table:
    times = pa.array(np.full(len(keys), 1_372_654_800 + second) * 1_000_000).cast(pa.timestamp("us", "UTC"))
    return pa.table({"k": keys, "t": times, "x": np.full(len(keys), 5)})


def _repeated(watch: wr.Alert, keys: int, once: Callable[[Any, ManualClock, int], None]) -> float:
    """Return the median of its milliseconds of processor time, when each key has come."""
    clock, took = ManualClock(START), list[float]()
    with scratch() as folder:
        sink = wr.sinks.parquet(f"{folder}/rows")
        with watch.open(f"{folder}/job", sink=sink, clock=clock) as op:
            for first in range(0, keys, 50_000):
                op.add_messages(_of_keys(np.arange(first, min(first + 50_000, keys)), 0))
                op.next_offsets()
            for second in range(1, QUIET_ROUNDS):
                clock.advance("1 second")
                begin = time.process_time()
                once(op, clock, second)
                took.append(1_000 * (time.process_time() - begin))
    return median(took)


class _Answers(BaseHTTPRequestHandler):
    """A receiver that answers at once."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return None


def _to_webhook(keys: int) -> float:
    """Milliseconds by the clock from `add_messages` of samples of which one opens an alert to the answer of the receiver."""
    x = wr.col("mean")
    watch = wr.Alert(
        by="k", event_time="t", frame="1 hour", agg={"mean": wr.avg("x")}, when=x > 10, max_ahead=wr.forever
    )
    server, took = ThreadingHTTPServer(("127.0.0.1", 0), _Answers), list[float]()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with scratch() as folder:
        hook = wr.sinks.webhook(f"http://127.0.0.1:{server.server_port}/")
        with watch.open(f"{folder}/job", sink=hook, clock=ManualClock(START)) as op:
            for first in range(0, keys, 50_000):
                op.add_messages(_of_keys(np.arange(first, min(first + 50_000, keys)), 0))
                op.next_offsets()
            for second in range(1, QUIET_ROUNDS):
                rows = _of_keys(np.arange(second * SAMPLES, (second + 1) * SAMPLES), second)
                values = np.r_[100, np.full(SAMPLES - 1, 5)]
                begin = time.perf_counter()
                op.add_messages(rows.set_column(2, "x", pa.array(values)))
                op.next_offsets()
                took.append(1_000 * (time.perf_counter() - begin))
    server.shutdown()
    server.server_close()
    return median(took)
