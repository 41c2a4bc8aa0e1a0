"""Explanation of a window, or a row of a join: its messages, and the commits that brought them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pyarrow as pa

from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.shard_reader import metadata_of
from windrow.core.messages import Position, StoredMessage, WindowInfo
from windrow.core.positions import shown_source
from windrow.operators.operator import Definition
from windrow.operators.view import Provenance, View
from windrow.stores.kv import KV, Batch, MemoryKV, Pair

#: The offsets of a commit in a partition: (source, partition, first, next offset).
Range = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Touch:
    """The input of one commit. messages: their number; None where earlier commits are no longer kept, so that it is unknown.
    ranges: the offsets it took of each partition, (source, partition, first, next offset).
    """

    commit: int
    messages: int | None
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One window of one key, or one row of a join.

    operator: its operator
    window, row: the window, or the row
    positions: of all messages in it, of a window in event-time order; None where messages are not kept
    inputs: the same by input
    rows: explanations of those of its messages that are rows of other operators of the chain
    outside: positions of the messages from outside of which it was made in the end; None where they are not all known
    commits: those that the log still knows to have brought messages to it; `complete` if it knows all of them. Of a session
        whose messages are not kept, those of its first message, its last, and the one that joined it
    joined_by: of a session that was two before, the message that made it one; of several the last
    """

    window: WindowInfo | None
    positions: tuple[Position, ...] | None
    commits: tuple[Touch, ...]
    complete: bool
    operator: str = ""
    row: Mapping[str, Any] | None = None
    inputs: Mapping[str, tuple[Position, ...]] = field(default_factory=dict)
    rows: tuple[Explanation, ...] = ()
    outside: tuple[Position, ...] | None = None
    joined_by: Position | None = None
    #: A line for each pattern, for a row of rules.
    reasons: tuple[str, ...] = ()


class Explainer:
    """The explainer of the operators of one job.

    view_of: an operator's view, by name; stores: of all shards, whose files `specs` names
    """

    def __init__(
        self,
        whole: Definition,
        view_of: Callable[[str], View],
        stores: Sequence[KV],
        specs: Sequence[ShardSpec],
        commits: Sequence[Commit],
    ) -> None:
        self._whole, self._view_of = whole, view_of
        self._stores, self._specs, self._commits = stores, specs, commits
        self._parts: dict[tuple[str, str], list[list[Batch | None]]] = {}

    def stores(self, view: View, one: pa.Table | None) -> Sequence[KV] | None:
        """Return stores with one window of one key, as the changelog alone makes it: commits of many keys write large blocks,
        which take less time to read there. None where the changelog is not whole. one: as `View.one` returns it
        """
        if one is None or not self._commits or self._commits[0].commit != 1:
            return None
        stores: list[KV] = []
        for kv, parts in zip(self._stores, self._parts_of(view, one), strict=True):
            own = MemoryKV(view.counted_in)
            for part in parts:
                if part is None:
                    return None
                own.write(part)
            stores.append(cast(KV, _OfCommit(own, kv)))
        return stores

    def _parts_of(self, view: View, one: pa.Table) -> list[list[Batch | None]]:
        """Return what each commit wrote of one window of one key, by shard; it is read once."""
        name = view.definition.name, repr(one.to_pylist())
        if name not in self._parts:
            self._parts[name] = [
                [metadata_of(spec, record, partial(view.part_of, one, kv)) for record in self._commits]
                for kv, spec in zip(self._stores, self._specs, strict=True)
            ]
        return self._parts[name]

    def explain(self, name: str, provenance: Provenance) -> Explanation:
        """Explain it, down to the messages from outside."""
        fed, view = self._whole.fed_by(name), self._view_of(name)
        commits, known = self._touches(view, provenance, fed)
        complete = known and provenance.complete
        if provenance.messages is None:
            return Explanation(
                provenance.window,
                None,
                commits,
                complete,
                name,
                provenance.row,
                joined_by=provenance.joined_by,
            )
        inputs = {
            input: tuple(m.position for m in messages) for input, messages in provenance.messages.items()
        }
        outside: dict[Position, None] | None = {}
        rows: list[Explanation] = []
        for input, messages in provenance.messages.items():
            if input not in fed:
                origins: Sequence[Position] | None = inputs[input]
            else:
                emitted, origins = self._rows(fed[input], messages)
                rows += emitted
            outside = None if outside is None or origins is None else outside | dict.fromkeys(origins)
        return Explanation(
            provenance.window,
            tuple(p for positions in inputs.values() for p in positions),
            commits,
            complete,
            name,
            provenance.row,
            inputs,
            tuple(rows),
            None if outside is None else tuple(outside),
            provenance.joined_by,
            provenance.reasons,
        )

    def _rows(
        self, name: str, messages: Sequence[StoredMessage]
    ) -> tuple[list[Explanation], list[Position] | None]:
        """Explain rows of another operator, each once, with positions from outside; None where some are unknown."""
        distinct = {repr(m.payload): m.payload for m in messages}
        provenances = self._view_of(name).made_of(list(distinct.values()))
        seen: dict[int, Explanation] = {}
        for row in (m for group in provenances for m in group):
            if id(row) not in seen:
                seen[id(row)] = self.explain(name, row)
        outside = [e.outside for e in seen.values()]
        known = all(provenances) and all(o is not None for o in outside)
        return list(seen.values()), [p for o in outside for p in o or ()] if known else None

    # -- commits ----------------------------------------------------------------------------------------------------

    def _touches(
        self, view: View, provenance: Provenance, fed: Mapping[str, str]
    ) -> tuple[tuple[Touch, ...], bool]:
        if not view.counted_in:
            return _that_took(provenance, view, fed, self._commits)
        touches: list[Touch] = []
        complete = True
        one = None if provenance.window is None else view.one(provenance.window, None)
        parts = [] if one is None else self._parts_of(view, one)
        for i, (kv, spec) in enumerate(zip(self._stores, self._specs, strict=True)):
            written = parts[i] if parts else (metadata_of(spec, record) for record in self._commits)
            touched, whole = _that_wrote(provenance, view, kv, written, self._commits)
            touches += touched
            complete = complete and whole
        return tuple(sorted(touches, key=lambda t: t.commit)), complete


def _that_wrote(
    provenance: Provenance, view: View, kv: KV, written: Iterable[Batch | None], commits: Sequence[Commit]
) -> tuple[list[Touch], bool]:
    """Return the commits that brought messages to the window. written: what each wrote of a shard; None of those swept."""
    touches: list[Touch] = []
    before: int | None = 0 if commits and commits[0].commit == 1 else None
    complete = before is not None
    for record, batch in zip(commits, written, strict=True):
        if batch is None:
            before, complete = None, False
            continue
        own = MemoryKV(view.counted_in)
        own.write(batch.only(view.counted_in))
        changes = view.brought(provenance, cast(KV, _OfCommit(own, kv)))
        if changes is None:
            before, complete = None, False
            continue
        brought: int | None = 0
        for whole, n in changes:
            if whole:
                brought = None if before is None or brought is None else brought + n - before
                before = n
            else:
                brought = None if brought is None else brought + n
                before = None if before is None else before + n
        if changes and brought != 0:
            touches.append(Touch(record.commit, brought, _ranges(record)))
    return touches, complete


def _that_took(
    provenance: Provenance, view: View, fed: Mapping[str, str], commits: Sequence[Commit]
) -> tuple[tuple[Touch, ...], bool]:
    """Return the commits that ingested the messages of a row, or those of its messages that are known."""
    if provenance.messages is None:
        info = provenance.window
        named = [] if info is None else [info.first, info.last, provenance.joined_by]
        known = {i.name: [p for p in named if p is not None] for i in view.definition.inputs}
    else:
        known = {input: [m.position for m in messages] for input, messages in provenance.messages.items()}
    wanted = [
        (shown_source(view.source_prefix(input) + p.source), p.partition, p.offset)
        for input, positions in known.items()
        if input not in fed
        for p in positions
    ]
    touches, taken = [], 0
    for record in commits:
        ranges = _ranges(record)
        took = [
            at for at in wanted if any(at[:2] == (s, p) and low <= at[2] < high for s, p, low, high in ranges)
        ]
        if took:
            touches.append(Touch(record.commit, None if provenance.messages is None else len(took), ranges))
        taken += len(took)
    return tuple(touches), provenance.messages is not None and taken >= len(wanted)


def _ranges(record: Commit) -> tuple[Range, ...]:
    """Return the offsets that a commit took, by partition."""
    first: dict[tuple[str, int], int] = {}
    following: dict[tuple[str, int], int] = {}
    for step in record.steps:
        for partition, offset in step.next_offsets.items():
            first.setdefault(partition, step.first_offsets.get(partition, offset))
            following[partition] = offset
    return tuple((shown_source(s), p, first[s, p], following[s, p]) for s, p in sorted(first))


class _OfCommit:
    """A view of one commit's writes in some families, over the rest of a store (schemas)."""

    def __init__(self, own: MemoryKV, rest: KV) -> None:
        self._own, self._rest = own, rest

    def _of(self, cf: str) -> KV:
        return self._own if cf in self._own.cfs else self._rest

    def get(self, cf: str, key: bytes) -> bytes | None:
        return self._of(cf).get(cf, key)

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._of(cf).multi_get(cf, keys)

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        return self._of(cf).scan(cf, start, end, reverse)
