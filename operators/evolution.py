"""A definition that differs from the one of the state by aggregations only, or by a larger gap of sessions, opens it: what it
lacks, and since when.

Windows that begin before the growth have null for an aggregation that came with it, whatever they hold: of their messages it
has seen some at most; unless these are kept, and it is computed of them. What went is remembered, so that nothing else is ever
read as it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: Under which the log keeps, of each opening, what operators have grown by, and what shaped their state.
GROWN, DESCRIBED = "grown", "described"


#: What is said of a change that state could be opened with, if it were the only one.
ALONE = "alone it could be opened"


def fingerprint_of(described: Mapping[str, Any]) -> str:
    """Hex digest of what shapes a state."""
    text = json.dumps(described, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Growth:
    """since_us: by aggregation, the first start of windows in which it has seen all messages. gone: those that went.

    recomputed_us: those that were computed of kept messages, with the first start of windows that did not need it. parts: of a
    graph, by operator. gap_us: the first gap that sessions had, where it has grown since. keeps_messages: True where all that
    needs messages has gone from a state that has them.
    """

    since_us: Mapping[str, int] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    recomputed_us: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Growth] = field(default_factory=dict)
    gap_us: int | None = None
    keeps_messages: bool = False

    def __bool__(self) -> bool:
        parts = any(self.parts.values())
        kept = self.gap_us or self.keeps_messages
        return bool(self.since_us or self.gone or self.recomputed_us or parts or kept)

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
    """The state that is opened. described: the definition that wrote it; reached_us: how far event time had come in it."""

    described: Mapping[str, Any]
    growth: Growth
    reached_us: int
