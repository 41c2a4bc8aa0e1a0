"""Transcripts: scenarios of behaviour in YAML, run against anything that can be driven.

A file holds many documents, each one scenario; a key that is not listed here is an error, so that a misspelt
expectation cannot pass. Modelled on Beam's trigger transcripts.

    name                 unique in the file
    source               where the behaviour comes from (optional)
    operator             the expression that builds the definition, with `wr`
    columns              where rows are emitted, and no panes: those that `expect` lists, in its order
    starts               `now` at the beginning (optional, default 0)
    depends_on_batching  why other cuts of the same input may end differently (optional)
    must_fail            true, or a part of the error: the runner has to reject the scenario (optional)
    steps                a list of
      - add: [message, ...]     one ingest step, then an advance; `_at: [source, partition, offset]` places it;
                                {input: [message, ...]} where messages name their input
      - watermark: instant      moves an explicit watermark, and advances; {input: instant} that of one input
      - now: "+10 seconds"      moves the clock (or an instant); nothing else happens
      - timeout                 advances
      - drain                   advances the watermark to the end of time
      - restart                 loses the process
      - expect: [pane, ...]     all panes since the step before, in order
          {window, key, values, timing, index, last, kind}; key where there are keys; index is optional; where
          left out, last is false and kind INSERT. A row is [timing, value, ...], with the values of `columns`,
          instants under event times
      - expect_dead: [letter, ...]  all dead letters since the step before: {reason, offset, input}, or
          [input, reason, offset]
      - windows: [window, ...]  all windows that are kept: {window, key, messages, values, panes, fired}
      - kept: {input: [offset, ...]}  the messages of an input that are kept

What is not expected must not happen: panes, rows and dead letters that no `expect` claims fail the scenario.
Instants are seconds since the epoch, or ISO text with a zone; a window is `[start, end]`, for tuple windows
`[first, last]`, or `global`. Numbers under the event-time column are instants too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import yaml

from windrow.core.messages import DeadLetter, Kind, Message, Position, StoredMessage, WindowInfo
from windrow.core.time import DAY_US, END_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.oracle.watermark import InputsOracle
from windrow.testing.clock import ManualClock
from windrow.testing.ledger import LedgerBroken, all_panes_equal, ledger, ledger_key, values_equal
from windrow.testing.transcript_parser import Action, Scenario, TranscriptError, parse
from windrow.testing.verification import as_given, info_as_given, letters_as_given

# -- the oracles behind the interface that transcripts drive ----------------------------------------------------------

#: Messages of one input, or of several by their names.
Fed: TypeAlias = "Sequence[Message] | Mapping[str, Sequence[Message]]"
#: Messages by input; where the caller moves the watermark, and of which input (None: of all); `now`.
_Step = tuple[dict[str, list[Message]], int | None, str | None, int]


class OracleDriver:
    """A job made of oracles; its state is its log of steps, so a restart replays the log."""

    def __init__(self, definition: Definition, start_us: int) -> None:
        self._definition = definition
        self._clock = ManualClock(start_us)
        self._log: list[_Step] = []
        self._sent: list[Any] = []
        self._panes: list[Any] = []
        self._dead: list[DeadLetter] = []
        self._forget()

    def feed(self, messages: Fed) -> None:
        """Ingest `messages` in one step, then advance."""
        inputs = self._definition.inputs
        by_input = messages if isinstance(messages, Mapping) else {inputs[0].name: messages}
        placed = {}
        for input in inputs:
            prefix = input.source_prefix
            placed[input.name] = [_placed(m, prefix) for m in by_input.get(input.name, ())]
        self._step(placed, None)

    def advance_watermark(self, to_us: int, input: str | None = None) -> None:
        self._step({}, to_us, input)

    def advance_clock(self, by_us: int) -> None:
        self._clock.advance(timedelta(microseconds=by_us))

    def timeout(self) -> None:
        self._step({}, None)

    def drain(self) -> None:
        self._step({}, END_OF_TIME_US)

    def restart(self) -> None:
        """Forget everything but the log, and replay it. Raises if the replay emits other panes than before."""
        self._forget()
        panes = [pane for step in self._log for pane in self._replay(step)[0]]
        if not all_panes_equal(panes, self._sent):
            raise AssertionError(f"the log replays to {panes}, but {self._sent} were sent")

    def panes(self) -> list[Any]:
        panes, self._panes = self._panes, []
        return panes

    def dead_letters(self) -> list[DeadLetter]:
        dead, self._dead = self._dead, []
        return letters_as_given(self._definition, dead)

    def windows(self) -> list[WindowInfo]:
        windows = self._oracle.part(self._definition.name).windows() or []
        return [info_as_given(self._definition, info) for info in windows]

    def messages(self, input: str) -> list[StoredMessage]:
        kept = self._oracle.part(self._definition.name).kept(input) or []
        placed = [(as_given(self._definition, m.position), dict(m.payload)) for m in kept if m.position]
        return [StoredMessage(0, position, payload) for position, payload in placed]

    def _forget(self) -> None:
        self._oracle = self._definition.oracle()
        self._watermark = InputsOracle(self._definition)

    def _step(
        self, messages: dict[str, list[Message]], explicit_us: int | None, input: str | None = None
    ) -> None:
        step = (messages, explicit_us, input, self._clock.now_us())
        panes, dead = self._replay(step)
        self._log.append(step)
        self._sent += panes
        self._panes += panes
        self._dead += dead

    def _replay(self, step: _Step) -> tuple[list[Any], list[DeadLetter]]:
        messages, explicit_us, input, now_us = step
        panes: list[Any] = []
        dead: list[DeadLetter] = []
        if any(messages.values()):
            panes, dead = self._oracle.ingest(messages, now_us, self._watermark.watermark_us)
            self._watermark.observe(self._oracle.counted, now_us)
        if input is not None and explicit_us is not None:
            self._watermark.complete(input, explicit_us)
            explicit_us = None
        emitted, buried = self._oracle.advance(self._watermark.advance(now_us, explicit_us), now_us)
        return panes + emitted, dead + buried


def _placed(message: Message, prefix: str) -> Message:
    position = message.position
    if position is None:
        return message
    return Message(message.payload, Position(*position)._replace(source=prefix + position.source))


# -- transcripts ------------------------------------------------------------------------------------------------------

EXACT = ("straight", "restarted", "reversed")
CUT = ("one a step", "two a step", "all at once")
#: Ways to run a scenario: the exact ones give every pane as written, the others end with the same contents.
VARIATIONS = (*EXACT, *CUT)


class Driver(Protocol):
    """A job that a transcript can drive. `panes` and `dead_letters` return the output since the last call."""

    def feed(self, messages: Fed) -> None:
        """Run one ingest step of all `messages`, by input where they name it, then an advance."""
        ...

    def advance_watermark(self, to_us: int, input: str | None = None) -> None:
        """Move the explicit watermark, of one input or of all, and advance."""
        ...

    def advance_clock(self, by_us: int) -> None:
        """Move `now`; no step."""
        ...

    def timeout(self) -> None:
        """Advance."""
        ...

    def drain(self) -> None:
        """Advance the watermark to the end of time, whatever its kind."""
        ...

    def restart(self) -> None:
        """Lose everything but what a crash leaves, and come back. Published panes are not published again."""
        ...

    def panes(self) -> list[Any]: ...

    def dead_letters(self) -> list[DeadLetter]: ...

    def windows(self) -> list[WindowInfo]: ...

    def messages(self, input: str) -> list[StoredMessage]: ...


#: Makes a driver from a definition and the `now` it starts at.
MakeDriver = Callable[[Any, int], Driver]


@dataclass(frozen=True)
class Transcript:
    """A scenario as read from a file."""

    name: str
    body: Mapping[str, Any]

    @property
    def must_fail(self) -> bool | str:
        wanted = self.body.get("must_fail", False)
        return wanted if isinstance(wanted, str) else bool(wanted)

    @property
    def variations(self) -> tuple[str, ...]:
        """The ways to run it: a scenario that must be rejected is run straight only."""
        return VARIATIONS[:1] if self.must_fail else VARIATIONS


#: In C where PyYAML has it, in a tenth of the time.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[valid-type, misc]
    """A loader that rejects a mapping with a repeated key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise TranscriptError(f"{node.start_mark}: key {name!r} is given twice")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def load(path: Path) -> list[Transcript]:
    """Return the scenarios of a file. Raises `TranscriptError` if it is not a list of named mappings."""
    transcripts: list[Transcript] = []
    with path.open(encoding="utf-8") as file:
        for body in yaml.load_all(file, Loader=_StrictLoader):
            if not isinstance(body, dict) or not isinstance(body.get("name"), str):
                raise TranscriptError(f"{path.name}: a scenario is a mapping with a name, not {body!r:.80}")
            if body["name"] in [t.name for t in transcripts]:
                raise TranscriptError(f"{path.name}: there are two scenarios {body['name']!r}")
            transcripts.append(Transcript(body["name"], body))
    if not transcripts:
        raise TranscriptError(f"{path.name} holds no scenario")
    return transcripts


def check(
    transcript: Transcript,
    make_driver: MakeDriver = OracleDriver,
    variation: str = "straight",
    names: Mapping[str, Any] | None = None,
) -> None:
    """Run a scenario in one variation. Raises `TranscriptError` where it does not go as written.

    `names` are further names that the `operator` expression may use, such as aggregates of your own.
    """
    if not transcript.must_fail:
        _check(transcript, make_driver, variation, names or {})
        return
    try:
        _check(transcript, make_driver, variation, names or {})
    except TranscriptError as error:
        if isinstance(transcript.must_fail, str) and transcript.must_fail not in str(error):
            raise TranscriptError(
                f"{transcript.name}: should be rejected for {transcript.must_fail!r}, but: {error}"
            ) from error
        return
    raise TranscriptError(f"{transcript.name}: should be rejected, but passed")


def _check(transcript: Transcript, make_driver: MakeDriver, variation: str, names: Mapping[str, Any]) -> None:
    if variation not in VARIATIONS:
        raise ValueError(f"variation {variation!r}: use one of {', '.join(VARIATIONS)}")
    scenario = parse(transcript.body, names)
    run = _Run(scenario, make_driver(scenario.definition, scenario.start_us))
    run.play(scenario.actions, restarts=variation == "restarted", backwards=variation == "reversed")
    straight = run.end()
    if variation in EXACT:
        return
    together = variation == "all at once"
    if together and any(letter.reason in ("too_late", "out_of_retention") for letter in run.all_dead):
        return  # moved to the front those messages would have been in time
    size = None if together else 1 if variation == "one a step" else 2
    cut = _Run(scenario, make_driver(scenario.definition, scenario.start_us), verify=False)
    cut.play(_recut(scenario.actions, size))
    if not scenario.depends_on_batching:
        _compare(scenario, variation, straight, cut.end())
    else:
        cut.end()


def _recut(actions: Sequence[Action], size: int | None) -> list[Action]:
    """Join messages with no other action between them, `size` a step; None: all of the scenario first, in one."""
    if size is None:
        everything = [m for action in actions for m in action.messages]
        rest = [action for action in actions if action.kind != "add"]
        return [Action("add", messages=everything), *rest] if everything else rest
    cut: list[Action] = []
    waiting: list[tuple[str, Message]] = []
    for action in (*actions, Action("end")):
        waiting += action.messages
        if action.kind != "add":
            cut += [Action("add", messages=waiting[i : i + size]) for i in range(0, len(waiting), size)]
            waiting = []
            cut.append(action)
    return cut[:-1]


@dataclass(frozen=True)
class _End:
    """The outcome that does not depend on how the input was cut: windows, the consumer's final state, dead letters.

    emitted: panes by key and window as the ledger has them; rows without their timing, less those that were retracted
    """

    windows: dict[Any, WindowInfo]
    emitted: Any
    dead: list[tuple[Any, ...]]


class _Run:
    """A run of a scenario. With `verify`, every step must emit what is written."""

    def __init__(self, scenario: Scenario, driver: Driver, *, verify: bool = True) -> None:
        self._scenario, self._driver, self._verify = scenario, driver, verify
        self._definition: Definition = scenario.definition
        self._all_panes: list[Any] = []
        self.all_dead: list[DeadLetter] = []

    def play(self, actions: Sequence[Action], *, restarts: bool = False, backwards: bool = False) -> None:
        for number, action in enumerate(actions):
            if restarts and number:
                self._driver.restart()
            self._act(replace(action, messages=action.messages[::-1]) if backwards else action)
            panes, dead = self._collect()
            if self._verify:
                self._claim(action, panes, dead)

    def end(self) -> _End:
        """Settle: a tick of every period and the end of time. Then check all that was emitted."""
        windows = {}
        for info in self._windows():
            key = ledger_key(info.key, info.window)
            windows[key] = replace(info, values={}) if self._mode == "discarding" else info
        self._driver.advance_clock(366 * DAY_US)
        self._driver.timeout()
        self._collect()
        self._driver.drain()
        self._collect()
        dead = sorted((letter.input or "", letter.position or (), letter.reason) for letter in self.all_dead)
        return _End(windows, self._held(), dead)

    @property
    def _mode(self) -> str:
        return self._definition.emission_mode

    def _windows(self) -> list[WindowInfo]:
        """Return the windows, where they can be queried without the name of an input."""
        asked = "windows" in self._definition.tables and not self._definition.by_input
        return self._driver.windows() if asked else []

    def _held(self) -> Any:
        """Return the final state of a consumer of all emitted rows."""
        columns = self._scenario.columns
        if self._mode == "once" or columns is not None:
            stand: Counter[str] = Counter()
            for row in self._all_panes:
                names = columns or tuple(sorted(row.values))
                text = repr([_in_utc(row.values.get(name)) for name in names])
                stand[text] += -1 if getattr(row, "kind", None) == Kind.RETRACT else 1
            return sorted(item for item in stand.items() if item[1])
        try:
            grows = getattr(self._definition, "session", False)
            held = ledger(self._all_panes, retracting=self._mode == "retracting", grows=grows)
        except LedgerBroken as broken:
            raise TranscriptError(f"{self._scenario.name}: ledger: {broken}") from broken
        return {} if self._mode == "discarding" else held

    def _collect(self) -> tuple[list[Any], list[DeadLetter]]:
        panes, dead = self._driver.panes(), self._driver.dead_letters()
        self._all_panes += panes
        self.all_dead += dead
        return panes, dead

    def _act(self, action: Action) -> None:
        match action.kind:
            case "add":
                self._feed(action.messages)
            case "watermark":
                self._driver.advance_watermark(action.us, action.input)
            case "now":
                self._driver.advance_clock(action.us)
            case "timeout":
                self._driver.timeout()
            case "drain":
                self._driver.drain()
            case "restart":
                self._driver.restart()

    def _feed(self, messages: Sequence[tuple[str, Message]]) -> None:
        if not self._definition.by_input:
            self._driver.feed([message for _, message in messages])
            return
        by_input: dict[str, list[Message]] = {}
        for name, message in messages:
            by_input.setdefault(name, []).append(message)
        self._driver.feed(by_input)

    def _claim(self, action: Action, panes: list[Any], dead: list[DeadLetter]) -> None:
        where = f"{self._scenario.name}: {action.label}"
        _match(where, "pane" if self._scenario.columns is None else "row", action.expected, panes)
        _match(where, "dead letter", action.expected_dead, dead)
        if action.windows is not None:
            _match(where, "window", action.windows, self._driver.windows())
        for name, offsets in action.kept.items():
            kept = sorted(m.position.offset for m in self._driver.messages(name))
            if kept != offsets:
                raise TranscriptError(f"{where}: messages of {name!r} are {kept} instead of {offsets}")


def _in_utc(value: Any) -> Any:
    """Format a time, in any zone, as one text."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


def _match(where: str, what: str, rows: Sequence[Any], found: Sequence[Any]) -> None:
    """Match each row against the output, in order."""
    for row, thing in zip(rows, found, strict=False):
        for difference in row.differs(thing):
            raise TranscriptError(f"{where}: wrong {what}: {difference}; came {thing!r}, all: {found!r}")
    for row in rows[len(found) :]:
        raise TranscriptError(f"{where}: missing {what}: {row!r}; came {found!r}")
    for thing in found[len(rows) :]:
        raise TranscriptError(f"{where}: unexpected {what}: {thing!r}")


def _compare(scenario: Scenario, variation: str, straight: _End, cut: _End) -> None:
    where = f"{scenario.name}, {variation}"
    if straight.dead != cut.dead:
        raise TranscriptError(f"{where}: dead letters {cut.dead!r} instead of {straight.dead!r}")
    if straight.windows.keys() != cut.windows.keys():
        raise TranscriptError(f"{where}: windows {list(cut.windows)!r} instead of {list(straight.windows)!r}")
    for key, info in straight.windows.items():
        other = cut.windows[key]
        alike = (info.messages, info.first, info.last) == (other.messages, other.first, other.last)
        if not alike or not values_equal(info.values, other.values):
            raise TranscriptError(f"{where}: a window holds {other!r} instead of {info!r}")
    if not values_equal(straight.emitted, cut.emitted):
        raise TranscriptError(f"{where}: ends with {cut.emitted!r} instead of {straight.emitted!r}")
