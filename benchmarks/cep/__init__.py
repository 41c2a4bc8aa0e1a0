"""Esper and Drools, in memory, and Flink's CEP, on RocksDB, over the same events as windrow. Jars come by Maven, once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import flink
from ..data import cache
from ..harness import scratch

_HERE = Path(__file__).parent
Longs = npt.NDArray[np.int64]
FLINK = "FlinkCep"
SETTINGS = ("-Xms1g", "-Xmx1g", "-XX:+UseSerialGC")


def run(engine: str, events: Longs, rules: str, firing: int = 1_000) -> tuple[float, Longs]:
    """Seconds of processor time of a second round in one JVM, and its matches. events: kind, id, milliseconds, amount

    rules: those of Esper one a line, of Drools a file; firing: Drools judges them after so many events
    """
    with scratch() as folder:
        jars, opened = (_jars(), ()) if engine != FLINK else (flink.jars(), flink.OPENED)
        classpath = os.pathsep.join([_classes(folder, engine), str(Path(jars, "*"))])
        paths = [Path(folder, name) for name in ("events", "rules", "matches")]
        events.astype("<i8").tofile(paths[0])
        paths[1].write_text(rules if engine != FLINK else f"{rules} {folder}/state")
        command = [
            "java",
            *SETTINGS,
            f"-Dfiring={firing}",
            *opened,
            "-cp",
            classpath,
            f"cep.{engine}",
            *map(str, paths),
        ]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return float(said.split()[-1]), np.fromfile(paths[2], dtype="<i8").reshape(-1, 2)


def esper(pairs: Sequence[tuple[int, int, bool]]) -> str:
    """Rules for Esper: orders of an amount from one figure and below another, acknowledged or not within ten seconds."""
    statements = []
    for low, high, absent in pairs:
        order = f"Placed(amount >= {low}, amount < {high})"
        if absent:
            answer = "(timer:interval(10 sec) and not Ack(id = o.id))"
            statements.append(f"select o.id as id from pattern [every o={order} -> {answer}]")
        else:
            statements.append(
                f"select o.id as id from Ack as a unidirectional, {order}#time(10 sec) as o where o.id = a.id"
            )
    return "\n".join(statements)


def drools(pairs: Sequence[tuple[int, int, bool]]) -> str:
    """The same for Drools. Both events say when they expire: what it infers for a negated one loses it too early."""
    said = [
        "package rules",
        "import cep.Events.Order",
        "import cep.Events.Ack",
        "global cep.Events.Matches matches",
    ]
    said += [f"declare {name} @role(event) @expires(30s) end" for name in ("Order", "Ack")]
    for i, (low, high, absent) in enumerate(pairs):
        order = f"$o: Order(amount >= {low}, amount < {high})"
        answer = "Ack(id == $o.id, this after[0s,10s] $o)"
        answer = f"not({answer})" if absent else answer
        said.append(f'rule "r{i}" when {order} {answer} then matches.add({i}, $o.getId()); end')
    return "\n".join(said)


def drools_mean(window_s: int, high: float, low: float) -> str:
    """Rules for Drools: an alert over the mean of the orders of so many seconds, with hysteresis. The rule without a condition
    makes the status of a round."""
    return f"""package rules
import cep.Events.Order
import cep.Status
global cep.Events.Matches matches
declare Order @role(event) end
rule "begin" when not(Status()) then insert(new Status({high}, {low})); end
rule "mean" when
    $status: Status()
    accumulate(Order($amount: amount) over window:time({window_s}s); $mean: average($amount))
then
    $status.judge($mean.doubleValue(), drools.getWorkingMemory().getSessionClock().getCurrentTime(), matches);
end
"""


def _jars() -> str:
    """The folder of the jars that pom.xml names."""
    path = Path(cache(), "cep-1")
    if not (path / "made").exists():
        command = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={path}"], check=True)
        (path / "made").touch()
    return str(path)


def _classes(folder: str, engine: str) -> str:
    """Compile an engine into a folder."""
    own, jars = (_HERE, _jars()) if engine != FLINK else (Path(flink.__file__).parent, flink.jars())
    sources = [
        str(_HERE / "Events.java"),
        *map(str, _HERE.glob("*.java") if own == _HERE else [own / f"{FLINK}.java"]),
    ]
    command = ["javac", "-cp", str(Path(jars, "*")), "-d", folder, *dict.fromkeys(sources)]
    subprocess.run(command, check=True)
    return folder
