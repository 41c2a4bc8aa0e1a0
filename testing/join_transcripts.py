"""Scenarios of joins, in the YAML of `windrow.testing.transcripts`; only what differs is said here.

    join                 the expression that builds the definition, with `wr`, instead of `aggregate`
    columns              the columns of a row that `expect` lists, in its order
    steps                a list of
      - add: {input: [message, ...]}     one ingest step of messages of one input or of both, then an advance
      - watermark, now, timeout, drain, restart   as there
      - expect: [[timing, value, ...], ...]       all rows since the step before, in order
      - expect_dead: [[input, reason, offset], ...]
      - kept: {input: [offset, ...]}     the messages of an input that are kept

Offsets count up from 0 by input, in the order of the scenario. Other cuts of the input must end with the same rows,
whatever their timing and order, unless `depends_on_batching` says why not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windrow.core.messages import Message, Position
from windrow.core.time import DAY_US, duration_us
from windrow.operators.join.definition import JoinDefinition
from windrow.testing.join_driver import JoinDriver
from windrow.testing.transcript_parser import (
    TranscriptError,
    _event_time,
    _instant,
    _known,
    _list,
    _namespace,
)
from windrow.testing.transcripts import Transcript

EXACT = ("straight", "restarted", "reversed")
JOIN_VARIATIONS = (*EXACT, "one a step", "all at once")
_KEYS = ("name", "source", "join", "columns", "starts", "depends_on_batching", "must_fail", "steps")
_DOES = ("add", "watermark", "now", "timeout", "drain", "restart")
_CLAIMS = ("expect", "expect_dead", "kept")

#: Makes a driver from a definition and the `now` it starts at.
MakeJoinDriver = Callable[[JoinDefinition, int], JoinDriver]
Step = dict[str, list[Message]]


@dataclass
class _Action:
    kind: str
    label: str
    messages: Step = field(default_factory=dict)
    value: Any = None
    claims: dict[str, Any] = field(default_factory=dict)


def check_join(transcript: Transcript, make_driver: MakeJoinDriver, variation: str = "straight") -> None:
    """Run a scenario in one variation. Raises `TranscriptError` where it does not go as written."""
    wanted = transcript.must_fail
    try:
        _check(transcript.body, make_driver, variation)
    except TranscriptError as error:
        if not wanted:
            raise TranscriptError(f"{transcript.name}: {error}") from error
        if isinstance(wanted, str) and wanted not in str(error):
            raise TranscriptError(
                f"{transcript.name}: should be rejected for {wanted!r}, but: {error}"
            ) from error
        return
    if wanted:
        raise TranscriptError(f"{transcript.name}: should be rejected, but passed")


def _check(body: Mapping[str, Any], make_driver: MakeJoinDriver, variation: str) -> None:
    _known(body, _KEYS, ("name", "join", "columns", "steps"))
    definition, starts_us = _definition(body["join"]), _instant(body.get("starts", 0))
    actions = _actions(definition, _list(body["steps"]), starts_us)
    straight = _Run(make_driver(definition, starts_us), body["columns"])
    straight.play(actions, restarts=variation == "restarted", backwards=variation == "reversed")
    ended = straight.end()
    if variation in EXACT or "depends_on_batching" in body:
        return
    cut = _Run(make_driver(definition, starts_us), body["columns"], verify=False)
    cut.play(_recut(actions, together=variation == "all at once"))
    if cut.end() != ended:
        raise TranscriptError(f"{variation}: ends with {cut.end()} instead of {ended}")


def _definition(text: Any) -> JoinDefinition:
    try:
        made = eval(f"({text})", {"wr": _namespace()})
    except Exception as error:  # whatever the author's expression raises
        raise TranscriptError(f"join: {error}") from error
    if not isinstance(made, JoinDefinition):
        raise TranscriptError(f"join makes {made!r}: use wr.Join(...)")
    return made


def _actions(definition: JoinDefinition, steps: Sequence[Any], now_us: int) -> list[_Action]:
    """What is done; what is claimed is hung on the action before it."""
    actions: list[_Action] = []
    offsets = {one.name: 0 for one in definition.inputs}
    times = {one.name: one.event_time for one in definition.inputs}
    for number, step in enumerate(steps, 1):
        one: Any = {step: None} if isinstance(step, str) else step
        if not isinstance(one, Mapping) or len(one) != 1:
            raise TranscriptError(f"step {number} is {step!r}: use a word or a mapping with one key")
        [(kind, value)] = one.items()
        label = f"step {number}, {kind}"
        if kind in _CLAIMS:
            if not actions or kind in actions[-1].claims:
                raise TranscriptError(f"{label}: nothing was done that it could be of")
            actions[-1].claims[kind] = value
            continue
        if kind not in _DOES:
            raise TranscriptError(f"{label}: unknown, use one of {', '.join((*_DOES, *_CLAIMS))}")
        action = _Action(kind, label, value=value)
        if kind == "add":
            _known(value, tuple(offsets), ())
            for name, rows in value.items():
                action.messages[name] = []
                for row in _list(rows):
                    payload = dict(row)
                    if times[name] in payload:
                        payload[times[name]] = _event_time(payload[times[name]])
                    position = Position("transcript", 0, offsets[name])
                    action.messages[name].append(Message(payload, position))
                    offsets[name] += 1
        elif kind == "watermark":
            action.value = _instant(value)
        elif kind == "now":
            relative = isinstance(value, str) and value.startswith("+")
            action.value = duration_us(value[1:]) if relative else _instant(value) - now_us
            now_us += action.value
        actions.append(action)
    return actions


def _recut(actions: Sequence[_Action], *, together: bool) -> list[_Action]:
    """One message a step, left ones first; or the messages that stand between two other actions in one step."""
    cut: list[_Action] = []
    for action in actions:
        if action.kind != "add":
            cut.append(action)
        elif together and cut and cut[-1].kind == "add":
            for name, some in action.messages.items():
                cut[-1].messages.setdefault(name, []).extend(some)
        elif together:
            cut.append(_Action("add", action.label, {n: list(m) for n, m in action.messages.items()}))
        else:
            cut += [
                _Action("add", action.label, {n: [m]}) for n, some in action.messages.items() for m in some
            ]
    return cut


class _Run:
    """One run of a scenario. With `verify`, every step must give what is written."""

    def __init__(self, driver: JoinDriver, columns: Sequence[str], *, verify: bool = True) -> None:
        self._driver, self._columns, self._verify = driver, columns, verify
        self._told: list[str] = []

    def play(self, actions: Sequence[_Action], *, restarts: bool = False, backwards: bool = False) -> None:
        for number, action in enumerate(actions):
            if restarts and number:
                self._driver.restart()
            self._act(action, backwards)
            self._claim(action)

    def _act(self, action: _Action, backwards: bool) -> None:
        match action.kind:
            case "add":
                self._driver.feed({n: m[::-1] if backwards else m for n, m in action.messages.items()})
            case "watermark":
                self._driver.advance_event_time(action.value)
            case "now":
                self._driver.advance_clock(action.value)
            case other:
                getattr(self._driver, other)()

    def _claim(self, action: _Action) -> None:
        rows, dead = self._rows(), self._driver.dead_letters()
        if not self._verify:
            return
        _match(action.label, "rows", rows, action.claims.get("expect", []))
        letters = [[d.input, d.reason, None if d.position is None else d.position.offset] for d in dead]
        _match(action.label, "dead letters", letters, action.claims.get("expect_dead", []))
        for name, offsets in action.claims.get("kept", {}).items():
            kept = sorted(m.position.offset for m in self._driver.messages(name))
            _match(action.label, f"messages of {name!r}", kept, offsets)

    def _rows(self) -> list[list[Any]]:
        rows = [[r.timing.value, *(r.values.get(c) for c in self._columns)] for r in self._driver.rows()]
        self._told += [repr(row[1:]) for row in rows]
        return rows

    def end(self) -> list[str]:
        """All rows that were ever told, after the tick of every period and the end of time. Nothing may be left."""
        self._driver.advance_clock(366 * DAY_US)
        self._driver.timeout()
        self._driver.drain()
        self._rows()
        self._driver.assert_state_zero()
        return sorted(self._told)


def _match(label: str, what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise TranscriptError(f"{label}: {what} are {found!r} instead of {wanted!r}")
