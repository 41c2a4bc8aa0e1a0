"""Dead letters of a job, kept in separate files."""

from __future__ import annotations

from windrow.checkpoint.truncation_summary import DeadLetterFile
from windrow.connectors.manifests import read_file
from windrow.core.messages import DeadLetter
from windrow.operators.steps.dead_letters import to_letters


def letters_of(path: str, file: DeadLetterFile) -> list[DeadLetter]:
    """Return the dead letters of a shard in a commit; none where the file was swept since."""
    try:
        table = read_file(path)
    except FileNotFoundError:
        return []
    return to_letters(table, file.commit)
