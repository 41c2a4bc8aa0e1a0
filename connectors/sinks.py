"""Sinks of panes. A sink is idempotent on the token (job, commit): after a crash it may receive the same one again.

Publishing is step 5 of docs/explanation/commit-protocol.md: commit c+1 waits until the panes of c are out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from windrow.connectors import notifications
from windrow.connectors.manifests import Manifest, published_files, read_published
from windrow.connectors.notifications import EmailSink, RouteSink, WebhookSink
from windrow.connectors.pane_files import PaneFiles, Sink
from windrow.core import check
from windrow.core.errors import BadLocation, ConfigurationError
from windrow.core.location import local_path
from windrow.core.messages import Token
from windrow.core.time import Duration
from windrow.core.types import concat
from windrow.operators.operator import Definition

if TYPE_CHECKING:
    from windrow.connectors.kafka.cluster import Kafka
    from windrow.connectors.kafka.sink import KafkaSink


@dataclass
class MemorySink:
    """Sink that keeps panes in this process, for tests and notebooks.

    panes: the list of all that were published. tokens: what they came under
    """

    panes: list[Any] = field(default_factory=list)
    tokens: set[tuple[Token, str]] = field(default_factory=set)

    def publish(self, token: Token, panes: PaneFiles) -> None:
        if (token, panes.operator) in self.tokens:
            return
        self.panes.extend(panes.panes())
        self.tokens.add((token, panes.operator))

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


@dataclass(frozen=True)
class ConsoleSink:
    """Sink that prints panes, a line each; after a crash the last commit may be printed again.

    limit: at most so many a commit. stream: where to, by default standard output
    """

    limit: int = 20
    stream: TextIO | None = None

    def publish(self, token: Token, panes: PaneFiles) -> None:
        out = self.stream or sys.stdout
        what = "panes" if panes.letters_of is None else "letters"
        print(f"-- commit {token.commit} of {panes.operator}: {panes.rows} {what}", file=out)
        for i, pane in enumerate(panes.panes()):
            if i >= self.limit:
                print(f"   ... {panes.rows - self.limit} more", file=out)
                break
            print(f"   {pane}", file=out)

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


@dataclass(frozen=True)
class CallbackSink:
    """Sink that calls `function(panes, token)`. After a crash it may get the same token again and must be idempotent on it."""

    function: Callable[[Any, Token], None]

    def publish(self, token: Token, panes: PaneFiles) -> None:
        self.function(list(panes.panes()), token)

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


@dataclass(frozen=True)
class ParquetSink:
    """Sink to a directory of Parquet files, which are added and never changed or removed (`connectors/manifests.py`).

    Every reader may glob it at any moment: each row is in one file, and each file is whole. The files of a commit appear one
    after the other, one for each shard, so all rows of a key at once. `wr.read_panes(path)` reads whole commits.
    """

    path: str
    _opened: dict[tuple[str, str], Manifest] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __repr__(self) -> str:
        return f"wr.sinks.parquet({self.path!r})"

    def publish(self, token: Token, panes: PaneFiles) -> None:
        whose = (token.job, panes.operator)
        if whose not in self._opened:
            self._opened[whose] = Manifest(self.path, *whose).open()
        if not self._opened[whose].has(token.commit):
            self._opened[whose].add(token.commit, panes.files, panes.digests)

    def last_commit(self, job: str, operator: str) -> int | None:
        self._opened.pop((job, operator), None)  # the driver that asks begins to publish
        manifest = Manifest(self.path, job, operator).load()
        # The driver that published it may have died before its name was synced; the answer is believed for good.
        manifest.sync()
        return manifest.commit


def pane_files(path: str, operator: str | None = None) -> list[str]:
    """Return the data files of a Parquet sink that are published, in commit order. They stay as they are.

    path: that of the sink. operator: only its files
    """
    return [os.path.join(path, file.name) for file in published_files(path, operator)]


def read_panes(path: str, operator: str | None = None) -> pa.Table:
    """Read all published panes of a Parquet sink, in commit order.

    path: that of `wr.sinks.parquet`
    operator: only its panes; needed where operators of several shapes share a directory

    Gives a pyarrow Table: `window`, the keys, the aggregates, `pane`, `commit`. Raises `BadLocation` (WR112) where no such sink
    wrote there. It reads while a job writes: `wr.latest(wr.read_panes(path))` is the current pane of each (key, window).

    >>> import tempfile, windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with counts.open(f"{folder}/job", sink=wr.sinks.parquet(f"{folder}/out")) as op:
    ...         op.add_message({"t": "2013-07-01 05:10Z"})
    ...         op.drain()
    ...     wr.read_panes(f"{folder}/out").column("n").to_pylist()
    [1]
    """
    path = local_path(path, "path")
    if not os.path.isdir(path):
        raise BadLocation(
            f"{path} is not there: give the path of a wr.sinks.parquet(...), which is made with the first panes"
        )
    if os.listdir(path) and not os.path.isdir(os.path.join(path, "_manifests")):
        raise BadLocation(
            f"{path} holds files and no folder '_manifests', so no wr.sinks.parquet(...) wrote it: read it by pyarrow or Spark"
        )
    tables = [read_published(path, file) for file in published_files(path, operator)]
    return concat(tables) if tables else pa.table({})


def memory() -> MemorySink:
    """Keep panes in this process, for tests and notebooks: `sink.panes` is the list of them.

    >>> memory().panes
    []
    """
    return MemorySink()


def console(limit: int = 20) -> ConsoleSink:
    """Print panes, a line each.

    limit: at most so many a commit

    >>> console(limit=5).limit
    5
    """
    return ConsoleSink(limit)


def parquet(path: str) -> ParquetSink:
    """Write to a directory of Parquet files, read by `wr.read_panes(path)`. Each commit is there once, whatever fails.

    path: a folder of a file system, made where it is not there

    Any reader may glob `path/*.parquet` at any moment: files are added, each whole, and never changed or removed. pandas,
    pyarrow and Spark may read the folder itself, too. The files of a commit, one for each shard that has panes, appear one
    after the other; all rows of a key in a commit are in one file. A glob gives every row that was emitted: earlier panes of
    a window, and rows whose `pane.kind` is RETRACT. The current pane of each key and window is `wr.latest(...)` of them.
    Where the definition changes, or a column's type is widened, later files have other columns than earlier ones;
    `wr.read_panes` unites them. Small files are not merged: a longer trigger makes fewer. Raises `BadLocation` (WR112).

    >>> parquet("/out/delays")
    wr.sinks.parquet('/out/delays')
    """
    return ParquetSink(local_path(path, "path"))


def callback(function: Callable[[Any, Token], None]) -> CallbackSink:
    """Use a function of yours as a sink. A plain function for `sink=` is the same.

    function: called with (list of panes, token) for each commit; on Spark with (DataFrame, token). After a crash it may get
        the same token again, and must be idempotent on it

    >>> callback(lambda panes, token: None).function([], None)
    """
    return CallbackSink(function)


def kafka(topic: str, kafka: Kafka | str, **options: Any) -> KafkaSink:
    """Write to a topic, exactly once: the panes of a commit are one transaction.

    topic: its name; it is made if it is not there
    kafka: `wr.Kafka(...)`, or its servers; in tests a `windrow.testing.SimulatedKafka`
    options:
        mode: "append", every row of the panes; "upsert", for a compacted topic, the current pane of each (window, key)
        key: the column whose text is the record's key; by default the key fields as a JSON object
        encode: a function of a pyarrow Table to values, one for each row; by default each row as a JSON object
        partitions: of a topic that is made; by default the brokers' own number
        tokens: the topic that remembers which commits are out; by default `<topic>-commits`

    Readers need `isolation.level=read_committed`. Raises `ConfigurationError` (WR100), when it is used `KafkaFailed` (WR601).
    """
    from windrow.connectors.kafka.sink import kafka_sink

    return kafka_sink(topic, kafka, **options)


def route(column: str, sinks: Mapping[Any, Any], *, other: Any = None) -> RouteSink:
    """Give the rows of a commit to several sinks, by the value of a column: `wr.sinks.route("action", {"mail": ...})`.

    column: "action" of alerts, "rule" of rules, or another
    sinks: value -> sink, or a function
    other: a sink for rows of other values; without it they go nowhere, which is logged

    Raises `ConfigurationError` (WR100) where an action of the alert has no sink.

    >>> route("action", {"mail": memory()}).column
    'action'
    """
    named = tuple((value, as_sink(sink)) for value, sink in sinks.items())
    return RouteSink(check.of_type(column, str, "column", "name a column"), named, _sink_or_none(other))


def webhook(
    url: str | None = None,
    *,
    url_env: str | None = None,
    secret_env: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: Duration = "10 seconds",
    attempts: int = 5,
    undelivered: Any = None,
) -> WebhookSink:
    """Delivery is at least once, and exactly once for a receiver that honours the key: each row is a POST of JSON.

    url: of the receiver; or `url_env`, the environment variable that has it, where it holds a secret
    secret_env: the environment variable of a key: then `X-Windrow-Signature: sha256=...` is the HMAC of the body
    headers: more of them
    timeout: how long an answer may take
    attempts: how often a row is sent, with growing pauses, where the answer is 5xx, 408, 425, 429 or none
    undelivered: a sink for rows that were refused; without it the job pauses, and the commit is sent again

    `Idempotency-Key` is of job, operator, commit and row: the same whenever a row is sent again. Redirects are not followed.
    Raises `ConfigurationError` (WR100), when it is used `SinkFailed` (WR403).

    >>> webhook("https://user:pass@example.org/hook?key=1", secret_env="HOOK")
    wr.sinks.webhook('https://example.org/hook', secret_env='HOOK')
    """
    if (url is None) == (url_env is None):
        raise ConfigurationError(
            "webhook: give url=, or url_env=, the name of an environment variable that has it"
        )
    if url is not None:
        notifications.url_parts(url)
    shared = notifications.common(timeout, attempts, _sink_or_none(undelivered))
    return WebhookSink(*shared, url, url_env, secret_env, notifications.check_headers(headers or {}))


def email(
    to: str | Sequence[str],
    *,
    server: str,
    port: int = 25,
    sender: str = "windrow@localhost",
    subject: str = "[{status}] {action} {alert_id}",
    body: str | None = None,
    user_env: str | None = None,
    password_env: str | None = None,
    starttls: bool = False,
    timeout: Duration = "10 seconds",
    attempts: int = 5,
    undelivered: Any = None,
) -> EmailSink:
    """Delivery is at least once, and exactly once for a receiver that honours `Message-ID`: each row is a mail.

    to: an address, or several, which get one mail together; one that the server refuses is logged, and the others get it
    server, port, starttls: the SMTP server, and whether the connection is encrypted before anything is said
    sender: the address that it is from
    subject, body: templates over the columns of the row, `"{status}: {mean:.1f}"`; the body is all columns by default
    user_env, password_env: the environment variables of a login
    timeout, attempts, undelivered: as for `wr.sinks.webhook`

    Raises `ConfigurationError` (WR100), when it is used `SinkFailed` (WR403).

    >>> email("ops@example.org", server="localhost", password_env="SMTP_PASSWORD")
    wr.sinks.email('ops@example.org', server='localhost', password_env='SMTP_PASSWORD')
    """
    check.number(port, "port", "use a port", least=1)
    shared = notifications.common(timeout, attempts, _sink_or_none(undelivered))
    login = (user_env, password_env, check.flag(starttls, "starttls"))
    to = notifications.addresses(to)
    return notifications.check_mail(EmailSink(*shared, to, server, port, sender, subject, body, *login))


def _sink_or_none(sink: Any) -> Sink | None:
    return None if sink is None else as_sink(sink)


def check_sink(sink: Sink, definition: Definition) -> None:
    """Check, before anything runs, that a sink accepts an operator's panes."""
    check = getattr(sink, "check", None)
    if check is not None:
        check(definition)


def as_sink(sink: Any) -> Sink:
    """Return the sink, or a sink that calls the function. Raises where it is neither."""
    if all(callable(getattr(sink, verb, None)) for verb in ("publish", "last_commit")):
        return sink  # type: ignore[no-any-return]
    if isinstance(sink, Mapping):
        raise ConfigurationError(
            f"{sink!r:.200} is a dict: only sink= takes one, {{operator: sink}}. Dead letters of all operators go to one "
            "sink, and each names its operator"
        )
    if callable(sink) and not hasattr(sink, "publish") and sink not in _FACTORIES:
        return CallbackSink(sink)
    raise ConfigurationError(
        f"{sink!r} is no sink: give wr.sinks.parquet('out'), wr.sinks.memory() or another of wr.sinks, a function, or an "
        "object with publish(token, panes) and last_commit(job, operator)"
    )


_FACTORIES = (memory, console, parquet, callback, kafka, route, webhook, email)


__all__: Sequence[str] = [
    "CallbackSink",
    "ConsoleSink",
    "MemorySink",
    "PaneFiles",
    "ParquetSink",
    "Sink",
    "as_sink",
    "callback",
    "check_sink",
    "console",
    "email",
    "kafka",
    "memory",
    "pane_files",
    "parquet",
    "read_panes",
    "route",
    "webhook",
]
