"""Replay of kept messages from their source, after a shard has lost them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.operators.steps.replayed_steps import Redone
from windrow.stores.kv import KV

if TYPE_CHECKING:
    from windrow.operators.operator import Logic


@dataclass(frozen=True, kw_only=True)
class Refiling:
    """A way to restore lost messages from their source. It is one of two kinds."""

    logic: Logic
    #: No message with an event time below it is kept.
    kept_from: Callable[[KV], int]
    #: Reason why steps are needed that brought no kept message.
    why: str = ""
    #: False if there cannot be messages yet.
    begun: Callable[[KV], bool] = lambda kv: True
    #: (the shard's store, an empty one): write the state of the shard's beginning that replayed steps need.
    prepare: Callable[[KV, KV], None] = lambda kv, scratch: None

    @property
    def every_step(self) -> bool:
        """True if all steps are needed, not only those that brought kept messages."""
        return isinstance(self, RunAgain)


@dataclass(frozen=True, kw_only=True)
class FileAgain(Refiling):
    """Replay that writes the kept messages again, as they were."""

    #: (store, messages by input, processed by steps (`STEP`, their index), those steps): the metadata of the messages is
    #: there. Returns how many were not counted because of their own values.
    file: Callable[[KV, Mapping[str, pa.Table], Redone], int]
    #: Deletes messages that were written again and are no longer kept.
    drop_expired: Callable[[KV], None]
    #: Number of steps that can be written again at once.
    steps_at_once: int = 1
    #: True if the number of uncounted messages has to be known: that may depend on other messages of the time.
    checks_uncounted: bool = False
    #: True if messages are stored under the numbers of their steps.
    by_number: bool = False


@dataclass(frozen=True, kw_only=True)
class RunAgain(Refiling):
    """Replay of every step on a store of its own, for operators whose kept messages depend on all steps."""

    #: The result of all steps, which the replay has to reproduce.
    reached: Callable[[KV], Any]


def numbers_of(logic: Logic, first: bytes, last: bytes) -> Callable[[KV], Any]:
    """Return a function that gives the step count of a store and its progress entries under the keys [first, last)."""
    return lambda kv: (logic.progress(kv).step, list(kv.scan(logic.aux_cf, first, last)))
