"""How messages that an operator keeps come back, from their source, where a shard has lost them."""

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
    """How messages come back, from their source, where a shard has lost them. One of its two kinds."""

    logic: Logic
    #: The event time below which no message is kept.
    kept_from: Callable[[KV], int]
    #: Why steps are needed that took nothing of what is kept.
    why: str = ""
    #: False if there cannot be messages yet.
    begun: Callable[[KV], bool] = lambda kv: True
    #: (the shard's store, an empty one): write what steps that are run again need, and the shard has from its beginning.
    prepare: Callable[[KV, KV], None] = lambda kv, scratch: None

    @property
    def every_step(self) -> bool:
        """True if all steps there were are needed, not only those that took what is kept."""
        return isinstance(self, RunAgain)


@dataclass(frozen=True, kw_only=True)
class FileAgain(Refiling):
    """The messages that are kept are filed as they were."""

    #: (store, messages by input, taken by steps (`STEP`, their index), those steps): the metadata that belongs to them is
    #: there. How many could not be counted, for what they are themselves.
    file: Callable[[KV, Mapping[str, pa.Table], Redone], int]
    #: What was filed again and is kept no more goes.
    drop_expired: Callable[[KV], None]
    #: So many steps can be filed again at once.
    steps_at_once: int = 1
    #: True if it has to be known how many messages did not count: what decided that may depend on others of then.
    checks_uncounted: bool = False
    #: True if messages lie under the numbers of the steps that took them.
    by_number: bool = False


@dataclass(frozen=True, kw_only=True)
class RunAgain(Refiling):
    """Which messages are kept depends on every step there was: all of them are run again, on a store of its own."""

    #: What all steps have come to, which they have to come to again.
    reached: Callable[[KV], Any]


def numbers_of(logic: Logic, first: bytes, last: bytes) -> Callable[[KV], Any]:
    """What steps have come to: how many there were, and what progress says under the keys [first, last)."""
    return lambda kv: (logic.progress(kv).step, list(kv.scan(logic.aux_cf, first, last)))
