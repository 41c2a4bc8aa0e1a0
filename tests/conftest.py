"""Settings of all tests: their marks, their time limit, and the groups that share a process.

A test that waits for ever is stopped, naming itself. `make test` shares the tests among processes: those that need a session of
Spark stay together, with a broker in one room and without one in another, and begin first; the others of a file do. What waits
for brokers and other processes comes beside what computes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.deep import DEEP
from tests.spark import classes

# A slow machine is not a wrong result. What `make test` says of a commit must not depend on luck: it tries the same examples
# each time, `make test-deep` others each time.
settings.register_profile(
    "windrow",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not DEEP,
)
settings.load_profile("windrow")

HERE = Path(__file__).parent
#: For tests that start Spark, a broker or many processes, on a busy machine; with the fixtures that they are first to need.
LONG_S = 1200
#: What shares a session of Spark, the longest first.
ROOMS = ("kafka and spark", "spark")
#: Processes that compute let those with a room, and those that wait, go first: a room is one process's to the end, and would
#: be all that runs then.
NICE = 5
#: Tests marked so, and those of files with `subprocess`, have to do with processes and servers that are not theirs alone: they
#: are tried twice, and pytest names those that needed it. Each of these is a race to be found; a refused commit finds none.
OUTSIDE = {"spark", "kafka", "slow"}
EXAMPLES = "tests/examples/"
#: Folders whose tests wait more than they compute. Were all processes there at once, no core would have anything to do: while
#: so many are, the others take something else, for as long as there is something else.
WAITING, AT_ONCE = ("drills", "kafka"), 2
#: They come next, and then folders that take longest.
LONGEST = (*WAITING, "examples", "simulation", "operators", "proof", "oracle", "embedded")
#: Fixtures that tell what a test starts, which is what it is marked with.
STARTS = {"spark": "spark", "kafka": "kafka", "kafka_image": "kafka"}
#: A file system in memory: tests write there where it has so much room, and else wait for the disk.
MEMORY, ROOM_BYTES = "/dev/shm", 4 << 30
#: Half of what Spark costs in a JVM that soon ends is compiling well what it runs; it looks through its 48 MB of compiled code
#: again and again for what could go, and collects all garbage whenever it has loaded more classes. Hadoop runs `chmod` for each
#: of its files.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:ReservedCodeCacheSize=256m -XX:SweeperThreshold=25 -XX:MetaspaceSize=256m "
    "-Djdk.lang.Process.launchMechanism=VFORK"
)
#: Spark forks its Python workers from a process that has imported what they need.
WORKERS, READY = HERE / "spark" / "workers", "--conf spark.python.daemon.module=ready_workers pyspark-shell"
#: How Spark runs a plan: read, and compiled as it is for users. To compile plans that a few rows go through is an eighth of
#: what all costs, and their expressions a twentieth more. Tests with the fixture `compiled` and examples that are run as
#: programs have Spark's default.
READ = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
READING = " ".join([*(f"--conf {name}={value}" for name, value in READ.items()), READY])
#: The tests that go first, in a process that has run no other.
FIRST = pytest.StashKey[set[str]]()
#: A folder of all processes of one run.
RUN = "WINDROW_TEST_RUN"


def pytest_configure(config: pytest.Config) -> None:
    if "TMPDIR" not in os.environ and os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ["TMPDIR"] = MEMORY  # also of the processes that tests start
        tempfile.tempdir = None
    os.environ.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED + classes.options())
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", READING)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(WORKERS), os.environ.get("PYTHONPATH"))))
    gc.disable()  # what is collected stays: to look through it again and again is a sixth of what it costs
    if not hasattr(config, "workerinput"):
        os.environ[RUN] = tempfile.mkdtemp(prefix="windrow-run-")
        home = Path(os.environ[RUN], "spark")  # executors write there
        if "SPARK_HOME" not in os.environ and (shared := classes.home()) is not None:
            home.mkdir()
            for name in classes.HOME:
                (home / name).symlink_to(shared / name)
            os.environ["SPARK_HOME"] = str(home)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(RUN), ignore_errors=True)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session of Spark of all tests in this process, for as long as its JVM is there (`pytest_runtest_setup`)."""
    from py4j.protocol import Py4JError

    from tests.spark.conftest import forget, forking, is_gone, session

    with forking():
        made = session()
        yield made
        # A JVM that is gone cannot be stopped: who needed it has failed.
        with contextlib.suppress(ConnectionError, Py4JError):
            made.stop()
        if is_gone(made):
            forget(made)


@pytest.fixture(scope="module")
def compiled(spark: Any) -> Iterator[None]:
    """Plans of a module are compiled, as they are for users."""
    from py4j.protocol import Py4JError

    for name, value in COMPILED.items():
        spark.conf.set(name, value)
    yield
    with contextlib.suppress(ConnectionError, Py4JError):
        for name, value in READ.items():
            spark.conf.set(name, value)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Who is tried again when a JVM has ended, and all after it, have another. What computes lets others go first."""
    first = item.config.stash.get(FIRST, None)
    if first is not None and item.nodeid not in first:
        del item.config.stash[FIRST]
        os.nice(NICE)
    fixtures = getattr(item, "_fixtureinfo", None)
    for fixture in fixtures.name2fixturedefs.get("spark", ()) if fixtures else ():
        made = fixture.cached_result[0] if fixture.cached_result else None
        if made is not None:
            from tests.spark.conftest import is_gone

            if is_gone(made):
                fixture.finish(item._request)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True, scope="session")
def one_slice_a_commit() -> Iterator[None]:
    """Make snapshots by the count of commits alone, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windrow.runners.embedded.engine.TIDY_SHARE", 0.0)
        yield


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    """Undo a test's changes of logging: other tests listen to warnings."""
    configured, level = structlog.is_configured(), logging.getLogger("windrow").level
    yield
    if structlog.is_configured() and not configured:
        structlog.reset_defaults()
    logging.getLogger("windrow").setLevel(level)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in {STARTS[name] for name in STARTS if name in getattr(item, "fixturenames", ())}:
            item.add_marker(mark)
        marks = {mark.name for mark in item.iter_markers()}
        if marks & {"spark", "kafka", "slow"} and "timeout" not in marks:
            item.add_marker(pytest.mark.timeout(LONG_S))
        if not DEEP and (marks & OUTSIDE or hasattr(getattr(item, "module", None), "subprocess")):
            item.add_marker(pytest.mark.flaky(reruns=1))
    rooms = rooms_of(items)
    rank = {room: n for n, room in enumerate((*ROOMS, *LONGEST))}
    folders = {path: path.relative_to(HERE).parts[0] for path in {item.path for item in items}}
    items.sort(
        key=lambda item: min(rank.get(n, len(rank)) for n in (rooms.get(item.nodeid), folders[item.path]))
    )
    if items and "PYTEST_XDIST_WORKER" in os.environ:
        items[0].config.stash[FIRST] = {*rooms, *(item.nodeid for item in items if waits(item.nodeid))}
        Path(os.environ[RUN], "rooms.json").write_text(json.dumps(rooms))


def pytest_collection_finish() -> None:
    """Thousands of tests are there to the end: who collects garbage need not look at them again and again.

    What tests leave in circles is little: to look for it every 700 objects is an eighth of what they cost. To look for
    what is left of collecting them takes a third of a second, in each process.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def waits(nodeid: str) -> bool:
    return nodeid.startswith(tuple(f"tests/{folder}/" for folder in WAITING))


def rooms_of(items: list[pytest.Item]) -> dict[str, str]:
    """The room of each test that shares a session of Spark: it has the fixture, or asks for it in a file of such tests."""
    needs = {item: set(getattr(item, "fixturenames", ())) for item in items}
    files = {file_of(item) for item in items if "spark" in needs[item]}
    return {
        item.nodeid: ROOMS[not needs[item] & {"kafka", "kafka_image"}]
        for item in items
        if "spark" in needs[item] or (file_of(item) in files and item.get_closest_marker("spark"))
    }


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByRoom(LoadScopeScheduling):
        rooms: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.rooms is None:  # the tests are collected, and by a worker
                self.rooms = json.loads(Path(os.environ[RUN], "rooms.json").read_text())
            # A drill is a process of its own, and takes as long as a file. All examples read the same data.
            alone = nodeid if nodeid.startswith("tests/drills/") else nodeid.partition("::")[0]
            alone = EXAMPLES if nodeid.startswith(EXAMPLES) else alone
            return self.rooms.get(nodeid, alone)

        def _assign_work_unit(self, node: Any) -> None:
            there = sum(
                any(waits(scope) and not all(unit.values()) for scope, unit in work.items())
                for other, work in self.assigned_work.items()
                if other is not node
            )
            if there >= AT_ONCE:
                computes = next((scope for scope in self.workqueue if not waits(scope)), None)
                if computes is not None:
                    self.workqueue.move_to_end(computes, last=False)
            super()._assign_work_unit(node)

    return ByRoom(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if "broker" in getattr(node, "workeroutput", {}):
        node.config.pluginmanager.get_plugin("terminalreporter").write_line(node.workeroutput["broker"])
