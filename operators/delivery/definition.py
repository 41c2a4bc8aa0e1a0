"""The definition of a delivery: a frozen value, checked when built, whose `repr` builds it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.deliver import Policy, check_mark, policy_of
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.policy import UNBOUNDED_US, Forever, Retention, Watermark
from windrow.core.positions import Positions
from windrow.core.time import Duration, TimeUnit
from windrow.operators.one_input import OneInput
from windrow.operators.operator import Logic
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.input_filter import filter_of


@dataclass(frozen=True, repr=False, init=False)
class DeliveryDefinition(OneInput):
    """A delivery policy: it forwards some messages of a step and skips the others, for a downstream operator that cannot keep
    up, or that needs only the newest.

    event_time: the column of event time
    policy: wr.deliver.latest(), newest(1000), within("2 seconds") or throttle("1 second")
    by: key columns, one name or several: of each key by itself; () of the whole input
    guarantee: an expression, e.g. `wr.col("kind") == "alarm"`: a message for which it is true is never skipped
    mark: a column that its rows get besides those of the message: then skipped messages are emitted, too, with true there.
        Downstream aggregations filter by it, `.where(~wr.col(mark))`, and `wr.skipped(mark)` counts the others
    name, watermark, null_keys, time_zone, event_time_unit, max_ahead, positions, input, where: as for `wr.Aggregate`
    dead_letter_limit, dead_letter_retention: as for `wr.Aggregate`

    A step is a table, a poll of a consumer, or a batch of Spark; a message that is added by itself is alone. The messages that
    pass depend on the step and its recorded `now` alone, so that a step that is done again skips the same ones.
    These are counted (`skipped`), are no dead letters, and move the watermark. Rows are the messages themselves.

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import tempfile, windrow as wr
    >>> fresh = wr.Delivery(by="k", event_time="t", policy=wr.deliver.latest())
    >>> with tempfile.TemporaryDirectory() as folder, fresh.open(folder) as op:
    ...     op.add_messages([{"t": 0, "k": "a", "x": 1}, {"t": 1, "k": "a", "x": 2}, {"t": 0, "k": "b", "x": 3}])
    ...     [row["x"] for row in op.get_result()], op.counters["skipped"]
    ([2, 3], 1)
    """

    policy: Policy
    guarantee: Expr | None
    mark: str | None
    retention: Retention

    @check.suggests
    def __init__(
        self,
        *,
        event_time: str,
        policy: Policy,
        by: str | Sequence[str] = (),
        guarantee: pc.Expression | None = None,
        mark: str | None = None,
        watermark: Duration | Watermark = "0 seconds",
        name: str = "delivery",
        null_keys: str = "group",
        time_zone: str | None = None,
        event_time_unit: TimeUnit | None = None,
        max_ahead: Duration | Forever | None = None,
        positions: Positions | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
        input: str | None = None,
        where: pc.Expression | None = None,
    ) -> None:
        where, guarantee = filter_of(where), filter_of(guarantee)
        arguments = check.arguments(locals())
        remedy = "use wr.deliver.latest(), newest(1000), within('2 seconds') or throttle('1 second')"
        check.of_type(policy, Policy, "policy", remedy)
        deliver = policy if guarantee is None else policy.guarantee(guarantee.expression)
        policy_of(policy)
        if mark is not None:
            deliver = deliver.marked(mark)
            check_mark(deliver, (*check.names(by, "by", remedy), event_time))
        own = {"policy": policy, "guarantee": guarantee, "mark": mark, "retention": Retention(0)}
        self._fill(arguments, late_us=UNBOUNDED_US, deliver=policy_of(deliver, marks=True), **own)

    @property
    def periods(self) -> frozenset[int]:
        return frozenset()

    def describe(self) -> dict[str, Any]:
        return self._described("delivery", mark=self.mark)

    def filing(self) -> dict[str, Any]:
        # The mark is part of the fingerprint; `record` is not.
        marked = {name: p for name, p in self.policies.items() if p.mark is not None}
        noted = {name: repr(replace(p, mark=None, record="rows")) for name, p in marked.items()}
        return {"deliver": noted} if noted else super().filing()

    def times_of(self, event_time: str) -> Input | None:
        return self.inputs[0]

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.delivery.logic import Deliverer
        from windrow.operators.delivery_stage import delivering

        return delivering(Deliverer(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.delivery.oracle import DeliveryOracle
        from windrow.operators.oracle.delivery_stage import delivering

        return delivering(self, DeliveryOracle(self), schemas)
