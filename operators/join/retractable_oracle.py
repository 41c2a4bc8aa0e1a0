"""The oracle of a join with retractions, in lists and loops. Semantics "Joins", "Corrected messages"."""

from __future__ import annotations

from collections.abc import Sequence

from windrow.core.messages import JoinedRow, Kind, Timing
from windrow.core.time import END_OF_TIME_US
from windrow.operators.join.oracle import Held, JoinOracle, Sides
from windrow.operators.join.oracle_pairs import open_until
from windrow.operators.oracle.aggregates import same
from windrow.operators.oracle.oracle import Messages, Outcome, TakenBack

Pair = tuple[Held, Held]


class CorrectedJoinOracle(JoinOracle):
    """A join oracle that first applies retractions, with their pairs, and then adds new messages with theirs."""

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        _, taken = self._accept(messages, now_us, watermark_us)
        gone: Sides = {"left": [], "right": []}
        new: Sides = {"left": [], "right": []}
        for side, source in (("left", self.definition.left), ("right", self.definition.right)):
            for time_us, message in taken[source.name]:
                held = self._hold(side, (time_us, message))
                if isinstance(message, TakenBack):
                    self._retract(held, self._held[side], gone[side], new[side])
                elif not self._stays(held, gone[side]):
                    new[side].append(held)
        emitted = [m for m in self._held["left"] if m.matches]
        of_gone = self._pairs_of(gone, -1)
        for side in gone:
            self._held[side] = [m for m in self._held[side] if not _among(m, gone[side])]
        if self.definition.where is not None:
            new = self._without_raising(new["left"], new["right"], watermark_us)
        for side in gone:
            self._held[side] += new[side]
        of_new = self._pairs_of(new, 1)
        if self.definition.how == "semi":
            back = [m for m in emitted if _among(m, gone["left"]) or not m.matches]
            fresh = [m for m in self._held["left"] if m.matches and not _among(m, emitted)]
            of_gone = [
                (m, m if _among(m, gone["left"]) else next(b for a, b in of_gone if a is m)) for m in back
            ]
            of_new = [next((a, b) for a, b in of_new if a is m) for m in fresh]
        rows = self._rows(Kind.RETRACT, sorted(of_gone, key=_by_position), gone, watermark_us)
        rows += self._rows(Kind.INSERT, sorted(of_new, key=_by_position), new, watermark_us)
        self._drop(watermark_us)
        return Outcome(rows, sorted(self._dead, key=lambda letter: letter.position or ()))

    def _stays(self, came: Held, gone: list[Held]) -> bool:
        """True if it is as one that this step took back, which then stays."""
        for place, message in enumerate(gone):
            if _same(message, came):
                del gone[place]
                return True
        return False

    def _retract(self, back: Held, held: Sequence[Held], gone: list[Held], new: list[Held]) -> None:
        """Retract the oldest equal message; one of this step is removed as if it had never come."""
        for message in held:
            if _same(message, back) and not _among(message, gone):
                gone.append(message)
                return
        for place, message in enumerate(new):
            if _same(message, back):
                del new[place]
                return
        self._bury("too_late", "what it takes back is not kept", back.message, back.time_us)

    def _pairs_of(self, some: Sides, change: int) -> list[Pair]:
        """Return the pairs of held messages with at least one of these, and change the partner counts."""
        pairs = [
            (a, b)
            for a in self._held["left"]
            for b in self._held["right"]
            if (_among(a, some["left"]) or _among(b, some["right"])) and self._match(a, b)
        ]
        for pair in pairs if self.definition.how != "asof" else ():
            for message in pair:
                message.matches += change
                message.matched = message.matches > 0
        return sorted(pairs, key=_by_position)

    def _rows(self, kind: Kind, pairs: Sequence[Pair], some: Sides, watermark_us: int) -> list[JoinedRow]:
        """Return the rows of new, or retracted, pairs; `some` are the messages that were added or retracted."""
        if self.definition.how in ("anti", "asof"):
            return []
        rows = []
        for a, b in pairs:
            times = [m.time_us for m, side in ((a, "left"), (b, "right")) if _among(m, some[side])]
            timing = Timing.LATE if all(t < watermark_us for t in times) else Timing.EARLY
            values = self._columns.row(a.payload, b.payload)
            rows.append(JoinedRow(values, timing, kind=kind, is_last=False))
        return rows

    def _hopeless(self, side: str, message: Held, watermark_us: int) -> bool:
        """True if a message can match no more, and is too late to be retracted itself."""
        own = open_until(self._source(side), message.time_us) <= self._too_late_us(watermark_us)
        return (own or watermark_us == END_OF_TIME_US) and super()._hopeless(side, message, watermark_us)


def _same(one: Held, other: Held) -> bool:
    names = {*one.payload, *other.payload}
    values = all(same(one.payload.get(name), other.payload.get(name)) for name in names)
    return one.time_us == other.time_us and values


def _among(one: Held, some: Sequence[Held]) -> bool:
    return any(one is other for other in some)


def _by_position(pair: Pair) -> tuple[object, object]:
    return pair[0].position, pair[1].position
