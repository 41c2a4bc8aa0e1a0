"""What a delivery must tell, as lists and loops."""

from __future__ import annotations

from windrow.core.messages import Message
from windrow.operators.delivery.definition import DeliveryDefinition
from windrow.operators.plain.arrow import Filter, Raised
from windrow.operators.plain.one_input import OneInputOracle
from windrow.operators.plain.oracle import Messages, Outcome, listed


class DeliveryOracle(OneInputOracle):
    """The expected behaviour of one `DeliveryDefinition`."""

    definition: DeliveryDefinition

    def __init__(self, definition: DeliveryDefinition) -> None:
        super().__init__(definition)
        self._guarantee = Filter(definition.guarantee)
        #: Of the step, in position order: messages with their times, and whether they are never skipped.
        self._came: list[tuple[Message, int, bool]] = []

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        self._came = []
        self._guarantee.learn([{**m.payload, self.definition.event_time: None} for m in listed(messages)])
        outcome = super().ingest(messages, now_us, watermark_us)
        for i, (message, time_us, sure) in enumerate(self._came):
            if sure or self._is_wanted(i, now_us):
                self.tell("LATE" if self.is_late(time_us) else "EARLY", message.payload)
        return Outcome([*outcome.rows, *self._outcome().rows], outcome.dead)

    def take(self, message: Message, time_us: int, now_us: int) -> bool:
        payload = dict(message.payload)
        self._guarantee.learn([payload])
        try:
            sure = self.definition.guarantee is not None and self._guarantee.passes(payload)
        except Raised:
            self.bury("malformed", message, time_us)
            return False
        self._came.append((message, time_us, sure))
        return True

    def _is_wanted(self, i: int, now_us: int) -> bool:
        """True if the policy lets the message pass, which nothing guarantees."""
        policy, (message, time_us, _) = self.definition.policy, self._came[i]
        if policy.within_us is not None:
            return now_us - time_us <= policy.within_us
        assert policy.newest is not None
        key = self.key_of(message.payload)
        before = [sure for other, _, sure in self._came[:i] if self.key_of(other.payload) == key]
        behind = [sure for other, _, sure in self._came[i + 1 :] if self.key_of(other.payload) == key]
        return sum(before) + len(behind) < policy.newest
