"""The oracle of a join in plain Python: lists and loops, no store, no cleverness.

Fed with the steps of a job, it gives the rows and dead letters that each step must emit. Operators are compared with it;
it shares nothing with them but the value types of `windrow.core`. Semantics "Joins"; seed 003 "Case 2: windowed join".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from windrow.core.emit import EveryBatch, EveryPeriod, Trigger
from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, JoinedRow, Message, Position, Timing
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, to_datetime
from windrow.core.windows import Rows
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.oracle_columns import JoinColumns
from windrow.operators.join.oracle_pairs import fits, latest_partner, open_until
from windrow.operators.oracle.arrow import Filter, Raised
from windrow.operators.oracle.cells import Key, key_field
from windrow.operators.oracle.oracle import Messages, Oracle, Outcome, by_input
from windrow.operators.oracle.times import event_time_us


@dataclass
class Held:
    """An accepted message on one side of the join. In a join with itself there is one of it on each side."""

    time_us: int
    position: Position
    payload: dict[str, Any]
    key: Key
    message: Message
    number: int = 0  # among those that its side's window of rows counts together, from 1
    matched: bool = False
    matches: int = 0  # where messages may be retracted: the number of its current partners
    done: bool = False  # it can match no more, and that was judged


Sides: TypeAlias = dict[str, list[Held]]


class JoinOracle(Oracle):
    """The expected behaviour of one `JoinDefinition`. schemas: of each input, where it is known before the first message."""

    definition: JoinDefinition
    takes_columns = True

    def __init__(self, definition: JoinDefinition, schemas: Mapping[str, Any] | None = None) -> None:
        super().__init__(definition)
        self._columns = JoinColumns(definition, schemas or {})
        self._now_us: int | None = None
        self._ticked_us: int | None = None  # `now` of the last advance, or of the very first step
        self._held: dict[str, list[Held]] = {"left": [], "right": []}  # in order of arrival
        self._filters = {source.name: Filter(source.where) for source in definition.inputs}
        self._totals: dict[tuple[str, Key], int] = {}
        #: (event time, position) of the newest message of a group that the count limit evicted.
        self._floors: dict[tuple[str, Key], tuple[int, Position]] = {}
        self._pending: list[JoinedRow] = []
        self._dead: list[DeadLetter] = []

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        """Match left messages with the right ones of earlier steps; then match right ones with all left ones that have come."""
        _, taken = self._accept(messages, now_us, watermark_us)
        left = [self._hold("left", message) for message in taken[self.definition.left.name]]
        right = [self._hold("right", message) for message in taken[self.definition.right.name]]
        if self.definition.where is not None:
            left, right = self._without_raising(left, right, watermark_us).values()

        pairs = [(a, b) for a in left for b in self._newest("right") if self._match(a, b)]
        self._file("left", left)
        pairs += [(a, b) for b in right for a in self._newest("left") if self._match(a, b)]
        self._file("right", right)

        rows = []
        for a, b in sorted(pairs, key=lambda pair: (pair[0].position, pair[1].position)):
            came = [
                m.time_us < watermark_us for m, new in ((a, left), (b, right)) if any(m is n for n in new)
            ]
            rows += self._matched(a, b, Timing.LATE if all(came) else Timing.EARLY)
        displaced = {side: [m for m in self._held[side] if self._displaced(side, m)] for side in self._held}
        rows += self._unmatched(displaced)
        self._drop(watermark_us)
        return Outcome(rows, sorted(self._dead, key=lambda letter: letter.position or ()))

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        """Emit what the watermark decides, then release deferred rows, then expire messages."""
        self._dead = []
        now = self._now(now_us)
        ticked = now if self._ticked_us is None else self._ticked_us
        self._ticked_us = now
        rows = self._shrink(self.watermark_us)
        self.watermark_us = after = max(watermark_us, self.watermark_us)

        rows += self._as_of(after) if self.definition.how == "asof" else []
        hopeless = {
            side: [m for m in self._held[side] if self._hopeless(side, m, after)] for side in self._held
        }
        rows += self._unmatched(hopeless)
        waiting = []
        for row in self._pending:
            if after == END_OF_TIME_US or _ticks(self._trigger(row.timing), ticked, now):
                rows.append(row)
            else:
                waiting.append(row)
        self._pending = waiting
        self._drop(after)
        return Outcome(rows, self._dead)

    def kept(self, input: str) -> list[Message]:
        """Return the kept messages of an input, in order of event time, then position: of a window of rows the newest."""
        kept: dict[Position, Held] = {}
        for side, source in (("left", self.definition.left), ("right", self.definition.right)):
            if source.name == input:
                kept |= {m.position: m for m in self._newest(side)}
        return [m.message for m in sorted(kept.values(), key=lambda m: (m.time_us, m.position))]

    def know(self, input: str, columns: Sequence[str]) -> None:
        refused = self._columns.refused(input, dict.fromkeys(columns))
        self._columns.see(input, {c: None for c in columns if c not in refused})
        self._filters[input].learn([dict.fromkeys(columns)])

    @property
    def columns(self) -> list[str]:
        """The columns of the rows, as known so far."""
        return self._columns.names

    @property
    def is_empty(self) -> bool:
        """True when nothing is kept: no messages, no rows that wait."""
        return not self._held["left"] and not self._held["right"] and not self._pending

    # -- taking messages ---------------------------------------------------------------------------------------------

    def _accept(
        self, messages: Messages, now_us: int, watermark_us: int
    ) -> tuple[int, dict[str, list[tuple[int, Message]]]]:
        """Return `now`, and the countable messages of a step by input; column names are settled."""
        messages = by_input(self.definition.inputs, messages)
        self._dead, self.counted = [], []
        now = self._now(now_us)
        self._ticked_us = now if self._ticked_us is None else self._ticked_us
        taken = {
            source.name: self._admit(source, messages, now, watermark_us) for source in self.definition.inputs
        }
        self._columns.settle()
        return now, taken

    def _admit(
        self, source: Input, messages: Mapping[str, Sequence[Message]], now_us: int, watermark_us: int
    ) -> list[tuple[int, Message]]:
        """Return the messages of an input that are no dead letters, in position order, with their event times."""
        taken = []
        self._filters[source.name].learn([dict(m.payload) for m in messages.get(source.name, ())])
        for message in sorted(messages.get(source.name, ()), key=lambda m: m.position or ()):
            position, value = message.position, message.payload.get(source.event_time)
            assert position is not None
            refused = self._columns.refused(source.name, message.payload)
            self._columns.see(source.name, {c: v for c, v in message.payload.items() if c not in refused})
            if any(message.payload[c] is not None for c in refused):
                self._bury("malformed", f"column {refused[0]!r} is one of ours, or another's", message, None)
                continue
            time_us = event_time_us(
                value, source.time_zone, now_us, source.max_ahead_us, source.event_time_unit
            )
            if time_us is None:
                self._bury("malformed", f"event time {source.event_time!r} is {value!r}", message, None)
                continue
            until = self._open_until(source, time_us)
            if not self._passes(source, message, time_us, until, watermark_us):
                continue
            if not source.static and until <= self._too_late_us(watermark_us):
                kept = self.definition.retention.time_us
                gone = kept is not None and until <= watermark_us - kept
                detail = f"open until {until} at watermark {watermark_us}"
                self._bury("out_of_retention" if gone else "too_late", detail, message, time_us)
                continue
            if (time_us, position) <= self._floor(source, message):
                detail = f"{self.definition.retention!r} has newer ones"
                self._bury("out_of_retention", detail, message, time_us)
                continue
            if not self._is_sound(source, message, time_us):
                continue
            self._columns.learn(source.name, message.payload)
            self.counted.append((position.source, position.partition, time_us))
            payload = {**message.payload, source.event_time: to_datetime(time_us)}
            taken.append((time_us, type(message)(payload, position)))
        return taken

    def _passes(self, source: Input, message: Message, time_us: int, until: float, watermark_us: int) -> bool:
        """True if a message passes the filter of its input. A rejected one still advances the watermark."""
        try:
            if self._filters[source.name].passes(message.payload):
                return True
        except Raised:
            self._bury("malformed", "the filter raised", message, time_us)
            return False
        assert message.position is not None
        if source.static or until > self._too_late_us(watermark_us):
            self.counted.append((*message.position[:2], time_us))
        return False

    def _is_sound(self, source: Input, message: Message, time_us: int) -> bool:
        """True unless a kind of join rejects the message for a reason of its own."""
        return True

    def _open_until(self, source: Input, time_us: int) -> float:
        """Return the watermark, less the allowed lateness, from which on a message of that time is too late."""
        return open_until(source, time_us)

    def _floor(self, source: Input, message: Message) -> tuple[float, Any]:
        """Return the newest message of its group that the count limit evicted: older ones are out of retention."""
        side = "left" if source is self.definition.left else "right"
        return self._floors.get(self._counted_with(side, self._key_of(side, message)), (-inf, ()))

    def _too_late_us(self, watermark_us: int) -> float:
        """Return W', the watermark less the allowed lateness; at the end of time nothing is later."""
        if watermark_us == END_OF_TIME_US:
            return END_OF_TIME_US
        late = self.definition.allowed_lateness_us
        return -inf if late >= UNBOUNDED_US else watermark_us - late

    def _hold(self, side: str, taken: tuple[int, Message]) -> Held:
        time_us, message = taken
        assert message.position is not None
        return Held(time_us, message.position, dict(message.payload), self._key_of(side, message), message)

    def _key_of(self, side: str, message: Message) -> Key:
        names = self.definition.left_keys if side == "left" else self.definition.right_keys
        return tuple(key_field(message.payload.get(name)) for name in names)

    def _bury(self, reason: str, detail: str, message: Message, time_us: int | None) -> None:
        self._dead.append(DeadLetter(reason, detail, message.position, time_us, repr(dict(message.payload))))

    # -- windows of rows ---------------------------------------------------------------------------------------------

    def _file(self, side: str, new: list[Held]) -> None:
        for message in new:
            group = self._group(side, message)
            message.number = self._totals[group] = self._totals.get(group, 0) + 1
        self._held[side] = self._held[side] + new

    def _newest(self, side: str) -> list[Held]:
        """Return the messages that the other side can match: the newest if the window is of rows, else all."""
        return [message for message in self._held[side] if not self._displaced(side, message)]

    def _displaced(self, side: str, message: Held) -> bool:
        window = self._source(side).window
        return (
            isinstance(window, Rows) and message.number <= self._totals[self._group(side, message)] - window.n
        )

    def _group(self, side: str, message: Held) -> tuple[str, Key]:
        window = self._source(side).window
        return (side, message.key if isinstance(window, Rows) and window.per == "key" else ())

    def _source(self, side: str) -> Input:
        return self.definition.left if side == "left" else self.definition.right

    # -- retention by number -----------------------------------------------------------------------------------------

    def _counted_with(self, side: str, key: Key) -> tuple[str, Key]:
        """Return the group in which a message is counted: its key, or its whole input."""
        return (side, key if self.definition.retention.per == "key" else ())

    def _shrink(self, watermark_us: int) -> list[JoinedRow]:
        """Evict the oldest messages beyond the limit, as the previous steps left them, and return their last rows."""
        most = self.definition.retention.messages
        if most is None:
            return []
        gone: dict[str, list[Held]] = {"left": [], "right": []}
        groups: dict[tuple[str, Key], list[Held]] = {}
        for side, held in self._held.items():
            for message in held:
                if not self._source(side).static and not self._forgotten(side, message, watermark_us):
                    groups.setdefault(self._counted_with(side, message.key), []).append(message)
        for group, held in groups.items():
            oldest = sorted(held, key=_by_time)[: max(len(held) - most, 0)]
            gone[group[0]] += oldest
            if oldest:
                self._floors[group] = max(_by_time(oldest[-1]), self._floors.get(group, _by_time(oldest[-1])))
        rows = []
        if self.definition.how == "asof":
            rows = self._answers([message for message in gone["left"] if not message.done])
        rows += self._unmatched(gone)
        for side, gone_of_side in gone.items():
            self._held[side] = [m for m in self._held[side] if not any(m is other for other in gone_of_side)]
        return rows

    def _forgotten(self, side: str, message: Held, watermark_us: int) -> bool:
        """True if the next `advance` drops it, whatever its watermark."""
        if self.definition.how == "asof" and side == "left":
            over = self._too_late_us(watermark_us) > message.time_us
        else:
            over = self._hopeless(side, message, watermark_us)
        kept = self.definition.retention.time_us
        lasts = watermark_us < END_OF_TIME_US and (kept is None or message.time_us >= watermark_us - kept)
        return over and not lasts

    # -- matching ----------------------------------------------------------------------------------------------------

    def _match(self, left: Held, right: Held) -> bool:
        return (
            None not in left.key
            and left.key == right.key
            and fits(self.definition, left.time_us, right.time_us)
            and self._columns.holds(left.payload, right.payload)
        )

    def _without_raising(self, left: list[Held], right: list[Held], watermark_us: int) -> Sides:
        """Return the messages without those on which the condition raises; of a pair the later message is dropped. In a step
        left messages come first, and rows of other operators, whose messages count, come after messages.
        """
        good: Sides = {"left": [], "right": []}
        if self.definition.is_self_join:
            coming: list[Sides] = [{"left": [a], "right": [b]} for a, b in zip(left, right, strict=True)]
        else:
            coming = [{"left": [a], "right": []} for a in left] + [{"left": [], "right": [b]} for b in right]
            coming.sort(
                key=lambda came: any(self._source(side).name in self.fed for side in came if came[side])
            )
        for came in coming:
            if self._raises(good, came, watermark_us):
                self._uncount((came["left"] or came["right"])[0])
            else:
                good = {side: [*good[side], *came[side]] for side in good}
        return good

    def _raises(self, good: Sides, came: Sides, watermark_us: int) -> bool:
        """True if the condition raises on new messages paired with held ones and with earlier ones of the step."""
        before = {side: [*self._newest(side), *good[side]] for side in good}
        pairs = [(a, b) for a in came["left"] for b in (*before["right"], *came["right"])]
        return self._raises_on([*pairs, *((a, b) for a in before["left"] for b in came["right"])])

    def _raises_on(self, pairs: Iterable[tuple[Held, Held]]) -> bool:
        try:
            for a, b in pairs:
                self._match(a, b)
        except Exception:
            return True
        return False

    def _uncount(self, message: Held) -> None:
        self._bury("malformed", "the condition raised", message.message, message.time_us)
        self.counted.remove((*message.position[:2], message.time_us))

    def _matched(self, left: Held, right: Held, timing: Timing) -> list[JoinedRow]:
        """Return the row that a match emits at once; a deferred one is added to `_pending`."""
        again, left.matched, right.matched = left.matched, True, True
        how = self.definition.how
        if how in ("anti", "asof") or (how == "semi" and again):
            return []
        row = JoinedRow(self._columns.row(left.payload, right.payload), timing)
        if isinstance(self._trigger(timing), EveryBatch):
            return [row]
        self._pending.append(row)
        return []

    def _trigger(self, timing: Timing) -> Trigger:
        return self.definition.emit.late if timing is Timing.LATE else self.definition.emit.early

    def _as_of(self, watermark_us: int) -> list[JoinedRow]:
        """Return left messages up to whose time every right one has come, each with the newest that matches."""
        complete = [
            left
            for left in self._held["left"]
            if not left.done and self._too_late_us(watermark_us) > left.time_us
        ]
        return self._answers(complete)

    def _answers(self, some: Sequence[Held]) -> list[JoinedRow]:
        """Return each of these left messages with the newest right one that matches."""
        rows = []
        for left in sorted(some, key=_by_time):
            left.done = True
            try:
                partners = [right for right in self._held["right"] if self._match(left, right)]
            except Exception as error:  # a pair that came under another condition of that name
                self._bury("malformed", str(error), left.message, left.time_us)
                continue
            best = max(partners, key=_by_time, default=None)
            payload = None if best is None else best.payload
            rows.append(JoinedRow(self._columns.row(left.payload, payload), Timing.ON_TIME))
        return rows

    def _unmatched(self, hopeless: Mapping[str, Sequence[Held]]) -> list[JoinedRow]:
        """Return the rows of messages that can match no more and never did: the left ones first."""
        rows = []
        for message in sorted(hopeless["left"], key=_by_time):
            if not message.done and not message.matched and self.definition.how in ("left", "full", "anti"):
                rows.append(JoinedRow(self._columns.row(message.payload, None), Timing.ON_TIME))
        for message in sorted(hopeless["right"], key=_by_time):
            if not message.done and not message.matched and self.definition.how in ("right", "full"):
                rows.append(JoinedRow(self._columns.row(None, message.payload), Timing.ON_TIME))
        for message in (*hopeless["left"], *hopeless["right"]):
            message.done = True
        return rows

    def _hopeless(self, side: str, message: Held, watermark_us: int) -> bool:
        """True if every time that a partner could have would be too late for the partner's input."""
        if watermark_us == END_OF_TIME_US:
            return True
        if self.definition.how == "asof" and side == "left":
            return False  # `_as_of` decides when
        other = self._source("right" if side == "left" else "left")
        latest = latest_partner(self.definition, side, message.time_us)
        return open_until(other, latest) <= self._too_late_us(watermark_us)

    def _drop(self, watermark_us: int) -> None:
        """Drop messages that can match no more, and that the retention does not keep for queries."""
        kept = self.definition.retention.time_us
        for side, held in self._held.items():
            self._held[side] = [
                m
                for m in held
                if not m.done
                or (watermark_us < END_OF_TIME_US and (kept is None or m.time_us >= watermark_us - kept))
            ]

    def _now(self, now_us: int) -> int:
        self._now_us = now_us if self._now_us is None else max(now_us, self._now_us)
        return self._now_us


def _by_time(message: Held) -> tuple[int, Position]:
    return message.time_us, message.position


def _ticks(trigger: Trigger, before_us: int, now_us: int) -> bool:
    """True if `now` crossed a multiple of the period."""
    return isinstance(trigger, EveryPeriod) and now_us // trigger.period_us > before_us // trigger.period_us
