"""Work of one step of an operator: its reads and writes, and its result."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from windrow.operators.steps.dead_letters import DeadLetters, letters_by_input
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV, Batch


@dataclass
class Work:
    """One step: its store, the progress of the operator, its result and its dead letters."""

    kv: KV
    progress: Progress
    result: StepResult
    dead: DeadLetters
    now_us: int

    @property
    def schema(self) -> pa.Schema:
        """The known columns of the input."""
        assert self.progress.schema is not None
        return self.progress.schema

    def into(self, result: StepResult) -> Work:
        """Return the same step with another result."""
        return replace(self, result=result)

    def end(self, aux_cf: str) -> StepResult:
        """Complete the step (`end_step`)."""
        return end_step(self.kv, aux_cf, self.progress, self.result, self.dead)


def begin_step(kv: KV, aux_cf: str, dead_letter_limit: int, now_us: int) -> Work:
    """Begin the next step of an operator."""
    progress = Progress.load(kv, aux_cf)
    progress.step += 1
    return Work(kv, progress, StepResult(), DeadLetters(dead_letter_limit), now_us)


def save_progress(kv: KV, aux_cf: str, progress: Progress) -> None:
    """Write the progress of an operator."""
    batch = Batch()
    progress.save(lambda key, value: batch.put(aux_cf, key, value))
    kv.write(batch)


def end_step(kv: KV, aux_cf: str, progress: Progress, result: StepResult, dead: DeadLetters) -> StepResult:
    """Save the progress, and complete the result by dead letters and counts."""
    save_progress(kv, aux_cf, progress)
    result.dead = letters_by_input(dead.table())
    for reason, n in dead.counts.items():
        result.counts[f"dead.{reason}"] = n
    return result
