"""The embedded runner: operators opened on a directory, in this process, without Spark."""

from windrow.runners.embedded.operator import Embedded as Embedded

#: The names under which code of users may know it.
EmbeddedOperator = EmbeddedJoin = EmbeddedChain = EmbeddedJoinChain = Embedded
