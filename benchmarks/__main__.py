"""`make bench`: run the benchmarks, print ratios, write them as JSON."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib.metadata import version

from tests.kafka.spark_jars import jars

from . import sparks
from .alerts import alerts
from .big_batch import big_batch
from .cluster import cluster
from .driver import driver
from .embedded import embedded, full_state
from .firing import firing, firing_many
from .harness import quiet, run, table, write
from .joins import joins
from .kafka import kafka
from .kept import kept
from .latency import latency
from .nexmark import NEXMARK, nexmark
from .one_by_one import one_by_one
from .over import over
from .page import page, page_memory
from .rules import rules
from .sessions import sessions
from .shards import shards
from .soak import soak, soak_kafka
from .state import memory, purge, replay, restore
from .throughput import throughput
from .update import update

BENCHMARKS = {
    "throughput": throughput,
    "joins": joins,
    "kafka": kafka,
    "latency": latency,
    "embedded": embedded,
    "sessions": sessions,
    "full-state": full_state,
    "over": over,
    "rules": rules,
    "alerts": alerts,
    "update": update,
    "firing": firing,
    "one-by-one": one_by_one,
    "restore": restore,
    "replay": replay,
    "kept": kept,
    "purge": purge,
    "driver": driver,
    "memory": memory,
}
#: Those that take so long that they run only where they are named.
NAMED = {
    "big-batch": big_batch,
    "cluster": cluster,
    "shards": shards,
    "firing-20m": firing_many,
    "nexmark": nexmark,
    "page": page,
    "page-memory": page_memory,
    **NEXMARK,
    "soak": soak,
    "soak-kafka": soak_kafka,
}
RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"which; default all of {', '.join(BENCHMARKS)}; and {', '.join(NAMED)}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="little data, one round: only to see that it works"
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of each side, interleaved (default 3, with --quick 1)"
    )
    parser.add_argument(
        "--commits", type=int, help="how many commits a soak lives (default 100,000), or a page (10,000)"
    )
    parser.add_argument("--events", type=int, help="how many events Nexmark has (default 5,000,000)")
    parser.add_argument("--keys", type=int, help="how many keys a cluster has (default 1,000,000)")
    parser.add_argument("--kafka", action="store_true", help="soak with the log in Kafka too")
    parser.add_argument("--out", help="where the JSON goes (default benchmarks/results/<full or quick>.json)")
    chosen = parser.parse_args(arguments)
    if chosen.kafka:
        chosen.names += ["soak-kafka"]
    known = BENCHMARKS | NAMED
    unknown = sorted(set(chosen.names) - set(known))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    quiet()
    names = chosen.names or list(BENCHMARKS)
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    if "kafka" in names:
        sparks.JARS += jars()
    sizes = {"commits": chosen.commits, "events": chosen.events, "keys": chosen.keys}
    rows = run({n: known[n] for n in names}, quick=chosen.quick, rounds=rounds, **sizes)
    out = chosen.out or os.path.join(RESULTS, "quick.json" if chosen.quick else "two-cores.json")
    about = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{p: version(p) for p in ("pyspark", "pyarrow", "rocksdict", "polars")},
    }
    write(rows, out, about)
    if len(names) > 1:
        print(table(rows))
    # A little data meets no bound and misses none.
    return int(not chosen.quick and any(r.bound.startswith("required") and r.meets is False for r in rows))


if __name__ == "__main__":
    sys.exit(main())
