"""The facade of chains: `wr.chain`, and the verbs that open what it makes."""

from __future__ import annotations

from windrow.operators.graph.definition import ChainDefinition
from windrow.operators.operator import Definition
from windrow.runners.verbs import Verbs


class Chain(ChainDefinition, Verbs):
    """Operators in a chain, one commit for all. A frozen value, made by `wr.chain` or `first.then(second)`.

    parts: the operators, in order

    >>> import windrow as wr
    >>> join = wr.Join(
    ...     left=wr.Input("a", event_time="t"), right=wr.Input("b", event_time="t"), on="k", within=("0 s", "5 s"),
    ... )
    >>> counts = wr.Aggregate(
    ...     by="k", event_time="a_t", window=wr.tumbling("1 minute"), agg={"n": wr.count()}, retention="1 hour",
    ... )
    >>> [part.name for part in join.then(counts).parts]
    ['join', 'aggregate']
    """


def chain(*operators: Definition) -> Chain:
    """Operators of which each takes the rows of the one before it as messages, in the same commit.

    operators: aggregates and joins, in order, each with a name of its own

    After an aggregate the event time is `window_time`, the last moment of the window of a pane, after a join that of an input;
    the watermark is that of the one before. Panes bring `window_start`, `window_end`, keys and aggregates. A later join takes
    the rows on the input that has the name of the operator before it; its other input comes from outside, and messages of all
    inputs are then given by name (an aggregate's has its name). Only what is told once can be handed on:
    `wr.Emit.append()`, mode "discarding", joins.

    Raises `ConfigurationError` and its kinds (WR1xx), naming both values and the remedy.

    >>> import windrow as wr
    >>> each = wr.Aggregate(
    ...     by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count()}, retention="1 minute",
    ...     emit=wr.Emit.append(), name="seconds",
    ... )
    >>> tens = wr.Aggregate(
    ...     by="k", event_time="window_time", window=wr.tumbling("10 seconds"), agg={"most": wr.max("n")},
    ...     retention="1 minute", name="tens",
    ... )
    >>> wr.chain(each, tens).name
    'tens'
    """
    return Chain(tuple(part for operator in operators for part in operator.parts))
