"""Summary of commits that a log has dropped: a pure fold of their records.

Every commit has offsets, marks, watermarks, counters and the published commit, so the first kept one covers all before it.
Two facts are only here: what the commits of each query have read, and which dead letters exist.
A driver that truncates the log puts the summary into its claim (`meta["summary"]`, T1 of docs/explanation/commit-protocol.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windrow.checkpoint.records import Commit, ShardResult
from windrow.core.positions import Partition
from windrow.stores.files import plain_name

SUMMARY = "summary"
#: Counter of a shard's answer: rows of its dead-letter file.
DEAD_FILE = "dead_file"
#: Kind of a dead-letter file, where a transport keeps files.
DEAD = "dead"
#: In a commit's floors: dead letters of commits below this one are not kept.
LETTERS_FROM = "dead"


@dataclass(frozen=True, slots=True)
class DeadLetterFile:
    """File of the dead letters of one shard in one commit: `rows` of them in the file `name`.

    at: [first, last] offset where a transport keeps the file; None where it keeps none. digest: of the file, in hex
    """

    commit: int
    now_us: int
    shard: int
    name: str
    rows: int
    at: tuple[int, int] | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of commits `1..commit`. taken: by query, the partitions or whole files that its steps have read."""

    commit: int = 0
    taken: Mapping[str | None, frozenset[Partition]] = field(default_factory=dict)
    dead_letters: tuple[DeadLetterFile, ...] = ()

    @property
    def size(self) -> int:
        """Number of its partitions and file names, which grows with the files that queries have read."""
        return sum(map(len, self.taken.values()))

    def after(self, records: Iterable[Commit]) -> Summary:
        """Return the summary of this one's commits and those that follow."""
        number, files, read = (
            self.commit,
            list(self.dead_letters),
            {q: set(p) for q, p in self.taken.items()},
        )
        kept_from = 0
        for record in records:
            number = record.commit
            of_query = read.setdefault(record.query_id, set())
            for step in record.steps:
                of_query.update(step.next_offsets)
            files += letters_in(record)
            kept_from = record.floors.get(LETTERS_FROM, kept_from)
        return Summary(
            number,
            {query: frozenset(partitions) for query, partitions in read.items()},
            tuple(file for file in files if file.commit >= kept_from),
        )

    def dump(self) -> dict[str, Any]:
        """Return it as a claim stores it."""
        taken = sorted(self.taken.items(), key=lambda item: item[0] or "")
        return {
            "commit": self.commit,
            "read": [[query, [list(p) for p in sorted(read)]] for query, read in taken],
            "dead_letters": [
                [x.commit, x.now_us, x.shard, x.name, x.rows, None if x.at is None else list(x.at), x.digest]
                for x in self.dead_letters
            ],
        }


def load(meta: Mapping[str, Any]) -> Summary:
    """Return the summary in a claim; of nothing where it has none. ValueError where it is none."""
    record = meta.get(SUMMARY)
    if record is None:
        return Summary()
    try:
        return Summary(
            record["commit"],
            {query: frozenset((s, p) for s, p in read) for query, read in record["read"]},
            tuple(
                DeadLetterFile(commit, now_us, shard, plain_name(name), rows, at and (at[0], at[1]), *digest)
                for commit, now_us, shard, name, rows, at, *digest in record["dead_letters"]
            ),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"the summary of a claim cannot be read: {error!r}") from error


def letters_in(record: Commit) -> list[DeadLetterFile]:
    """List the files of dead letters of a commit, by shard."""
    files = []
    for result in record.shards:
        name, rows = letter_file(result), result.counters.get(DEAD_FILE)
        if rows and name is not None:
            now_us = record.now_us if record.now_us is not None else record.meta.get("now_us", 0)
            at = result.kept.get(DEAD)
            digest = result.digests.get(DEAD)
            files.append(DeadLetterFile(record.commit, now_us, result.shard, name, rows, at, digest))
    return files


def letter_file(result: ShardResult) -> str | None:
    """Return the name under which an attempt wrote its dead letters; None if it wrote none."""
    return result.segment or result.panes


def letters_kept(summary: Summary, commits: Iterable[Commit]) -> list[DeadLetterFile]:
    """List the files of dead letters that are kept, oldest first, of a log's summary and the commits that it has."""
    kept = Kept(summary)
    kept.follow(commits)
    return kept.dead_letters


class Kept:
    """Files of dead letters that are kept, oldest first, of a log's summary and of later commits, each read once."""

    def __init__(self, summary: Summary) -> None:
        self.dead_letters = list(summary.dead_letters)
        #: The first commit that was not followed; None: the first that the log has.
        self.next_commit: int | None = None

    def follow(self, commits: Iterable[Commit]) -> None:
        kept_from = 0
        for record in commits:
            self.dead_letters += letters_in(record)
            kept_from = record.floors.get(LETTERS_FROM, kept_from)
            self.next_commit = record.commit + 1
        if kept_from:
            self.dead_letters = [file for file in self.dead_letters if file.commit >= kept_from]
