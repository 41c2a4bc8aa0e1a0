"""Evolution of state: a definition that differs by aggregations only, or by a larger session gap, opens the existing state.

Windows that begin before the change have null for an aggregation added by it: it has seen at most some of their messages. If
the messages are kept, the aggregation is computed from them. Removed aggregations are recorded, so that no other is read as
one of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: Log keys under which each opening records the evolution of operators, and the description of their state.
EVOLUTION, DESCRIBED = "evolution", "described"


#: Text for a change that the state would accept if it were the only one.
ALONE = "alone it could be opened"


def fingerprint_of(described: Mapping[str, Any]) -> str:
    """Return the hex digest of the description of a state."""
    text = json.dumps(described, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Growth:
    """The changes between a definition and its state. since_us: by aggregation, the first window start with all messages.

    removed: the texts of removed aggregations. recomputed_us: those computed from kept messages, with the first window start
    that did not need it. parts: of a graph, by operator. gap_us: the first gap that sessions had, if it has grown since.
    keeps_messages: True if every aggregation that needs messages was removed from a state that has them.
    """

    since_us: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    recomputed_us: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Growth] = field(default_factory=dict)
    gap_us: int | None = None
    keeps_messages: bool = False

    def __bool__(self) -> bool:
        parts = any(self.parts.values())
        kept = self.gap_us or self.keeps_messages
        return bool(self.since_us or self.removed or self.recomputed_us or parts or kept)

    def dump(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def load(cls, text: str | None) -> Growth:
        return cls() if text is None else cls._of(json.loads(text))

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Growth:
        return cls(**{**fields, "parts": {name: cls._of(part) for name, part in fields["parts"].items()}})


@dataclass(frozen=True)
class Before:
    """The state that is opened. described: the definition that wrote it; reached_us: the event time that it has reached."""

    described: Mapping[str, Any]
    growth: Growth
    reached_us: int
