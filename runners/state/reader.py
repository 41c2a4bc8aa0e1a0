"""State reader, `wr.read_state`: windows, messages, panes, commits and dead letters of a job, in any process, as of one commit.

Reading takes no lock, claims no epoch and writes nothing below the location; scratch files go to the system's temporary
folder. The state is fixed when it is opened: the state after one commit, exactly. A running job may sweep files while they
are read: the reader then looks again, a bounded number of times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from windrow.checkpoint import job_admin
from windrow.checkpoint.files import bring_letters, bring_panes, pane_files
from windrow.checkpoint.job_paths import BorrowedFolders
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.shard_reader import ShardView, open_view, readable
from windrow.checkpoint.transport import FILES, Transport
from windrow.checkpoint.truncation_summary import letters_kept
from windrow.connectors.manifests import read_file
from windrow.core.errors import ConfigurationError, CorruptState, OperatorClosed, StateLost
from windrow.core.location import local_path
from windrow.core.messages import DeadLetter, JoinedRow, Pane, TupleWindow, Window
from windrow.core.positions import shown_source
from windrow.core.time import START_OF_TIME_US, Instant, instant_us
from windrow.core.types import concat
from windrow.operators.operator import Definition
from windrow.operators.steps.dead_letters import SCHEMA as LETTERS
from windrow.operators.steps.output_columns import STAMP, stamp_us
from windrow.operators.view import WINDOWS, Query, StoredTable, View, key_of
from windrow.runners.paging import FOLLOWED_BYTES, KeptWindows, Page, page_of
from windrow.runners.queries import Queries, T, letters_of, letters_table
from windrow.runners.state.definitions import Definitions
from windrow.runners.state.explain import Explainer, Explanation
from windrow.stores.temp_dirs import make_scratch, remove_scratch

DEAD_SCHEMA = pa.schema([*LETTERS, ("operator", pa.string()), ("commit", pa.int64())])
COMMITS_SCHEMA = pa.schema(
    [
        ("commit", pa.int64()),
        ("epoch", pa.int64()),
        ("now", STAMP),
        ("watermark", STAMP),
        ("steps", pa.int64()),
        ("rows", pa.int64()),
        ("panes", pa.int64()),
        ("published", pa.int64()),
        ("query", pa.string()),
        ("batch", pa.int64()),
        (
            "next_offsets",
            pa.list_(pa.struct([("source", pa.string()), ("partition", pa.int64()), ("next", pa.int64())])),
        ),
    ]
)


def commits_as_rows(commits: Sequence[Commit]) -> pa.Table:
    """Commit records as rows."""
    emitted = []
    for c in commits:
        now_us = c.now_us if c.now_us is not None else c.meta.get("now_us")
        emitted.append(
            {
                "commit": c.commit,
                "epoch": c.epoch,
                "now": now_us,
                "watermark": None if c.watermark_us is None else stamp_us(c.watermark_us),
                "steps": len(c.steps),
                "rows": sum(step.rows for step in c.steps),
                "panes": sum(shard.panes_rows for shard in c.shards),
                "published": c.published,
                "query": c.query_id,
                "batch": c.batch_id,
                "next_offsets": [
                    {"source": shown_source(s), "partition": p, "next": o}
                    for (s, p), o in sorted(c.next_offsets.items())
                ],
            }
        )
    return pa.Table.from_pylist(emitted, COMMITS_SCHEMA)


#: A running job may sweep files while they are read: the reader then looks again, this many times.
ATTEMPTS = 5


def read_state(
    location: str | None = None,
    *,
    log: Transport = FILES,
    as_of: int | None = None,
    definition: Any = None,
) -> State:
    """Open the state of a job, after its last commit or an older one, from any process. Use it as a context manager.

    location: where the job was opened; with `writeStream`, the folder `windrow` in its checkpointLocation
    log: the `wr.kafka_log(...)` that the job was opened with, if any. The state then comes from its topics, wherever the job
        runs; a location is of use where it is this machine's, as a cache
    as_of: the number of a commit
    definition: the job's definition, or several; needed only where the log's text of it cannot be built again (expressions,
        functions of yours)

    The job may be running, here or elsewhere: it is not disturbed, and what it commits later is seen by `refresh()`. Gives a
    state with `get_windows`, `get_messages`, `explain`, `panes`, `commits` and `dead_letters`. Raises `StateLost` (WR207) where
    the files of `as_of` are gone, naming the oldest and newest commit that can be read.

    >>> import tempfile, windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with counts.open(folder) as op:
    ...         op.add_message({"t": "2013-07-01 05:10Z"})
    ...         op.flush()
    ...     with wr.read_state(folder) as state:
    ...         state.get_windows()[0].values
    {'n': 1}
    """
    return State(location, log=log, as_of=as_of, definition=definition)


class State(Queries):
    """A job as of one commit. `shards`: only these are opened; queries then answer for them alone.

    look: the log as it was read
    """

    def __init__(
        self,
        location: str | None,
        *,
        log: Transport = FILES,
        as_of: int | None = None,
        definition: Any = None,
        shards: Sequence[int] | None = None,
    ) -> None:
        self._definition = definition
        self._as_of = as_of
        self._only = shards
        self._live = True
        self._scratch: str | None = None
        self._views: list[ShardView] = []
        if location is None and log.shares_location:
            raise ConfigurationError("neither a location nor log= is given: say where the job was opened")
        self._transport = log
        self._path = None if location is None else local_path(location)
        self._open()

    @property
    def location(self) -> str:
        """Return the job's location, or its log."""
        return self._path or repr(self._transport)

    # -- opening ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Look at the log, and bring a view of each shard to the commit; anew where files went meanwhile."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._look()
                return
            except (StateLost, CorruptState, FileNotFoundError) as error:
                self.close()
                if attempt == ATTEMPTS:
                    if self._as_of is not None and isinstance(error, StateLost):
                        raise self._too_old(error) from error
                    raise
                time.sleep(0.02 * attempt)
            except BaseException:
                self.close()
                raise

    def _look(self) -> None:
        self._scratch = make_scratch("read")
        self._stored: dict[tuple[str, str, str | None], StoredTable] = {}
        self._kept = KeptWindows()
        self.look = seen = job_admin.look(self._path, self._transport)
        self._folders = BorrowedFolders(seen.folders.location, os.path.join(self._scratch, "fetched"))
        self._known = {c.commit: c for c in seen.log.commits()}
        self._dead_letters = letters_kept(seen.log.state.summary, self._known.values())
        self.job = seen.epoch.job
        self.shards = seen.epoch.shards
        self._definitions = Definitions(seen.epoch, self.location, self._definition)
        newest = max(self._known, default=0)
        self.commit: int = newest if self._as_of is None else self._as_of
        if self.commit not in self._known and (self.commit or self._as_of is not None):
            raise StateLost(
                f"commit {self.commit} is not in the log, which begins with commit {min(self._known, default=0)} and ends with "
                f"commit {newest}"
            )
        numbers = range(self.shards) if self._only is None else self._only
        for number in numbers:
            spec = self._spec(number)
            self._views.append(open_view(spec, self.commit, self._known, self._scratch, live=self._live))

    def _spec(self, shard: int) -> ShardSpec:
        logics = [d.logic() for d in self._definitions.found.values()]
        kept = tuple(cf for logic in logics for cf in logic.message_cfs)
        metadata = tuple(cf for logic in logics for cf in logic.metadata_cfs)
        return ShardSpec(self._folders, self.job, shard, metadata, kept, transport=self._transport)

    def _too_old(self, error: StateLost) -> StateLost:
        commits = self.readable_commits()
        if not commits:
            return StateLost(f"{self.location} has no commit yet, commit {self._as_of} cannot be read")
        oldest, newest = commits[0], commits[-1]
        return StateLost(
            f"commit {self._as_of} of {self.location} cannot be read any more, or not yet: the oldest that can is {oldest}, "
            f"the newest {newest} ({error.message})"
        )

    def refresh(self) -> int:
        """Move on to the job's last commit, and return it. As of a commit, nothing moves.

        Where the job cannot be read, the state stays as it was.
        """
        if self._as_of is None and self._follow():
            return self.commit
        fresh = State(
            self._path,
            log=self._transport,
            as_of=self._as_of,
            definition=self._definition,
            shards=self._only,
        )
        self.close()
        vars(self).update(vars(fresh))
        return self.commit

    def _follow(self) -> bool:
        """Add newer commits to the open views. False where all must be opened anew: another driver, too much, a lost file."""
        if self._scratch is None:
            return False
        try:
            before, seen = self.look.epoch, self.look.log.tail()
            if seen.epoch is None or (seen.epoch.epoch, seen.epoch.job) != (before.epoch, before.job):
                return False
            known = {c.commit: c for c in self.look.log.commits(self.commit + 1)}
            if not known:
                return True
            if [*known] != [*range(self.commit + 1, max(known) + 1)]:
                return False
        except (StateLost, CorruptState, FileNotFoundError):
            return False
        try:
            changes = [view.follow(known) for view in self._views]
        except (StateLost, CorruptState, FileNotFoundError):
            self.close()  # some views have a part of the commits
            return False
        if max((view.kv.batch.nbytes for view in self._views), default=0) > FOLLOWED_BYTES:
            return False
        self._known |= known
        self._known = {n: c for n, c in self._known.items() if n >= self.look.log.first_commit}
        self.look = replace(self.look, epoch=seen.epoch, state=seen)
        self._dead_letters = letters_kept(seen.summary, self._known.values())
        self._kept.note(self.commit, changes)
        self.commit = max(known)
        self._stored.clear()
        return True

    def _read(self, read: Callable[[], T]) -> T:
        """Run `read()`; where the live store turns out to be damaged, once more from snapshots and segments."""
        if self._scratch is None:
            raise OperatorClosed(f"the state of {self.location} is closed: read it again")
        try:
            return read()
        except CorruptState:
            if not self._live:
                raise
        as_of, self._as_of, self._live = self._as_of, self.commit, False
        self.close()
        try:
            self._open()
        finally:
            self._as_of = as_of
        return read()

    def readable_commits(self) -> list[int]:
        """Return the commits that `as_of=` can name, oldest first."""
        commits = sorted(self._known)
        both = set(commits)
        for number in range(self.shards):
            both &= readable(self._spec(number), self._known, commits)
        return sorted(both | {*commits[-1:]})  # the live store leads to the newest

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the job's operators."""
        return self._definitions.names

    @property
    def missing(self) -> Mapping[str, ConfigurationError]:
        """By operator, the error of those whose definitions the log cannot reproduce."""
        return self._definitions.missing

    def definition(self, operator: str | None = None) -> Definition:
        """Return the definition of an operator."""
        return self._definitions.of(operator)

    @property
    def watermarks(self) -> Mapping[str, int]:
        """Microseconds since the epoch, by operator."""
        record = self._known.get(self.commit)
        emitted = {} if record is None else record.meta.get("watermarks", {})
        chains = self._definitions.chains
        return {
            name: chains[name].watermark_of(name, emitted.get(chains[name].name, START_OF_TIME_US))
            if name in chains
            else emitted.get(name, START_OF_TIME_US)
            for name in self.operators
        }

    @property
    def watermark(self) -> int:
        """The watermark of the job's operator, of several the lowest: microseconds since the epoch."""
        return min(self.watermarks.values(), default=START_OF_TIME_US)

    def commits(self) -> list[Commit]:
        """Return the commits that the log keeps, up to this one, oldest first."""
        return [self._known[n] for n in sorted(self._known) if n <= self.commit]

    # -- queries ----------------------------------------------------------------------------------------------------

    def windows_table(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        covering: bool = False,
        key: Any = None,
        operator: str | None = None,
        input: str | None = None,
    ) -> pa.Table:
        """Return `get_windows` as rows: window, keys, aggregates, messages, first, last, panes, fired. Rows of a join's input
        have no keys, aggregates and panes.
        """
        return self.table("windows", start, end, covering=covering, key=key, operator=operator, input=input)

    def messages_table(
        self,
        start: tuple[Instant, int] | Instant | Window | TupleWindow | None = None,
        end: tuple[Instant, int] | Instant | None = None,
        *,
        key: Any = None,
        operator: str | None = None,
        input: str | None = None,
    ) -> pa.Table:
        """Return `get_messages` as rows: `stored` (time and position), then the messages' own columns."""
        return self.table("messages", start, end, key=key, operator=operator, input=input)

    def table(
        self,
        table: str,
        start: Any = None,
        end: Any = None,
        *,
        covering: bool = False,
        key: Any = None,
        operator: str | None = None,
        input: str | None = None,
    ) -> pa.Table:
        """Return a table of an operator as rows: "windows" or "messages"; of a process function "state" or "timers".

        `covering`: only windows that hold all of the range.
        """
        query = Query(start, end, key, input).checked(table, covering)
        return self._ask(table, operator, input, lambda view: view.table(table, query))

    def page(
        self,
        table: str,
        start: Any = None,
        end: Any = None,
        *,
        order: str = "start",
        descending: bool = False,
        after: int = 0,
        limit: int = 50,
        contains: str | None = None,
        key: Any = None,
        operator: str | None = None,
        input: str | None = None,
    ) -> Page:
        """Return some rows of a table: `rows` as `table` has them, and the number of all in `total`.

        order: "start", the table's own order: by time, then by key; "key", by the values of the key; or a column. Nulls come
            last. State lies in the order of hashes, which would say nothing to a reader
        after: so many rows are left out before the page
        contains: only rows of which some value contains this text, whatever its case

        The table is read once, and kept. After a commit the windows that it changed are read, of other tables all rows.
        """
        query = Query(start, end, key, input).checked(table)
        definition = self._definitions.of(operator, input, table)
        name, whole = (definition.name, table, input), start is None and end is None and key is None
        stored = self._stored.get(name) if whole else None
        if stored is None:

            def read() -> StoredTable:
                view = self._view(definition.name)
                if whole and table == WINDOWS and definition.name not in self._kept:
                    self._kept.keep(definition.name, view, self.commit)
                return view.stored_table(table, query)

            stored = self._read(read)
        if whole:
            self._stored[name] = stored
        by = tuple(b for b in definition.by if b in stored.rows.column_names)
        return page_of(
            stored,
            by,
            order=order,
            descending=descending,
            after=after,
            limit=limit,
            contains=contains,
        )

    def timed(self, table: str, operator: str | None = None, input: str | None = None) -> str | None:
        """Return the column of a table whose times `start` and `end` bound; None for numbers, as of tuple windows."""
        return self._ask(table, operator, input, lambda view: view.timed(table))

    def tables(self, operator: str | None = None) -> tuple[str, ...]:
        """Return the tables of an operator: "windows", "messages"."""
        return self._definitions.of(operator).tables

    def explain(self, what: Any, *, key: Any = None, operator: str | None = None) -> list[Explanation]:
        """Explain a window, or a row of a join: the positions of its messages, where these are kept, and the
        commits that brought them; of an operator of a chain down to the positions of the messages from outside.

        what: when windows start (tuple windows: the number of a first message), one explanation for each key; of a join the
            time of a message, one for each row in which it has a part; of windows around messages the time of a message, one
            for each of that time. Or a pane or row, as `get_result` or `panes` gives it
        """
        definition = self._definitions.of(operator)
        rows = [_row_of(what)] if isinstance(what, (Pane, JoinedRow, Mapping)) else None
        whole = self._definitions.whole(definition.name)

        def explained() -> list[Explanation]:
            stores = [v.kv for v in self._views]
            explainer = Explainer(whole, self._view, stores, [v.spec for v in self._views], self.commits())
            view = self._view(definition.name)
            if definition.name not in self._kept:
                one = view.one(what if rows is None else rows[0], key)
                if (parts := explainer.stores(view, one)) is not None:
                    view = definition.logic().view(parts, self.watermarks[definition.name])
            if rows is None and view.row_time is not None:
                emitted = self._emitted_at(view, what, key, operator)
                provenances = [row for group in view.made_of(emitted) for row in group]
            else:
                provenances = view.made_at(what, key) if rows is None else view.made_of(rows)[0]
            return [explainer.explain(definition.name, row) for row in provenances]

        return self._read(explained)

    def _emitted_at(self, view: View, at: Any, key: Any, operator: str | None) -> list[dict[str, Any]]:
        """Find the rows of a time among those whose files are kept."""
        assert view.row_time is not None
        at_us, wanted = instant_us(at, "time"), key_of(view.definition.by, key) or {}
        rows = self.panes(operator)
        times = rows.column(view.row_time).cast(pa.int64()).to_pylist()
        emitted = rows.take(
            pa.array([i for i, us in enumerate(times) if us == at_us], pa.int64())
        ).to_pylist()
        return [row for row in emitted if all(row[k] == v for k, v in wanted.items())]

    def why_not(self, offsets: Mapping[str, int], *, operator: str | None = None) -> list[str]:
        """Return the conditions of a rule that keep these messages from a row, as lines of text.

        offsets: the offset of a message by the name of its pattern, {"order": 17}

        Counts, of every rule that has these patterns, the kept messages that are left after each condition. Raises
        `ConfigurationError` (WR100) where no rule has them, or the operator is not `wr.Rules`.
        """
        name = self._definitions.of(operator).name
        return self._read(lambda: self._view(name).why_not(offsets))

    def panes(self, operator: str | None = None) -> pa.Table:
        """Return the panes of those commits whose pane files are still kept, oldest first."""
        definition = self._definitions.of(operator)
        tables = []
        for record in self.commits():
            bring_panes(self._folders, self._transport, record)
            for path in pane_files(self._folders, record).get(definition.name, ()):
                try:
                    tables.append(read_file(path))
                except FileNotFoundError:
                    continue  # published, and swept
        schema = self._read(lambda: self._view(definition.name).schema())
        return concat([schema.empty_table(), *tables])

    def dead_letters(self, commit: int | None = None) -> list[DeadLetter]:
        """Return the dead letters with their reasons; of one commit, or of all that are kept up to this one."""
        dead = []
        for kept in self._dead_letters:
            if kept.commit <= self.commit and commit in (None, kept.commit):
                dead += letters_of(bring_letters(self._folders, self._transport, kept), kept)
        return dead

    def dead_letters_table(self, *, last: int | None = None) -> pa.Table:
        """Return `dead_letters` as rows, with the operator that could not count them.

        last: only of the newest so many commits that have some
        """
        tables = []
        so_far = [kept for kept in self._dead_letters if kept.commit <= self.commit]
        for kept in so_far if last is None else so_far[-last:]:
            of_file = letters_table(bring_letters(self._folders, self._transport, kept), kept)
            if of_file is not None:
                commits = pa.array([kept.commit] * len(of_file), pa.int64())
                tables.append(of_file.append_column("commit", commits))
        return concat([DEAD_SCHEMA.empty_table(), *tables])

    def commits_table(self) -> pa.Table:
        """Return `commits` as rows."""
        return commits_as_rows(self.commits())

    def key_types(
        self, operator: str | None = None, input: str | None = None, table: str = "windows"
    ) -> dict[str, pa.DataType]:
        """Return the key columns and their types; null where these are not known yet."""
        return self._ask(table, operator, input, lambda view: view.key_types(input))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _ask(self, table: str, operator: str | None, input: str | None, ask: Callable[[View], T]) -> T:
        definition = self._definitions.of(operator, input, table)
        return self._read(lambda: ask(self._view(definition.name)))

    def _view(self, name: str) -> View:
        """Return the view of an operator, over all shards that are open; windows that it keeps are brought to this commit."""
        view = self._definitions.of(name).logic().view([v.kv for v in self._views], self.watermarks[name])
        if name in self._kept:
            self._kept.keep(name, view, self.commit)
        return view

    # -- life -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the scratch files."""
        views, self._views = self._views, []
        for view in views:
            view.close()
        if self._scratch is not None:
            remove_scratch(self._scratch)
            self._scratch = None

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<state of {self.job} at {self.location}, commit {self.commit}>"

    def _repr_html_(self) -> str:
        """Return the job with its windows, for a notebook; one that is closed has only its name."""
        operators = list(self._definitions.found.values()) if self._scratch is not None else []
        progress = {"job": self.job, "shards": self.shards, "operators": ", ".join(self.operators)}
        return self._html(repr(self), progress, self.watermarks, operators)


def _row_of(emitted: Pane | JoinedRow | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pane or a row as `panes` has it."""
    if isinstance(emitted, JoinedRow):
        return emitted.values
    if isinstance(emitted, Pane):
        window = emitted.window
        start = window.first if isinstance(window, TupleWindow) else window.start_us
        return {"window": {"start": start}, **emitted.key}
    return emitted
