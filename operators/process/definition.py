"""The definition of a process function: a frozen value, checked when built."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.deliver import Policy
from windrow.core.errors import BadDuration, ConfigurationError, ReservedColumn, RetentionMissing
from windrow.core.policy import UNBOUNDED_US, Forever, Retention, Watermark
from windrow.core.positions import Positions
from windrow.core.time import Duration, TimeUnit, duration_us
from windrow.core.types import declared_type
from windrow.operators.one_input import OneInput
from windrow.operators.operator import Logic
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.input_filter import filter_of

_METHODS = "a class, or an instance of one, with on_message(key, message, state, timers), and on_timer(key, at, state, timers)"


@dataclass(frozen=True, repr=False, init=False)
class ProcessDefinition(OneInput):
    """A function of yours, called for each message and each timer of a key: the slow road, Python once a message.

    by: key columns (one name or several); () for no key: then all messages share one state
    event_time: the column of event time
    function: a class, or an instance of one, with `on_message(key, message, state, timers)`, and `on_timer(key, at, state,
        timers)` where it sets timers. Each returns a row, a list of rows, or None, or yields rows; a row is a dict. It has to
        be a pure function of its arguments: no clock, no randomness, nothing kept in `self`
    emits: the columns of these rows, {name: pyarrow type} or a `pa.Schema`; key and event time come by themselves
    ttl: the state of a key expires when the watermark is so far past its last message or timer; a later message is a dead
        letter; or wr.forever
    version: is in the fingerprint with the function's name: use another one when its state means something else
    name, watermark, null_keys, time_zone, event_time_unit, max_ahead, positions, input, where, deliver: as for `wr.Aggregate`
    dead_letter_limit, dead_letter_retention: as for `wr.Aggregate`

    `key` is the key's value, a tuple of several; `message` a dict of all columns. `state` is a mapping of text to values that
    msgpack takes, of this key alone. `timers.set(at)` asks for `on_timer` when the watermark reaches `at`, `timers.set(at,
    of="now")` when the time of the job does; `timers.cancel` cancels it. `timers.time`, `timers.watermark` and
    `timers.now` are the present times. A call that raises is a dead letter `function_failed`, and changes no state.

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import pyarrow as pa, tempfile, windrow as wr
    >>> class Visits:
    ...     def on_message(self, key, message, state, timers):
    ...         state["n"] = state.get("n", 0) + 1
    ...         return {"visit": state["n"]}
    >>> visits = wr.Process(by="user", event_time="t", function=Visits, emits={"visit": pa.int64()}, ttl="1 day")
    >>> with tempfile.TemporaryDirectory() as folder, visits.open(folder) as op:
    ...     for minute in (10, 20):
    ...         op.add_message({"t": f"2013-07-01 05:{minute}Z", "user": "ann"})
    ...     [row["visit"] for row in op.get_result()]
    [1, 2]
    """

    function_name: str
    version: str
    emits: pa.Schema
    retention: Retention
    function: Any = field(compare=False)

    @check.suggests
    def __init__(
        self,
        *,
        by: str | Sequence[str] = (),
        event_time: str,
        function: Any,
        emits: pa.Schema | Mapping[str, pa.DataType],
        ttl: Duration | Forever,
        version: str = "1",
        watermark: Duration | Watermark = "0 seconds",
        name: str = "process",
        null_keys: str = "group",
        time_zone: str | None = None,
        event_time_unit: TimeUnit | None = None,
        max_ahead: Duration | Forever | None = None,
        positions: Positions | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
        input: str | None = None,
        where: pc.Expression | None = None,
        deliver: Policy | None = None,
    ) -> None:
        where = filter_of(where)
        arguments = check.arguments(locals())
        _check_function(function)
        if ttl is None:
            raise RetentionMissing(f"ttl=None of {name!r}: say how long a key's state is kept, or wr.forever")
        ttl_us = None if isinstance(ttl, Forever) else duration_us(ttl, "ttl")
        if ttl_us is not None and ttl_us < 0:
            raise BadDuration(f"ttl {ttl!r} is negative: use '0 seconds' or more, or wr.forever")
        check.of_type(version, str, "version", "use text, e.g. version='2'")
        kind = function if isinstance(function, type) else type(function)
        self._fill(
            arguments,
            function=function,
            function_name=kind.__name__,
            version=version,
            emits=_schema(emits),
            retention=Retention(ttl_us),
            late_us=UNBOUNDED_US if ttl_us is None else ttl_us,
            written=self._shown(arguments, kind),
        )
        taken, names = [*self.by, self.event_time], self.emits.names
        twice = [c for c in names if c in taken or names.count(c) > 1]
        twice = twice or [c for c in self.by if c == self.event_time]
        if twice:
            raise ReservedColumn(
                f"column {twice[0]!r} of {self.name!r} is named twice: rows have the columns {taken} beside those of emits="
            )
        ours = [c for c in names if c.startswith("__")]
        if ours:
            raise ReservedColumn(
                f"column {ours[0]!r} of {self.name!r}: names with two underscores first are ours, rename it"
            )

    def _shown(self, options: Mapping[str, Any], kind: type) -> tuple[tuple[str, str], ...]:
        emits = {f.name: str(f.type) for f in _schema(options["emits"])}
        shown = {"function": kind.__name__, "emits": repr(emits)}
        return tuple((n, shown.get(n, text)) for n, text in self._written(options))

    @property
    def output_columns(self) -> tuple[str, ...]:
        return (*self.by, self.event_time, *self.emits.names)

    @property
    def tables(self) -> tuple[str, ...]:
        return ("state", "timers")

    def describe(self) -> dict[str, Any]:
        return self._described("process", function=self.function_name, version=self.version)

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.delivery_stage import delivering
        from windrow.operators.process.logic import Processor

        return delivering(Processor(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.oracle.delivery_stage import delivering
        from windrow.operators.process.oracle import ProcessOracle

        return delivering(self, ProcessOracle(self), schemas)


def _check_function(function: Any) -> None:
    """Reject a function that could not be called: every message would be a dead letter."""
    if not callable(getattr(function, "on_message", None)):
        raise ConfigurationError(f"function={function!r}: give {_METHODS}")
    if isinstance(function, type) and not _takes(function, 0):
        raise ConfigurationError(
            f"function={function.__name__}: it is made without arguments, in each process once, which {function.__name__} "
            f"does not allow: give an instance, {function.__name__}(...)"
        )
    for name in ("on_message", "on_timer"):
        method = getattr(function, name, None)
        if method is None:
            continue
        bound = not isinstance(function, type) or not inspect.isfunction(
            inspect.getattr_static(function, name)
        )
        if not _takes(method, 4 if bound else 5):
            raise ConfigurationError(
                f"function={function!r}: its {name} cannot be called so; give {_METHODS}"
            )
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise ConfigurationError(
                f"function={function!r}: its {name} is async, and nothing awaits it; use `def {name}`"
            )


def _takes(function: Any, many: int) -> bool:
    """True if its signature takes so many arguments, or is unknown."""
    try:
        inspect.signature(function).bind(*range(many))
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True


def _schema(emits: Any) -> pa.Schema:
    """Return the columns of rows as a schema."""
    remedy = "give {name: pyarrow type}, e.g. emits={'visits': pa.int64()}, or a pa.Schema"
    if isinstance(emits, Mapping):
        names = check.names(emits, "emits", remedy)
        if all(isinstance(kind, pa.DataType) for kind in emits.values()):
            return pa.schema([(name, declared_type(emits[name])) for name in names])
    schema = check.of_type(emits, pa.Schema, "emits", remedy)
    return pa.schema([f.with_type(declared_type(f.type)) for f in schema])
