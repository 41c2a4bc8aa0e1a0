"""Every error windrow raises, with a stable code.

A message names both values that do not go together and the remedy. `str(error)` starts with the code, so that
what reaches a user under thirty lines of Java can still be searched for.
"""

from __future__ import annotations


class WindrowError(Exception):
    """Base of all errors of windrow. `code` is stable across releases."""

    code = "WR000"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


class ConfigurationError(WindrowError, ValueError):
    """A definition that cannot mean what it says."""

    code = "WR100"


class BadDuration(ConfigurationError):
    code = "WR101"


class RetentionTooShort(ConfigurationError):
    code = "WR102"


class RetentionMissing(ConfigurationError):
    code = "WR103"


class ReservedColumn(ConfigurationError):
    code = "WR104"


class BadWindow(ConfigurationError):
    code = "WR105"


class NaiveDatetime(ConfigurationError):
    code = "WR106"


class BadTrigger(ConfigurationError):
    code = "WR107"


class UnknownColumn(ConfigurationError):
    code = "WR108"


class BadAggregate(ConfigurationError):
    code = "WR109"


class BadWatermark(ConfigurationError):
    code = "WR110"


class TypeClash(ConfigurationError):
    """An input column has a type that the definition cannot take."""

    code = "WR111"


class BadLocation(ConfigurationError):
    """Not a folder of a file system: an object store, say."""

    code = "WR112"


class DuplicateColumn(ConfigurationError):
    """An input has two columns of one name, or of what is one to Spark."""

    code = "WR115"


class BadInstant(ConfigurationError):
    """What is given for a moment is none."""

    code = "WR116"


class StateError(WindrowError):
    """Persisted state cannot be used as asked."""

    code = "WR200"


class CorruptState(StateError):
    code = "WR201"


class NewerFormat(StateError):
    code = "WR202"


class StateLocked(StateError):
    code = "WR203"


class DefinitionChanged(StateError):
    code = "WR204"


class Fenced(StateError):
    """Another driver has opened this job since."""

    code = "WR205"


class LogUnsupported(StateError):
    code = "WR206"


class StateLost(StateError):
    code = "WR207"


class QueryStopped(StateError):
    """A query that does not run cannot be drained: what its sources have is perhaps unread."""

    code = "WR212"


class DiskFailed(StateError, OSError):
    """The file system refused: full, read-only, broken. `errno` is the system's."""

    code = "WR209"


class JobMismatch(StateError):
    """The location holds another job, or the job is opened in another shape (shards, operators)."""

    code = "WR208"


class InputError(WindrowError):
    code = "WR300"


class OffsetGap(InputError):
    code = "WR301"


class PositionsMissing(InputError):
    code = "WR302"


class SourceBehind(InputError):
    code = "WR303"


class SourceLost(InputError):
    """What a source should still hold is gone: records expired before they were read, or a topic was made anew."""

    code = "WR304"


class OperatorPaused(WindrowError):
    """The sink refused the last panes: call `timeout()` until it takes them, then go on."""

    code = "WR401"


class OperatorClosed(WindrowError):
    code = "WR402"


class SinkFailed(WindrowError):
    code = "WR403"


class SparkUnsupported(WindrowError):
    code = "WR501"


class KafkaFailed(WindrowError):
    """A Kafka cluster does not answer, or refuses."""

    code = "WR601"


class RegistryFailed(WindrowError):
    """A schema registry does not answer, or refuses: no record is to blame."""

    code = "WR602"
