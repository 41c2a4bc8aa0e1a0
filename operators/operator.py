"""Operator interface: all that a job knows of an operator.

An operator is a folder next to this module. Its *definition* is a frozen value that describes the job; its *logic* runs it in
two pure steps on a store. Runners, checkpoint, connectors, readers, console and testing know no kind of operator, only this
interface.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from windrow.core.deliver import Policy
from windrow.core.errors import ConfigurationError, ReservedColumn, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import UNNAMED, Input
from windrow.core.policy import Retention, Watermark
from windrow.core.positions import Partition
from windrow.core.show import Raw, call
from windrow.operators.evolution import Before, Growth, fingerprint_of
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.admission import admitted
from windrow.operators.steps.ids import BUCKETS_KEY, NO_BUCKETS
from windrow.operators.steps.micro_batching import Runs
from windrow.operators.steps.output_rows import output_rows, output_schema, without_labels
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.step import Redone, StepResult
from windrow.operators.view import View
from windrow.stores.kv import KV


@dataclass(frozen=True, kw_only=True)
class Refiling:
    """A way to restore lost messages from their source. It is one of two kinds."""

    logic: Logic
    #: No message with an event time below it is kept.
    kept_from: Callable[[KV], int]
    #: Reason why steps are needed that brought no kept message.
    why: str = ""
    #: False if there cannot be messages yet.
    begun: Callable[[KV], bool] = lambda kv: True
    #: (the shard's store, an empty one): write the state of the shard's beginning that replayed steps need.
    prepare: Callable[[KV, KV], None] = lambda kv, scratch: None

    @property
    def every_step(self) -> bool:
        """True if all steps are needed, not only those that brought kept messages."""
        return isinstance(self, RunAgain)


@dataclass(frozen=True, kw_only=True)
class FileAgain(Refiling):
    """Replay that writes the kept messages again, as they were."""

    #: (store, messages by input, processed by steps (`STEP`, their index), those steps): the metadata of the messages is
    #: there. Returns how many were not counted because of their own values.
    file: Callable[[KV, Mapping[str, pa.Table], Redone], int]
    #: Deletes messages that were written again and are no longer kept.
    drop_expired: Callable[[KV], None]
    #: Number of steps that can be written again at once.
    steps_at_once: int = 1
    #: True if the number of uncounted messages has to be known: that may depend on other messages of the time.
    checks_uncounted: bool = False
    #: True if messages are stored under the numbers of their steps.
    by_number: bool = False


@dataclass(frozen=True, kw_only=True)
class RunAgain(Refiling):
    """Replay of every step on a store of its own, for operators whose kept messages depend on all steps."""

    #: The result of all steps, which the replay has to reproduce.
    reached: Callable[[KV], Any]


def numbers_of(logic: Logic, first: bytes, last: bytes) -> Callable[[KV], Any]:
    """Return a function that gives the step count of a store and its progress entries under the keys [first, last)."""
    return lambda kv: (logic.progress(kv).step, list(kv.scan(logic.aux_cf, first, last)))


@dataclass(frozen=True, slots=True)
class Taker:
    """The receiving end of a chain: the input that receives the rows of another operator, and the columns that it names."""

    name: str
    input: Input
    columns: tuple[str, ...]
    #: Reason why it cannot process a retraction; "" where it can.
    keeps: str = "aggregates and joins over time take messages back, it does not"
    #: Allowed lateness of the rows that it receives.
    allowed_lateness_us: int = 0
    #: Its expressions over columns, without the filter of the input.
    uses: tuple[Expr, ...] = ()

    @property
    def event_time(self) -> str:
        return self.input.event_time

    def check_columns(self, columns: Sequence[str], whose: str, remedy: str = "") -> None:
        """Raise if the upstream rows lack a column that it names, or have one named as the mark. columns: those of the rows;
        whose: the operator that emits them, for the message."""
        mark = None if self.input.deliver is None else self.input.deliver.mark
        if mark in columns:
            raise ReservedColumn(
                f"mark={mark!r} of {self.name!r} has the name of a column of {whose} have {list(columns)}: "
                "give it another one"
            )
        columns = columns if mark is None else [*columns, mark]
        lacking = next((f"column {column!r}" for column in self.columns if column not in columns), None)
        if lacking is None:
            uses = (*self.input.asked, *self.uses)
            lacking = next((f"a column in {use!r}" for use in uses if use.lacks(columns)), None)
        if lacking is not None:
            raise UnknownColumn(f"{lacking} of {self.name!r} is none of {whose} have {list(columns)}{remedy}")

    def check_rows(self, of: Definition, time: str) -> None:
        """Raise if its event time is not `time`, that of the upstream rows, or if these lack a column."""
        if self.event_time != time:
            raise UnknownColumn(
                f"event_time={self.event_time!r} of {self.name!r}: a row of {of.name!r} has the time {time!r}; use "
                f"event_time={time!r}"
            )
        if of.output_columns is not None:
            self.check_columns(of.output_columns, f"{of.name!r}, whose rows")


#: Suffix of column families that hold messages; the others hold metadata.
MESSAGES = (".messages", ".message_index")


class Definition(ABC):
    """The description of an operator: a frozen value, checked when built, whose `repr` builds it again."""

    name: str
    #: The key columns of its output.
    by: tuple[str, ...]
    #: Number of dead letters of one step that are kept whole; all are counted.
    dead_letter_limit: int
    #: Retention of dead letters; None where the user did not set it.
    dead_letter_retention_us: int | None = None
    retention: Retention
    #: The user's arguments, as text, without those that have their default.
    written: tuple[tuple[str, str], ...] = ()

    def _set(self, **fields: Any) -> None:
        """Set the fields of the frozen value."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _changed(self, **changes: Any) -> Self:
        changed = copy.copy(self)
        changed._set(**changes)
        return changed

    def _written(self, options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        parameters = inspect.signature(type(self)).parameters
        return tuple((n, repr(options[n])) for n, p in parameters.items() if options[n] != p.default)

    def __repr__(self) -> str:
        kind = "".join(word.capitalize() for word in str(self.describe()["operator"]).split("_"))
        return call(kind, **{n: Raw(text) for n, text in self.written})

    # -- its input --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def inputs(self) -> tuple[Input, ...]:
        """Return the inputs of its messages."""

    @property
    def by_input(self) -> bool:
        """True if its inputs have names, by which messages are given, and offsets are reported."""
        return self.inputs[0].name != UNNAMED

    def input(self, name: str) -> Input:
        """Return the input of that name."""
        return next(i for i in self.inputs if i.name == name)

    def with_input_name(self, name: str) -> Self:
        """Return the same definition with a name for its one input."""
        return self._changed(input_name=name)

    @abstractmethod
    def columns_of(self, input: Input) -> tuple[str, ...]:
        """Return the columns that an input must have."""

    @abstractmethod
    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        """Return the same definition under other watermarks, by input. Its state has the same shape."""

    #: Columns that identify a message; None where its position does.
    ids: Any

    # -- partitioning -----------------------------------------------------------------------------------------------

    @abstractmethod
    def keys(self, input: Input) -> tuple[str, ...]:
        """Return the key columns of an input. Rows that differ in them never affect each other."""

    @property
    def policies(self) -> dict[str, Policy]:
        """Return the delivery policies by input; a policy may skip messages of a step."""
        return {i.name: i.deliver for i in self.inputs if i.deliver is not None and i.deliver.skips}

    def one_shard(self) -> str | None:
        """Return the reason why a single shard has to process all of its rows; None where keys may be partitioned."""
        for name, policy in self.policies.items():
            if policy.counts and policy.per == "input":
                return f"{policy!r} counts all messages of {self.input(name).called}"
        if self.retention.counts_the_job:
            return f"{self.retention!r} counts over the whole job"
        return None

    @property
    def copied(self) -> frozenset[str]:
        """Return the inputs of which every shard gets all rows. The first shard counts them."""
        return frozenset()

    # -- fingerprint of its state -----------------------------------------------------------------------------------

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return all that shapes the state, as plain values: the text that the fingerprint is a digest of."""

    @property
    def fingerprint(self) -> str:
        """Return the hex digest of `describe()`: state is read only under the fingerprint it was written with."""
        return fingerprint_of(self.describe())

    def growth(self, before: Before) -> Growth | str:
        """Return how it opens state of another definition; else a text that lists the changes."""
        return ""

    def grown(self, growth: Growth) -> Self:
        """Return the same definition on state that has evolved so."""
        return self

    #: True if aggregations that are added to its state are computed from kept messages, too.
    recompute = False

    def recomputing(self) -> Self:
        """Return the same definition with `recompute` on."""
        return self

    def emitted_until_us(self, reached_us: int) -> int:
        """Return the latest time that its output may have had, if its messages reach `reached_us`."""
        return reached_us

    def filing(self) -> dict[str, Any]:
        """Return the options besides the fingerprint that decide which messages are kept, as the log records them."""
        skipped = {name: repr(policy) for name, policy in self.policies.items()}
        return {"deliver": skipped} if skipped else {}

    # -- its output -------------------------------------------------------------------------------------------------

    @abstractmethod
    def values(self, rows: pa.Table, job: str) -> Iterable[Any]:
        """Return emitted rows as Python values."""

    @property
    @abstractmethod
    def known_by(self) -> tuple[str, ...] | None:
        """Return the columns besides the window by which a row replaces an emitted one; None where each row is emitted once."""

    @property
    def emission_mode(self) -> str:
        """Return how a row relates to earlier ones of its window: "accumulating", "retracting", "discarding", "once" (none)."""
        return "once"

    def unsettled(self) -> str | None:
        """Return why the last row of a key and window may lack messages; None where it holds all, once all are emitted."""
        return f"rows of {self.name!r} have no window whose last row holds all of its messages: check an aggregate"

    @property
    def output_columns(self) -> tuple[str, ...] | None:
        """Return the columns of its rows, without windrow's own; None where its inputs decide them."""
        return None

    @property
    def in_runs(self) -> bool:
        """True if steps of one message each may be run as one, each message under the watermark of its own step."""
        return False

    @property
    def periods(self) -> frozenset[int] | None:
        """Return the periods of `now`, in microseconds, at whose ends it may act without input; None: at any time."""
        return None

    # -- queries ----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """Return the tables of its view: "windows", "messages"."""

    def asked(self, table: str, operator: str | None = None, input: str | None = None) -> Definition:
        """Return the operator that a query means: of that name; else with such an input; else the last with such a table."""
        if operator is not None:
            parts = [p for p in self.parts if p.name == operator]
            if not parts:
                names = [p.name for p in self.parts]
                raise ConfigurationError(f"operator {operator!r} is none of {names}: name one of these")
            return parts[0]
        if input is not None:
            parts = [p for p in self.parts if p.by_input and input in [i.name for i in p.inputs]]
            if parts:
                return parts[0]
        return next((p for p in reversed(self.parts) if table in p.tables), self.parts[-1])

    @property
    def apart(self) -> tuple[Definition, ...]:
        """Return the definitions of the job in the log: itself, or the unconnected operators in it."""
        return (self,)

    def of_apart(self, definitions: Sequence[Definition]) -> Definition:
        """Return the same definition with these in place of those of `apart`."""
        [one] = definitions
        return one

    # -- in a graph -------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[Definition, ...]:
        """Return the operators in it: itself, or those of a graph in their order."""
        return (self,)

    def watermark_of(self, name: str, watermark_us: int) -> int:
        """Return the watermark of the operator of that name where that of the whole is `watermark_us`."""
        return watermark_us

    def fed_by(self, name: str) -> Mapping[str, str]:
        """Map the inputs of the operator of that name to the operators whose rows they receive."""
        return {}

    def check_begins(self) -> None:
        """Refuse to take messages from outside. Raises `ConfigurationError` where it cannot."""
        return None

    @abstractmethod
    def taker(self, before: str) -> Taker:
        """Return how it receives the rows of the operator `before`. Raises `ConfigurationError` where it cannot."""

    @abstractmethod
    def check_followed(self, taker: Taker) -> None:
        """Refuse to be followed by an operator that would count its rows twice, or receive them too late."""

    @property
    def emits_updates(self) -> bool:
        """True if rows may replace or retract emitted rows: an operator that counts them has to know."""
        return False

    def with_retractions(self) -> Self:
        """Return the same definition, forwarding the retraction of a replaced row before the row that replaces it."""
        return self

    def taking_back(self) -> Self:
        """Return the same definition where messages are retracted."""
        raise ConfigurationError(
            f"{self.name!r} takes no message back: use an aggregate, or a join over time"
        )

    @abstractmethod
    def output_delay_us(self, event_time: str) -> int:
        """Return how far below its watermark the times of its output lie, apart from late output."""

    def times_of(self, event_time: str) -> Input | None:
        """Return the input whose times a column of its rows has, as they came; None where it has timestamps with a zone."""
        return None

    @abstractmethod
    def of_forwarded_rows(self, input: Input) -> Self:
        """Return the same definition where an input receives rows of another operator, which have been checked already.

        given: that input, with the time format of these rows
        """

    # -- its logic --------------------------------------------------------------------------------------------------

    @abstractmethod
    def logic(self, outputs: Collection[str] = ()) -> Logic:
        """Return its logic. outputs: operators inside a graph whose rows are wanted, too."""

    @abstractmethod
    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        """Return its oracle, in lists and loops; tests compare the logic with it. schemas: of inputs, known in advance."""


class Logic(ABC):
    """The logic of an operator: pure functions of a store, rows and times. Holds no state of its own."""

    definition: Any
    #: The column family of its progress.
    aux_cf: str

    @abstractmethod
    def cfs(self) -> tuple[str, ...]:
        """Return the column families that it keeps its state in."""

    def stays(self, key: bytes, value: bytes) -> bool:
        """True for a record of `aux_cf` that remains when there is no message and no window: progress, columns, layout."""
        return key[0] in b"\x00hlns" or (key, value) == (BUCKETS_KEY, NO_BUCKETS)

    @property
    def message_cfs(self) -> tuple[str, ...]:
        """Return those of them that hold messages."""
        return tuple(cf for cf in self.cfs() if cf.endswith(MESSAGES))

    @property
    def metadata_cfs(self) -> tuple[str, ...]:
        """Return those of them that do not hold messages."""
        return tuple(cf for cf in self.cfs() if not cf.endswith(MESSAGES))

    # -- the two steps ----------------------------------------------------------------------------------------------

    @abstractmethod
    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Let event time come to `watermark_us`, and time to `now_us`: emit, release and forget what is due."""

    @abstractmethod
    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        """Process the messages of a step, by input, with position columns; emit what they trigger."""

    def admit(
        self, kv: KV, input: Input, table: pa.Table, other_inputs: Mapping[str, pa.Table] | None = None
    ) -> pa.Table:
        """Check rows that come to an input from outside; return those that can be counted, in the known types.

        other_inputs: tables of other inputs in the same step
        """
        time = None if input.time_made else input.event_time
        return admitted(
            table, self.schema_of(kv, input.name), self.needs_of(kv, input.name, other_inputs or {}), time
        )

    def apart(self, before: KV) -> Logic:
        """Return the same logic for steps that share no key: parts of an input that is too large for one step.

        before: the store before these steps, with all state that their messages may need
        """
        return self

    #: Inputs whose dead letters another shard reports, which gets the same rows.
    silent: frozenset[str] = frozenset()

    def silence(self, inputs: frozenset[str]) -> None:
        """Report no dead letters of these inputs: another shard does, which gets the same rows."""
        self.silent = inputs

    #: True if a table without rows is worth an `ingest`, for its columns.
    takes_columns = False

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        """Record the columns of an input before its first message. Logic that learns columns in `ingest` does nothing here."""
        return None

    def runs(
        self,
        kv: KV,
        largest_us: Mapping[Partition, int],
        seen_us: Mapping[Partition, int],
        watermark_us: int,
        now_us: int | None,
    ) -> Runs | None:
        """Return the splitter of messages into runs; None where each is its own step. now_us: of the last advance."""
        return None

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        """Refuse declared columns of its inputs that cannot be."""
        return None

    # -- its output -------------------------------------------------------------------------------------------------

    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        """Return the output of the steps of a commit as rows."""
        return output_rows(panes, commit)

    def emitted(self, result: StepResult, commit: int) -> dict[str, pa.Table]:
        """Return the output of the steps of a commit as rows, by operator."""
        return {self.definition.name: self.rows(result.panes, commit)} if result.panes else {}

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        """Return the columns of `rows` over such inputs."""
        return output_schema(self.message_schema(inputs))

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        """Return its output with the columns that the next operator sees, and `SIGN` where a row may retract another."""
        return without_labels(panes)

    @abstractmethod
    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        """Return the columns of `messages` over such inputs."""

    @abstractmethod
    def known_schema(self, kv: KV) -> pa.Schema | None:
        """Return the columns of `messages`, as far as they are known; None before those of its inputs are."""

    # -- its inputs -------------------------------------------------------------------------------------------------

    @abstractmethod
    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        """Return the known columns of an input."""

    @abstractmethod
    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        """Return the required columns of an input; `other_inputs`: tables of other inputs in the same step."""

    #: True if rows that forward incoming messages have other columns, too.
    adds_columns = False

    def called(self, input: str, column: str) -> tuple[str, ...]:
        """Return the names that an input's column may have in the forwarded rows; none where rows are not forwarded."""
        return ()

    def columns(self, kv: KV) -> list[str]:
        """Return the columns of its rows as known so far; of an aggregate, those of its input."""
        known = self.known_schema(kv)
        return [] if known is None else list(known.names)

    def key_types(
        self, name: str, inputs: Mapping[str, pa.Schema]
    ) -> list[tuple[str, tuple[pa.DataType, ...]]]:
        """Return the key columns of an input, each with the types in which operators compare it, one after the other."""
        return [(key, ()) for key in self.definition.keys(self.definition.input(name))]

    def progress(self, kv: KV) -> Progress:
        """Return the state that it carries between steps."""
        return Progress.load(kv, self.aux_cf)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        """Lower what follows from the watermark, which was set back by hand."""
        progress.watermark_us = min(progress.watermark_us, watermark_us)

    def refiling(self) -> Refiling | None:
        """Return how lost messages are replayed; None where it keeps none, or they cannot be."""
        return None

    def grouping(self) -> Grouping | None:
        """Return itself, where SQL can do a part of its work."""
        return None

    def part(self, name: str) -> Logic:
        """Return the logic of the operator of that name: itself, or one of a graph's."""
        return self

    # -- queries ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        """Return the view of its state, over the stores of its shards.

        watermark_us: that of the operator
        """


class Grouping(Logic):
    """Logic of which SQL can do a part."""

    @abstractmethod
    def pushdown(self, schema: pa.Schema) -> Pushdown | None:
        """Return the part that SQL can do over an input of these columns; None where there is none."""

    @abstractmethod
    def ingest_groups(
        self, kv: KV, groups: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
    ) -> Grouped:
        """Process rows that SQL has grouped, as `ingest` would."""

    def grouping(self) -> Grouping | None:
        return self
