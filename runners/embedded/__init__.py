"""The embedded runner: an operator opened on a directory, in this process, without Spark."""

from windrow.runners.embedded.chain import EmbeddedChain as EmbeddedChain
from windrow.runners.embedded.chain import EmbeddedJoinChain as EmbeddedJoinChain
from windrow.runners.embedded.join import EmbeddedJoin as EmbeddedJoin
from windrow.runners.embedded.operator import EmbeddedOperator as EmbeddedOperator
