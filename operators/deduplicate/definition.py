"""The definition of a deduplication: a frozen value, checked when built, whose `repr` builds it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.deliver import Policy
from windrow.core.errors import BadDuration, ConfigurationError
from windrow.core.inputs import Input
from windrow.core.policy import UNBOUNDED_US, Forever, Retention, Watermark
from windrow.core.positions import Ids, Positions, ids_of
from windrow.core.time import Duration, TimeUnit, duration_us
from windrow.operators.one_input import OneInput
from windrow.operators.operator import Logic
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.input_filter import filter_of


@dataclass(frozen=True, repr=False, init=False)
class DeduplicateDefinition(OneInput):
    """A deduplication: it forwards the first message of each key and id, and drops duplicates: retries, redeliveries.

    by: key columns (one name or several)
    event_time: the column of event time
    ids: the columns by which messages of a key are equal, one name or several; without it a key has one message
    within: how far apart in event time two of them may be and are still one, both ends included; wr.forever: always
    keep: "first": the one that came first is kept, whatever their event times, and is emitted at once
    name, watermark, null_keys, time_zone, event_time_unit, max_ahead, positions, input, where, deliver: as for `wr.Aggregate`
    dead_letter_limit, dead_letter_retention: as for `wr.Aggregate`

    Rows are the messages themselves. A message is too late, a dead letter, when the watermark is more than `within` past it:
    the ids of its time have expired. Duplicates are counted (`duplicates`), and move the watermark.

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import tempfile, windrow as wr
    >>> orders = wr.Deduplicate(event_time="t", ids="order", within="1 hour")
    >>> with tempfile.TemporaryDirectory() as folder, orders.open(folder) as op:
    ...     for order in (1, 2, 1):
    ...         op.add_message({"t": "2013-07-01 05:10Z", "order": order})
    ...     [row["order"] for row in op.get_result()]
    [1, 2]
    """

    within_us: int | None
    retention: Retention

    @check.suggests
    def __init__(
        self,
        *,
        by: str | Sequence[str] = (),
        event_time: str,
        ids: Ids | str | Sequence[str] | None = None,
        within: Duration | Forever,
        keep: str = "first",
        watermark: Duration | Watermark = "0 seconds",
        name: str = "deduplicate",
        null_keys: str = "group",
        time_zone: str | None = None,
        event_time_unit: TimeUnit | None = None,
        max_ahead: Duration | Forever | None = None,
        positions: Positions | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
        input: str | None = None,
        where: pc.Expression | None = None,
        deliver: Policy | None = None,
    ) -> None:
        where = filter_of(where)
        ids = ids_of(ids)
        arguments = check.arguments(locals())
        if keep != "first":
            raise ConfigurationError(
                f"keep={keep!r}: use 'first'. The last is known only when no other can come, as in wr.Aggregate: "
                "agg={'x': wr.last('x')}"
            )
        within_us = None if isinstance(within, Forever) else duration_us(within, "within")
        if within_us is not None and within_us < 0:
            raise BadDuration(f"within {within!r} is negative: use '0 seconds' or more, or wr.forever")
        late_us = UNBOUNDED_US if within_us is None else within_us
        own = {"ids": ids, "within_us": within_us, "retention": Retention(within_us), "late_us": late_us}
        self._fill(arguments, **own)
        if not self.by and ids is None:
            raise ConfigurationError(
                f"{self.name!r} has neither by= nor ids=: name the columns in which duplicates are equal, e.g. "
                "ids='order_id'"
            )

    @property
    def periods(self) -> frozenset[int]:
        return frozenset()

    def describe(self) -> dict[str, Any]:
        return self._described("deduplicate")

    def times_of(self, event_time: str) -> Input | None:
        return self.inputs[0]

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.deduplicate.logic import Deduplicator
        from windrow.operators.delivery_stage import delivering

        return delivering(Deduplicator(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.deduplicate.oracle import DeduplicateOracle
        from windrow.operators.oracle.delivery_stage import delivering

        return delivering(self, DeduplicateOracle(self), schemas)
