"""Definition of rules over several inputs: a frozen value, checked when built, whose `repr` builds it again.

Seed 004 "Event Processing Modes", "Entry Points", "Partitioning".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import pyarrow as pa

from windrow.core import check
from windrow.core.emit import Emit
from windrow.core.errors import BadTrigger, ConfigurationError
from windrow.core.inputs import STAMPED, Input, Interval
from windrow.core.policy import Forever, Retention, Watermark
from windrow.core.time import Duration
from windrow.operators.evolution import Before, Growth
from windrow.operators.operator import Logic, Taker
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.rules.patterns import Pattern, Rule, bindings
from windrow.operators.rules.validation import normalise_rules
from windrow.operators.several_inputs import SeveralInputs

Mode = Literal["stream", "cloud"]
#: The columns of every row, between the keys and those of `then`; and the last one.
RULE, MATCH_ID, MATCH_TIME, MESSAGES = "rule", "match_id", "match_time", "messages"


@dataclass(frozen=True, repr=False, init=False)
class RulesDefinition(SeveralInputs):
    """Temporal rules: combinations of events of several inputs, events that must be absent, and the facts that apply.

    A frozen value: compare it, print it, pickle it. It runs as `wr.Aggregate` does; messages name their input.

    inputs: wr.Input(...) for events, wr.Table(...) for facts
    rules: name -> wr.Rule(when=..., then=...)
    by: partition columns: rows that differ in them never match, and may be in other shards; () for one shard
    mode: "stream", in which event time passes, messages expire, and absences wait for their deadline; or "cloud", without time:
        nothing expires, and absences are decided at the end of each step
    allowed_lateness: how far below the watermark a message is accepted. Each second of it delays every absence by a second
    emit: wr.Emit.append() emits each row once, when nothing can contradict it; wr.Emit(late=wr.every_batch, mode="retracting")
        emits at the watermark, and retracts rows that a late message contradicts
    null_keys: messages with a null in `by` are a partition, "group", or dead letters, "dead_letter"
    name: the operator's name, unique in its job
    dead_letter_limit, dead_letter_retention: as of `wr.Aggregate`

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy;
    `BadRule`: a rule that cannot be true

    >>> import windrow as wr
    >>> alarms = wr.Rules(
    ...     by="room",
    ...     inputs=[wr.Input("fires", event_time="at"), wr.Input("sprinklers", event_time="at")],
    ...     rules={
    ...         "no water": wr.Rule(
    ...             when={
    ...                 "fire": wr.event("fires"),
    ...                 "water": wr.absent("sprinklers", time=wr.after("fire", 0, "10 seconds")),
    ...             },
    ...             then={"since": wr.col("fire.at")},
    ...         ),
    ...     },
    ... )
    >>> alarms.name
    'rules'
    """

    by: tuple[str, ...]
    user_inputs: tuple[Input, ...]
    rules: Mapping[str, Rule]
    mode: str
    late_us: int
    emit: Emit
    null_keys: str
    name: str
    retention: Retention
    dead_letter_limit: int
    dead_letter_retention_us: int | None
    written: tuple[tuple[str, str], ...] = field(compare=False)

    @check.suggests
    def __init__(
        self,
        *,
        inputs: Sequence[Input],
        rules: Mapping[str, Rule],
        by: str | Sequence[str] = (),
        mode: Mode = "stream",
        allowed_lateness: Duration = "0 seconds",
        emit: Emit | None = None,
        null_keys: Literal["group", "dead_letter"] = "group",
        name: str = "rules",
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
    ) -> None:
        arguments = check.arguments(locals())
        fields = normalise_rules({**arguments, "emit": Emit.append() if emit is None else emit})
        emitted = None if fields["emit"] == Emit.append() else emit
        listed = {"inputs": list(inputs), "rules": dict(rules), "emit": emitted}
        self._set(**fields, written=self._written({**arguments, **listed}))

    @property
    def retracts(self) -> bool:
        """True if rows are emitted at the watermark, and taken back where a late message contradicts them."""
        return self.emit.mode == "retracting"

    @property
    def patterns(self) -> Iterator[tuple[str, str, Pattern]]:
        """Every pattern: its rule's name, its binding, itself."""
        for name, rule in self.rules.items():
            for _, binding, pattern in bindings([rule]):
                yield name, binding, pattern

    def plan(self) -> str:
        """Write the plan of the rules as text: kept messages, times that are read, moments of decision, and the order of joins.

        >>> import windrow as wr
        >>> acks = wr.event("acks", time=wr.after("bo", 0, "10 seconds"))
        >>> rules = wr.Rules(
        ...     by="id",
        ...     inputs=[wr.Input("orders", event_time="at"), wr.Input("acks", event_time="at")],
        ...     rules={"correlate orders": wr.Rule(when={"bo": wr.event("orders"), "ae": acks})},
        ... )
        >>> print(rules.plan())
        correlate orders  by id
          bo  orders  kept 10 seconds
          ae  acks    kept 0 seconds
          times ae - bo in [0 seconds, 10 seconds]
          joins new bo: ae in [bo, bo + 10 seconds]
          joins new ae: bo in [ae - 10 seconds, ae]
        expiry  orders 10 seconds, acks 0 seconds; allowed lateness 0 seconds is added to each
        """
        from windrow.operators.rules.plan import plan_of

        return plan_of(self)

    def of_rules(self, rules: Mapping[str, Rule]) -> Self:
        """Return the same definition of other rules, which were checked."""
        return self._changed(rules=rules)

    def columns_of(self, input: Input) -> tuple[str, ...]:
        interval, facts = input.interval or Interval(), input.facts
        of_facts = () if facts is None else (*(facts.key or ()), *((facts.deleted,) if facts.deleted else ()))
        named = [*super().columns_of(input), *interval.columns, *of_facts]
        named += [own for _, _, p in self.patterns if p.input == input.name for own, _ in p.on]
        return tuple(dict.fromkeys(name for name in named if name != STAMPED))

    def one_shard(self) -> str | None:
        if not self.by:
            return "it has no partition columns, by=()"
        return super().one_shard()

    @property
    def copied(self) -> frozenset[str]:
        facts = [i for i in self.user_inputs if i.facts is not None]
        return frozenset(i.name for i in facts if self.by and i.by == ())

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        changed = super().with_watermarks(watermarks)
        written = {**dict(self.written), "inputs": repr(list(changed.user_inputs))}
        return changed._changed(written=tuple(written.items()))

    def describe(self) -> dict[str, Any]:
        """Return the options that shape the state, as plain values: the text behind the fingerprint."""
        return {
            "operator": "rules",
            "by": list(self.by),
            "inputs": [
                repr(replace(i, watermark=Watermark("bounded"), max_ahead_us=None, positions=None))
                for i in self.user_inputs
            ],
            "rules": {name: rule.describe() for name, rule in self.rules.items()},
            "mode": self.mode,
            "retracts": self.retracts,
            "null_keys": self.null_keys,
        }

    def growth(self, before: Before) -> Growth | str:
        """Compare two versions: rules may be added and removed; those of one name keep their patterns."""
        own, described = json.loads(json.dumps(self.describe())), before.described
        changes = [
            f"{name} was {described.get(name)!r} and is {value!r}"
            for name, value in own.items()
            if name != "rules" and value != described.get(name)
        ]
        former = described.get("rules", {})
        changes += [
            f"rule {name!r} has other patterns, or another delay: give it another name"
            for name, rule in own["rules"].items()
            if former.get(name, rule) != rule
        ]
        return "".join(f"\n  - {change}" for change in changes) if changes else before.growth

    @property
    def periods(self) -> frozenset[int] | None:
        return frozenset()

    @property
    def tables(self) -> tuple[str, ...]:
        return ("messages", "pending")

    @property
    def output_columns(self) -> tuple[str, ...] | None:
        columns = [RULE, MATCH_ID, MATCH_TIME]
        for rule in self.rules.values():
            if rule.then is None:
                return None
            columns += rule.then
        return tuple(dict.fromkeys([*self.by, *columns, MESSAGES]))

    @property
    def emission_mode(self) -> str:
        return "retracting" if self.retracts else "once"

    @property
    def emits_updates(self) -> bool:
        return self.retracts

    def taker(self, before: str) -> Taker:
        taker = super().taker(before)
        input = self.input(before)
        if input.static or input.stamped:
            raise ConfigurationError(
                f"{input!r} of {self.name!r} takes the rows of {before!r}: use wr.Input with the event time of these rows"
            )
        return replace(taker, keeps="rules take no message back")

    def check_followed(self, taker: Taker) -> None:
        taker.check_rows(self, MATCH_TIME)
        if self.retracts and taker.keeps:
            raise BadTrigger(
                f"{self.emit!r} of {self.name!r}, before {taker.name!r}: rows may be taken back; {taker.keeps}; or leave emit= "
                "out"
            )

    def output_delay_us(self, event_time: str) -> int:
        waits = [
            max([rule.delay_us or 0, *(p.wait_us for p in rule.when.values())])
            for rule in self.rules.values()
        ]
        return self.late_us + max(waits)

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.delivery_stage import delivering
        from windrow.operators.rules.logic import RulesOperator

        return delivering(RulesOperator(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.oracle.delivery_stage import delivering
        from windrow.operators.rules.oracle import RulesOracle

        return delivering(self, RulesOracle(self, schemas), schemas)
