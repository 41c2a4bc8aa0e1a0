"""The seam: all that a job knows of an operator.

An operator is a folder beside this module. Its *definition* is a frozen value that says what is wanted; its *logic* does it,
in two pure steps on a store that it is given. Runners, checkpoint, connectors, readers, console and testing know no kind of
operator, only what stands here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from windrow.core.deliver import Policy
from windrow.core.errors import ConfigurationError
from windrow.core.inputs import Input
from windrow.core.policy import Retention, Watermark
from windrow.core.positions import Partition
from windrow.operators.downstream import Taker as Taker
from windrow.operators.evolution import Before, Growth, fingerprint_of
from windrow.operators.message_replay import FileAgain as FileAgain
from windrow.operators.message_replay import Refiling as Refiling
from windrow.operators.message_replay import RunAgain as RunAgain
from windrow.operators.message_replay import numbers_of as numbers_of
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.admission import admitted
from windrow.operators.steps.ids import BUCKETS_KEY, NO_BUCKETS
from windrow.operators.steps.micro_batching import Runs
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.step import StepResult
from windrow.operators.view import View
from windrow.stores.kv import KV

#: How column families end that hold messages; the others hold metadata.
MESSAGES = (".messages", ".message_index")


class Definition(ABC):
    """What an operator is: a frozen value, checked when built, whose `repr` builds it again."""

    name: str
    #: The key columns of what it tells.
    by: tuple[str, ...]
    #: How many dead letters of one step are kept whole; all are counted.
    dead_letter_limit: int
    #: How long they are kept; None where it was not said.
    dead_letter_retention_us: int | None = None
    retention: Retention

    # -- what it takes ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def inputs(self) -> tuple[Input, ...]:
        """Where its messages come from."""

    @property
    def by_input(self) -> bool:
        """True if messages name their input: the sources of their positions begin with its name."""
        return True

    def prefix(self, input: Input) -> str:
        """What the sources of an input's messages begin with, and whoever fed them did not write."""
        return input.source_prefix if self.by_input else ""

    def input(self, name: str) -> Input:
        """The input of that name."""
        return next(i for i in self.inputs if i.name == name)

    @abstractmethod
    def columns_of(self, input: Input) -> tuple[str, ...]:
        """The columns that an input must have."""

    @abstractmethod
    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        """The same definition under other watermarks, by input; what shapes the state stays."""

    #: Columns by which a message is known, where that is not where it stands.
    ids: Any

    # -- how it is spread -------------------------------------------------------------------------------------------

    @abstractmethod
    def keys(self, input: Input) -> tuple[str, ...]:
        """The key columns of an input: rows that differ in them never meet."""

    @property
    def policies(self) -> dict[str, Policy]:
        """By which of the messages of a step some may be skipped, by input."""
        return {i.name: i.deliver for i in self.inputs if i.deliver is not None and i.deliver.skips}

    def one_shard(self) -> str | None:
        """Why a single shard has to see all of its rows; None where keys may be spread."""
        for name, policy in self.policies.items():
            if policy.counts and policy.per == "input":
                return f"{policy!r} counts the messages of the whole input {name!r}"
        if self.retention.counts_the_job:
            return f"{self.retention!r} counts over the whole job"
        return None

    # -- what shapes its state --------------------------------------------------------------------------------------

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What shapes the state, as plain values: the text behind the fingerprint."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of `describe()`: state is read only under the fingerprint it was written with."""
        return fingerprint_of(self.describe())

    def growth(self, before: Before) -> Growth | str:
        """How it opens state of another definition; else what of it has changed."""
        return ""

    def grown(self, growth: Growth) -> Self:
        """The same definition on state that grew so."""
        return self

    #: True if what comes to its state is computed from kept messages, too.
    recompute = False

    def recomputing(self) -> Self:
        """The same definition, where that is so."""
        return self

    def emitted_until_us(self, reached_us: int) -> int:
        """How far the times go of what it may have told, where its messages go to `reached_us`."""
        return reached_us

    def filing(self) -> dict[str, Any]:
        """What decides besides the fingerprint which messages are filed, and kept, as the log notes it of each commit."""
        skipped = {name: repr(policy) for name, policy in self.policies.items()}
        return {"deliver": skipped} if skipped else {}

    # -- what it tells ----------------------------------------------------------------------------------------------

    @abstractmethod
    def values(self, rows: pa.Table, job: str) -> Iterable[Any]:
        """Rows that it told as Python values."""

    @property
    @abstractmethod
    def known_by(self) -> tuple[str, ...] | None:
        """The columns, beside the window, by which a row replaces one that was told before; None where each is told once."""

    @property
    def emission_mode(self) -> str:
        """What a row is to those of its key and window before it: "accumulating", "retracting", "discarding"; "once": none."""
        return "once"

    def unsettled(self) -> str | None:
        """Why the last row of a key and window need not hold all of its messages; None where it does, once all is told."""
        return f"rows of {self.name!r} have no window whose last row holds all of its messages: check an aggregate"

    @property
    def output_columns(self) -> tuple[str, ...] | None:
        """The columns of its rows, beside our own; None where its inputs decide them."""
        return None

    @property
    def in_runs(self) -> bool:
        """True if steps of one message each may be run as one, each message under the watermark of its own step."""
        return False

    @property
    def periods(self) -> frozenset[int] | None:
        """Periods of `now`, in microseconds, at whose ends it may act though nothing has come; None: it may at any time."""
        return None

    # -- what may be asked of it ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """What its view has: "windows", "messages"."""

    def asked(self, table: str, operator: str | None = None, input: str | None = None) -> Definition:
        """The operator that is meant: of that name; or else with such an input; or else the last with such a table."""
        if operator is not None:
            found = [p for p in self.parts if p.name == operator]
            if not found:
                names = [p.name for p in self.parts]
                raise ConfigurationError(f"operator {operator!r} is none of {names}: name one of these")
            return found[0]
        if input is not None:
            found = [p for p in self.parts if p.by_input and input in [i.name for i in p.inputs]]
            if found:
                return found[0]
        return next((p for p in reversed(self.parts) if table in p.tables), self.parts[-1])

    @property
    def apart(self) -> tuple[Definition, ...]:
        """What the log knows as definitions of the job: itself, or those that stand side by side in it."""
        return (self,)

    def of_apart(self, definitions: Sequence[Definition]) -> Definition:
        """The same, of these in the place of those that it is apart."""
        [one] = definitions
        return one

    # -- in a graph -------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[Definition, ...]:
        """The operators in it: itself, or those of a graph in their order."""
        return (self,)

    def watermark_of(self, name: str, watermark_us: int) -> int:
        """The watermark of the operator of that name where that of the whole is `watermark_us`."""
        return watermark_us

    def part_prefix(self, name: str) -> str:
        """What the sources of the messages of that operator begin with, where it has one input, and nobody wrote it."""
        return ""

    def fed_by(self, name: str) -> Mapping[str, str]:
        """Of the operator of that name: which inputs take the rows of which others."""
        return {}

    def check_begins(self) -> None:
        """Refuse to take messages from outside. Raises `ConfigurationError` where it cannot."""
        return None

    @abstractmethod
    def taker(self, before: str) -> Taker:
        """How it takes the rows of the operator `before`. Raises `ConfigurationError` where it cannot."""

    @abstractmethod
    def check_followed(self, taker: Taker) -> None:
        """Refuse to be followed by an operator that would count twice, or too late, what this one tells."""

    @property
    def emits_updates(self) -> bool:
        """True if rows may stand in place of rows that were told before, or take them back: who counts them has to know."""
        return False

    def with_retractions(self) -> Self:
        """The same definition where it hands on, before a row that stands in place of another, that this one is taken back."""
        return self

    def taking_back(self) -> Self:
        """The same definition where messages are taken back."""
        raise ConfigurationError(
            f"{self.name!r} takes no message back: use an aggregate, or a join over time"
        )

    @abstractmethod
    def output_delay_us(self, event_time: str) -> int:
        """How far behind its watermark lie the times of what it tells in which nothing late had a part."""

    def times_of(self, event_time: str) -> Input | None:
        """The input whose times a column of its rows has, written as they came; None where it has timestamps with a zone."""
        return None

    @abstractmethod
    def of_forwarded_rows(self, input: Input) -> Self:
        """The same definition where an input takes rows of another operator, whose messages were judged already.

        given: that input, which says how these rows write their times
        """

    # -- what does it -----------------------------------------------------------------------------------------------

    @abstractmethod
    def logic(self, outputs: Collection[str] = ()) -> Logic:
        """What does it. tell: operators inside a graph whose rows are wanted, too."""

    @abstractmethod
    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        """What it has to do, in lists and loops: tests compare. schemas: of inputs, known before their first message."""


class Logic(ABC):
    """What an operator does: pure functions of a store, rows and times. Holds no state of its own."""

    definition: Any
    #: The column family of its progress.
    aux_cf: str

    @abstractmethod
    def cfs(self) -> tuple[str, ...]:
        """The column families that it keeps its state in."""

    def stays(self, key: bytes, value: bytes) -> bool:
        """True for a record of `aux_cf` that is there for good, when no message and no window is: progress, columns, layout."""
        return key[0] in b"\x00hlns" or (key, value) == (BUCKETS_KEY, NO_BUCKETS)

    @property
    def message_cfs(self) -> tuple[str, ...]:
        """Those of them that hold messages."""
        return tuple(cf for cf in self.cfs() if cf.endswith(MESSAGES))

    @property
    def metadata_cfs(self) -> tuple[str, ...]:
        """Those of them that do not."""
        return tuple(cf for cf in self.cfs() if not cf.endswith(MESSAGES))

    # -- the two steps ----------------------------------------------------------------------------------------------

    @abstractmethod
    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Let event time come to `watermark_us`, and time to `now_us`: tell, release, forget what is due."""

    @abstractmethod
    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        """File the messages of a step, by input, with position columns; tell what they let it tell."""

    def admit(
        self, kv: KV, input: Input, table: pa.Table, other_inputs: Mapping[str, pa.Table] | None = None
    ) -> pa.Table:
        """Check what comes to an input from outside: the rows that can be counted, in the types that are known.

        beside: tables of other inputs in the same step
        """
        time = None if input.time_made else input.event_time
        return admitted(
            table, self.schema_of(kv, input.name), self.needs_of(kv, input.name, other_inputs or {}), time
        )

    def apart(self, before: KV) -> Logic:
        """The same for steps of which none has a key that another one has: the pieces of what is too much for one. before: the
        store as it is before them, where all lies that their messages may meet.
        """
        return self

    #: True if a table without rows is worth an `ingest`, for its columns.
    takes_columns = False

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        """What columns an input has, before its first message. What takes columns by `ingest` has nothing to do here."""
        return None

    def runs(
        self,
        kv: KV,
        largest_us: Mapping[Partition, int],
        seen_us: Mapping[Partition, int],
        watermark_us: int,
        now_us: int | None,
    ) -> Runs | None:
        """What cuts messages into runs; None where each is a step of its own. kv: as it stands; now_us: of the last advance."""
        return None

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        """Refuse columns of its inputs, as they are declared, that cannot be."""
        return None

    # -- what it told -----------------------------------------------------------------------------------------------

    @abstractmethod
    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        """What the steps of a commit told, as rows."""

    def emitted(self, result: StepResult, commit: int) -> dict[str, pa.Table]:
        """What the steps of a commit told, as rows, by operator."""
        return {self.definition.name: self.rows(result.panes, commit)} if result.panes else {}

    @abstractmethod
    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        """The columns of `rows` over such inputs."""

    @abstractmethod
    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        """What it told, with the columns that the next operator sees, and `SIGN` where one may take back another."""

    @abstractmethod
    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        """The columns of `messages` over such inputs."""

    @abstractmethod
    def known_schema(self, kv: KV) -> pa.Schema | None:
        """The columns of `messages`, as far as they are known; None before its inputs have told theirs."""

    # -- what it knows of its inputs --------------------------------------------------------------------------------

    @abstractmethod
    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        """What is known of the columns of an input."""

    @abstractmethod
    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        """What is needed of the columns of an input; `beside`: tables of other inputs in the same step."""

    #: True if rows that hand on what came in have other columns, too.
    adds_columns = False

    def called(self, input: str, column: str) -> tuple[str, ...]:
        """The names that a column of an input may have in its rows, which hand on what came in it; none where they do not."""
        return ()

    @abstractmethod
    def columns(self, kv: KV) -> list[str]:
        """The columns of its rows as known so far; of an aggregate, those of its input."""

    def key_types(
        self, name: str, inputs: Mapping[str, pa.Schema]
    ) -> list[tuple[str, tuple[pa.DataType, ...]]]:
        """The key columns of an input, each with the types in which operators compare it, one after the other."""
        return [(key, ()) for key in self.definition.keys(self.definition.input(name))]

    def progress(self, kv: KV) -> Progress:
        """What it remembers between steps."""
        return Progress.load(kv, self.aux_cf)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        """Lower what follows from the watermark, which was set back by hand."""
        progress.watermark_us = min(progress.watermark_us, watermark_us)

    def refiling(self) -> Refiling | None:
        """How messages that it keeps come back where they are lost; None where there are none, or they do not."""
        return None

    def grouping(self) -> Grouping | None:
        """Itself, where SQL can do a part of it."""
        return None

    def part(self, name: str) -> Logic:
        """The logic of the operator of that name: itself, or one of a graph's."""
        return self

    # -- what may be asked of it ------------------------------------------------------------------------------------

    @abstractmethod
    def view(self, stores: Sequence[KV], watermark_us: int, prefix: str = "") -> View:
        """What may be asked of it, over the stores of its shards.

        watermark_us: that of the operator; prefix: what sources begin with there, and nobody wrote (`part_prefix`)
        """


class Grouping(Logic):
    """Logic of which SQL can do a part."""

    @abstractmethod
    def pushdown(self, schema: pa.Schema) -> Pushdown | None:
        """What of it, over an input of these columns; None where nothing."""

    @abstractmethod
    def ingest_groups(
        self, kv: KV, groups: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
    ) -> Grouped:
        """`ingest` of rows that came as groups."""

    def grouping(self) -> Grouping | None:
        return self
