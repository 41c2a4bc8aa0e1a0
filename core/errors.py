"""Every error windrow raises, with a stable code.

A message names both values that do not go together and the remedy. `str(error)` starts with the code, so that
what reaches a user under thirty lines of Java can still be searched for. docs/reference/errors.md is written from the
docstrings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from windrow.core.suggestions import meant


class WindrowError(Exception):
    """Base of all errors of windrow.

    message: what is wrong, and what to do. code: stable across releases; it begins the text

    >>> str(BadWindow("a window of no size"))
    '[WR105] a window of no size'
    """

    code = "WR000"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


class ConfigurationError(WindrowError, ValueError):
    """A definition or a call is invalid.

    >>> try:
    ...     raise BadWindow("a window of no size")
    ... except ValueError as error:
    ...     print(error.code)
    WR105

    Remedy: Read the message: it names the value and what to write instead.
    """

    code = "WR100"


class BadDuration(ConfigurationError):
    """A value is not a duration, or is negative.

    Remedy: Write a `timedelta`, or text such as `"10 seconds"`, `"1 hour 30 minutes"`, `"90s"`.
    """

    code = "WR101"


class RetentionTooShort(ConfigurationError):
    """The retention is shorter than the allowed lateness: a window would be purged before it closes.

    Remedy: Make the retention as long, or the allowed lateness shorter. `wr.Emit.append()` and `wr.Emit.update()`
    take no lateness at all.
    """

    code = "WR102"


class RetentionMissing(ConfigurationError):
    """No retention is set, or its kind does not fit these windows.

    Remedy: Time windows want a time (`"7 days"`), tuple windows a number (`wr.Retain(windows=100)`), the global
    window `wr.forever`.
    """

    code = "WR103"


class ReservedColumn(ConfigurationError):
    """A column has a name that panes or joined rows use themselves, or two columns would have one name.

    Remedy: Rename the column before it reaches windrow.
    """

    code = "WR104"


class BadWindow(ConfigurationError):
    """A window has no size, leaves unintended gaps, or is of an unknown kind.

    Remedy: Use `wr.tumbling`, `wr.hopping`, `wr.calendar`, `wr.session`, `wr.tuples` or `wr.global_window`.
    """

    code = "WR105"


class NaiveDatetime(ConfigurationError):
    """A moment has no time zone.

    Remedy: Give an aware `datetime`, e.g. with `tzinfo=timezone.utc`. For event times without a zone say
    `time_zone=`.
    """

    code = "WR106"


class BadTrigger(ConfigurationError):
    """The operator does not support this emission, or the next operator would count something twice.

    Remedy: Use what the message offers: `wr.every_batch`, a period, or `wr.Emit.append()` before another operator.
    """

    code = "WR107"


class UnknownColumn(ConfigurationError):
    """A name is not a column of the input.

    column, of: the name, and the part of the definition that names it, where one column is missing

    Remedy: Compare it with the columns that the message lists.
    """

    code = "WR108"

    def __init__(self, message: str, column: str | None = None, of: str = "") -> None:
        super().__init__(message)
        self.column, self.of = column, of

    @classmethod
    def lacking(cls, column: str, of: str, names: Iterable[str]) -> Self:
        """That an input has columns with these names, and not that one."""
        names = list(names)
        near = meant(column, map(str, names))
        remedy = f"did you mean {near!r}?" if near else "use one of these"
        return cls(f"column {column!r} of {of} is not in the input, which has {names}: {remedy}", column, of)


class BadAggregate(ConfigurationError):
    """`agg` is empty, or holds something that is no aggregation.

    Remedy: Write `agg={"n": wr.count()}`; arguments are names of columns or expressions such as `wr.col("x") * 2`.
    """

    code = "WR109"


class BadWatermark(ConfigurationError):
    """The delay is negative, or the watermark contradicts another one of the same job.

    Remedy: Give the delay once: in the definition, or by `withWatermark` of the DataFrame. Later operators of a
    chain have none of their own.
    """

    code = "WR110"


class TypeClash(ConfigurationError):
    """A column has a type that the definition cannot take, or that is incompatible with earlier input.

    Remedy: Cast the column before it reaches windrow, or use another aggregation. The message names the type and
    the remedy.
    """

    code = "WR111"


class BadLocation(ConfigurationError):
    """A location is not a folder of a file system: an object store, an empty name, another host.

    Remedy: Give the path of a folder with hard links. Where nothing is shared, keep the log in Kafka:
    `log=wr.kafka_log(...)`.
    """

    code = "WR112"


class DuplicateColumn(ConfigurationError):
    """An input has two columns of one name, or of names that are equal to Spark.

    Remedy: Rename or drop one of them, e.g. `df.drop(right.k)` after a join.
    """

    code = "WR115"


class BadInstant(ConfigurationError):
    """A value is not a moment in time, or is outside the years 1 to 9999.

    Remedy: Give an aware `datetime`, text such as `"2013-07-01 05:10Z"`, or microseconds since the epoch as a whole number.
    """

    code = "WR116"


class UnknownOption(ConfigurationError, TypeError):
    """The call does not have this option.

    Remedy: Take the one that the message offers. `help()` of what was called lists them all.
    """

    code = "WR117"


class BadRelation(ConfigurationError):
    """A temporal operator has invalid distances, or an operand that it cannot compare.

    Remedy: Name the other pattern first, then the distances: `wr.after("fire", 0, "10 seconds")`.
    """

    code = "WR118"


class BadRule(ConfigurationError):
    """A rule cannot be true, names something that does not exist, or would keep its messages without end.

    Remedy: Read the message: it names rule, pattern and what contradicts or is missing. `rules.plan()` shows the rest.
    """

    code = "WR119"


class StateError(WindrowError):
    """Persisted state cannot be used as asked.

    Remedy: Read the message: it says what was found, and what to do.
    """

    code = "WR200"


class CorruptState(StateError):
    """A file of state is damaged: its checksum, its length or its kind is wrong.

    Remedy: Run `windrow verify LOCATION`. A store is rebuilt by itself; a log that is damaged in its middle comes
    back from a backup.
    """

    code = "WR201"


class NewerFormat(StateError):
    """State was written by a newer windrow.

    Remedy: Upgrade windrow.
    """

    code = "WR202"


class StateLocked(StateError):
    """Another process has the store open, and the call needs it exclusively. (`open` does not: it takes the job over.)

    Remedy: Stop that process. One that was killed may take a moment to release the lock.
    """

    code = "WR203"


class DefinitionChanged(StateError):
    """The location holds state of another definition, which this one would misread: only aggregations may be added or removed.

    Remedy: Use the former definition, begin at another location, or delete the state: `windrow reset LOCATION`.
    """

    code = "WR204"


class Fenced(StateError):
    """Another driver has opened this job since, or the log no longer knows whether our last record exists.

    Remedy: Run one driver for a job. If there was only one, open the job again: it continues from its last commit.
    """

    code = "WR205"


class LogUnsupported(StateError):
    """The log cannot lie here: no hard links, no sync, or a topic of another shape.

    Remedy: Put the location on ext4, xfs or NFS, or keep the log in Kafka.
    """

    code = "WR206"


class StateLost(StateError):
    """Files that the state needs are gone, or the requested data is no longer kept.

    Remedy: Restore the named files from a backup, let messages be read again (`replay=`), or begin at an empty
    location, with another sink or an emptied one.
    """

    code = "WR207"


class QueryStopped(StateError):
    """A query that does not run cannot be drained: its sources may have unread messages.

    Remedy: Start the query again, and call `drain()` while it runs.
    """

    code = "WR212"


class DiskFailed(StateError, OSError):
    """The file system refused: full, read-only, broken. `errno` is the system's.

    Remedy: Make room, and call again: what was committed is safe.
    """

    code = "WR209"


class JobMismatch(StateError):
    """The location holds another job, or the job is opened in another shape (shards, operators, place of its log).

    Remedy: Open it as it was begun, or begin at another location.
    """

    code = "WR208"


class InputError(WindrowError):
    """Input cannot be counted exactly once.

    Remedy: Read the message: it says which rows, and from where.
    """

    code = "WR300"


class OffsetGap(InputError):
    """Records are missing between the counted ones and this input, and would never be counted.

    Remedy: Begin the query where the job stopped (`resumeFrom`, or delete Spark's checkpoint), or restore the
    newest log.
    """

    code = "WR301"


class PositionsMissing(InputError):
    """Rows have no positions, and only positions could show whether they were counted.

    Remedy: Keep `topic`, `partition` and `offset` in the frame, name columns by `wr.positions(...)`, or give ids by
    `wr.ids(...)`.
    """

    code = "WR302"


class SourceBehind(InputError):
    """A batch lies wholly below the counted offsets: the source was set back.

    Remedy: Nothing was counted twice. Begin the query where the job stopped, or at another location to count anew.
    """

    code = "WR303"


class SourceLost(InputError):
    """A source has lost data that was not read: records expired, or a topic was recreated.

    Remedy: Decide: `fail_on_data_loss=False` continues with what is there, where that is safe; else begin at another
    location.
    """

    code = "WR304"


class OperatorPaused(WindrowError):
    """The sink refused the last panes, so the operator accepts no new messages.

    Remedy: Call `timeout()` until the sink takes them, then go on.
    """

    code = "WR401"


class OperatorClosed(WindrowError):
    """The operator was closed, or a commit failed midway.

    Remedy: Open it again and read on from `next_offsets()`.
    """

    code = "WR402"


class SinkFailed(WindrowError):
    """The sink refused the panes of a commit. The commit remains valid.

    Remedy: Mend the sink and start again: these panes go out first.
    """

    code = "WR403"


class SparkUnsupported(WindrowError):
    """Spark cannot do this, or not in this way.

    Remedy: Use what the message offers.
    """

    code = "WR501"


class KafkaFailed(WindrowError):
    """A Kafka cluster does not answer, or refuses.

    Remedy: Look whether servers, topic and rights are as they should be; the message has what the broker said.
    """

    code = "WR601"


class RegistryFailed(WindrowError):
    """A schema registry does not answer, or refuses: no record is to blame.

    Remedy: Mend the registry and start again: the records were not taken.
    """

    code = "WR602"
