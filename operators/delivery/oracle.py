"""The oracle of delivery, as lists and loops: all messages that the policy does not skip
(`operators/oracle/delivery_stage.py`)."""

from __future__ import annotations

from windrow.core.messages import Message
from windrow.operators.delivery.definition import DeliveryDefinition
from windrow.operators.oracle.one_input import OneInputOracle


class DeliveryOracle(OneInputOracle):
    """The expected behaviour of one `DeliveryDefinition`."""

    definition: DeliveryDefinition

    def accept(self, message: Message, time_us: int, now_us: int) -> bool:
        self.emit_row("LATE" if self.is_late(time_us) else "EARLY", message.payload)
        return True
