"""Message replay in a graph: lost messages from outside are filed again; otherwise all steps are run again.

Messages from another operator can only be restored by running that one, from its first step on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.core.time import START_OF_TIME_US
from windrow.operators.operator import FileAgain, Refiling, RunAgain
from windrow.operators.steps.replayed_steps import Redone
from windrow.stores.kv import KV

if TYPE_CHECKING:
    from windrow.operators.graph.logic import ChainOperator


def refiling_of(graph: ChainOperator) -> Refiling | None:
    """Return the replay of lost messages; None if the graph keeps no messages, or cannot replay them."""
    keeping = {i: part.refiling() for i, part in enumerate(graph.parts) if part.message_cfs}
    if not keeping or None in keeping.values():
        return None
    filed: dict[int, FileAgain] = {}
    for i, again in keeping.items():
        assert again is not None
        why = _why_run(graph, i, again)
        if why:
            run = [a for a in keeping.values() if isinstance(a, RunAgain)]
            return _run_again(graph, run, f"{why}, which needs all steps to run again")
        assert isinstance(again, FileAgain)
        filed[i] = again
    return _file_again(graph, filed)


def _why_run(graph: ChainOperator, i: int, again: Refiling) -> str:
    """Return the reason why the messages of an operator cannot be filed as they came from outside; "" if they can."""
    definition = graph.definition
    part = definition.parts[i]
    if definition.feeds[i]:
        before = definition.parts[definition.feeds[i][0].part]
        return f"{part.name!r} keeps rows of {before.name!r}"
    if isinstance(again, RunAgain):
        return again.why
    assert isinstance(again, FileAgain)
    if part.ids is not None:
        return f"{part.name!r} took one of several messages of one id"
    if again.checks_uncounted:
        return f"{part.name!r} took the messages on which its condition did not raise"
    # The log notes the steps of the first operator alone.
    return f"{part.name!r} keeps messages under the numbers of its steps" if i and again.by_number else ""


def _file_again(graph: ChainOperator, parts: Mapping[int, FileAgain]) -> FileAgain:
    definition = graph.definition

    def file(kv: KV, tables: Mapping[str, pa.Table], redone: Redone) -> int:
        for i, again in parts.items():
            names = [n.name for n in definition.inputs_of(i)]
            own = {name: table for name, table in tables.items() if name in names}
            if own:
                again.file(kv, own, redone)
        return 0

    def drop_expired(kv: KV) -> None:
        for again in parts.values():
            again.drop_expired(kv)

    return FileAgain(
        logic=graph,
        kept_from=lambda kv: min(again.kept_from(kv) for again in parts.values()),
        begun=lambda kv: any(again.begun(kv) for again in parts.values()),
        file=file,
        drop_expired=drop_expired,
        steps_at_once=min(again.steps_at_once for again in parts.values()),
    )


def _run_again(graph: ChainOperator, numbered: list[RunAgain], why: str) -> RunAgain:
    def reached(kv: KV) -> list[Any]:
        return [part.progress(kv).step for part in graph.parts] + [again.reached(kv) for again in numbered]

    def prepare(kv: KV, scratch: KV) -> None:
        for part in graph.parts:
            if (again := part.refiling()) is not None:
                again.prepare(kv, scratch)

    return RunAgain(
        logic=graph,
        kept_from=lambda kv: START_OF_TIME_US,
        prepare=prepare,
        reached=reached,
        why=why,
    )
