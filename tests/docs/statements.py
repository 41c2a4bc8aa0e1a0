"""The requirement documents, statement by statement, with the proofs of each: docs/reference/requirements.

A proof is a scenario of tests/transcripts, "sessions.yaml: its name", or a test, "embedded/test_api: its name as a sentence".
A statement without a proof, or with one that does not exist, fails a test. Brackets say what windrow does otherwise.
Cases with numbers are in cases.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.docs.cases import CASES
from tests.docs.drools import DROOLS, RULES

ROOT = Path(__file__).resolve().parents[2]

MALHAR: dict[str, tuple[str, ...]] = {
    "keyed: what is accumulated and triggered is of each key and window": (
        "seed_001.yaml: triggers of a keyed operator count per key and window",
        "sessions.yaml: keys have sessions of their own, the null key too",
    ),
    "not keyed: of each window": ("seed_001.yaml: accumulating",),
    "GlobalWindow: all tuples are in one window, for the whole time": ("seed_001.yaml: global window",),
    "TimeWindows: one follows the other, and a tuple is in exactly one": (
        "assignment.yaml: a window ends where the next begins",
    ),
    "SlidingTimeWindows: a tuple is in size / slideBy of them": (
        "seed_001.yaml: a sliding window is size over slide windows",
    ),
    "slideBy divides the size (here it need not)": (
        "bytewax.yaml: sliding windows, offset does not divide length",
    ),
    "slideBy is smaller than the size": (
        "core/test_windows: a hop larger than the size is refused unless gaps are asked for",
    ),
    "SessionWindows: of a key, with a least gap between two": (
        "embedded/test_sessions: what is emitted of a key never overlaps nor touches",
        "sessions.yaml: messages exactly one gap apart are one session",
    ),
    "a tuple between two sessions makes one of them, with the state of both": (
        "sessions.yaml: a message between two sessions makes them one",
        "sessions.yaml: the median of a session that was joined is that of all of its messages",
    ),
    "both are deleted, and retraction triggers are fired for them": (
        "sessions.yaml: every pane, retracting",
        "sessions.yaml: every pane, accumulating, takes back windows that are no more",
    ),
    "a tuple makes a session longer: the former is deleted, and retracted": (
        "sessions.yaml: every pane, retracting",
        "sessions.yaml: a late message corrects a session that was told",
    ),
    "a tuple that fits is applied to the session without change": (
        "sessions.yaml: a pane of the same window stands in the place of the former, accumulating",
    ),
    "any other tuple makes a session of its own": (
        "sessions.yaml: messages a microsecond more than a gap apart are two sessions",
    ),
    "a timestamp extractor gives the time of a tuple": (
        "embedded/test_derived_columns: keys and time are what expressions make of a message",
    ),
    "a watermark: windows wholly before it are late, the others early": (
        "beam.yaml: fixed windows, late data",
        "beam.yaml: data behind the watermark in an open window is on time",
    ),
    "watermarks come from upstream": ("embedded/test_api: an explicit watermark moves when it is advanced",),
    "a fixed watermark, so long before the time of the streaming window (here before `now`)": (
        "seed_001.yaml: fixed watermark",
    ),
    "a tuple beyond the allowed lateness is dropped (here judged by its window, and a dead letter)": (
        "seed_001.yaml: allowed lateness",
        "flink.yaml: late for one sliding window and on time for another",
    ),
    "a window beyond it is purged with its state": ("flink.yaml: state is gone when the window is",),
    "existing accumulations": (
        "operators/test_aggregations_reference: any cut and any bracketing give the reference",
    ),
    "an accumulation of one's own": (
        "operators/test_aggregations_user: add is called once a message and merge where states meet",
    ),
    "time-based triggers, at a regular interval": (
        "seed_001.yaml: time-based triggers fire only where something is new",
        "triggers.yaml: a period that tells always tells what is not new, as long as the window takes messages",
    ),
    "count-based triggers": ("seed_001.yaml: a count trigger is judged once a step and then starts again",),
    "both at once": ("triggers.yaml: any of two triggers tells, and both begin again",),
    "early and late windows have triggers of their own": (
        "seed_003.yaml: early emission of current, late emission of past windows, each on its grid of now",
    ),
    "on time, by default, when a window becomes late": ("beam.yaml: fixed windows, default trigger",),
    "triggers are fired per window, or per key and window": (
        "seed_001.yaml: triggers of an operator without keys count per window",
        "seed_001.yaml: triggers of a keyed operator count per key and window",
    ),
    "fireOnlyUpdatedPanes: no trigger whose value is that of the one before": (
        "seed_001.yaml: fire only updated panes",
        "sessions.yaml: only what changed is told",
    ),
    "ACCUMULATING": ("seed_001.yaml: accumulating",),
    "DISCARDING": (
        "seed_001.yaml: discarding",
        "sessions.yaml: discarding panes add up and take nothing back",
    ),
    "ACCUMULATING_AND_RETRACTING": ("seed_001.yaml: accumulating and retracting",),
    "window propagation: downstream inherits the windows of upstream": (
        "embedded/test_propagated_windows: sessions of users are windows of sites",
        "embedded/test_propagated_windows: windows of any kind stay what they are",
    ),
    "state in memory, copied at a checkpoint (here built anew from snapshot and log)": (
        "embedded/test_memory_store: what was committed in memory is there after a kill and is emitted once",
    ),
    "large state on disk, with incremental checkpoints": (
        "proof/test_recovery: what is lost is built anew",
        "stores/test_window_state: a commit of few keys reads and writes few pages",
    ),
    "MergeWindowedOperator: two streams (here any number)": (
        "embedded/test_cogroup: each input has aggregations keys and times of its own",
    ),
    "a MergeAccumulation of one's own": (
        "embedded/test_cogroup: a class of the users makes one state of several inputs",
    ),
    "its watermark is the earlier of both, and goes on downstream": (
        "embedded/test_cogroup: its watermark is the earliest of those of its inputs",
        "embedded/test_cogroup: inputs are rows of other operators and its rows go on",
    ),
}

PSI: dict[str, tuple[str, ...]] = {
    "Window(-2, 0): the last three messages": (
        "seed_002.yaml: a window of the last three messages has the current one and two before it",
    ),
    "nothing for the first and the second, then one for each": (
        "seed_002.yaml: the first and the second message give nothing, the third the first window, each from then on a new one",
    ),
    "an IntInterval says the same, LeftBounded, RightBounded, or with both ends": (
        "seed_002.yaml: a pair of indices is the same window as an interval of them",
        "seed_002.yaml: two indices say the same window as a frame of them, before, behind and around, and a row is told "
        "when the last of its windows is whole",
    ),
    "Window(0, 2): windows look forward": (
        "seed_002.yaml: a window of the next messages has the current one and two behind it",
        "seed_002.yaml: a window of the next messages without the last of them",
    ),
    "Window(-1, 2): or both ways": (
        "seed_002.yaml: a window of four messages has the previous one, the current one and two behind it",
    ),
    "an output has the time of its anchor": (
        "seed_002.yaml: a window wholly past, of the third message before to the first before, is told of each that has "
        "three before it",
        "seed_002.yaml: a window wholly ahead has the time of the message that it is ahead of",
    ),
    "one that looks forward waits for what completes it": (
        "seed_002.yaml: the window of 3, 4, 5 and 6, of input 4, waits until 6 has come",
        "seed_002.yaml: windows that one message of much later completes come together, in their order",
    ),
    "a selector gets the messages with their envelopes: Slope": (
        "operators/over/test_over: a function gets the messages of the window with their times and places",
    ),
    "Window(-2 s, 1 s): all messages of a time around each": (
        "seed_002.yaml: a window of two seconds before and one second after, of any number of messages",
    ),
    "by time there is always a result, at the beginning too": (
        "seed_002.yaml: a window by time has a row for every message, less than two seconds from the start of the stream too",
    ),
    "gaps of the input are gaps of the output": (
        "seed_002.yaml: gaps of the input are gaps of what is told",
    ),
    "windows that another stream drives: its messages are the anchors": (
        "seed_002.yaml: each message of a windowing stream says where its window lies",
        "operators/anchors/test_anchors: windows are expressions over the anchor or a function of whole tables",
        "seed_002.yaml: while the source is silent no window is told, until its time moves or it is idle",
    ),
    "all messages of the time while another stream is true": (
        "operators/anchors/test_anchors: a window holds all messages of the time while another stream is true",
    ),
    "messages before the obsolete time are let go": (
        "seed_002.yaml: what lies before the obsolete time is not kept, but for a window that still waits",
    ),
    "who generates obsolete times is responsible (here a window before one is a dead letter)": (
        "seed_002.yaml: a window before the obsolete time of an anchor before it is a dead letter",
    ),
    "with DateTime.MinValue all is kept": (
        "seed_002.yaml: an anchor that does not know how far later ones reach promises nothing, and all is kept",
    ),
    "a clock drives a constant window, whatever the pace of the source": (
        "seed_002.yaml: a clock of half a second slides a constant window whatever comes",
    ),
    "the window depends on what the anchor holds": (
        "operators/anchors/test_anchors: each anchor says which messages its window holds",
    ),
    "each Window() takes a delivery policy": (
        "operators/delivery/test_delivery: a window around each message is of those that its policy lets pass",
    ),
    "one for the source, one for the anchors": (
        "operators/delivery/test_delivery: both inputs of windows that another stream drives have policies of their own",
    ),
    "a statistic of windows": (
        "seed_002.yaml: an average of the last ten messages, by the operator and by a window",
        "seed_002.yaml: an average of the last ten seconds, by the operator and by a window",
    ),
    "any other function of them": (
        "operators/over/test_over: a function gets the messages of the window with their times and places",
    ),
    "Average(), Min(), Max(), Sum() ..., which look back": (
        "seed_002.yaml: sum, least, most and average of the last three, which look back",
    ),
    "without a size or a time they are running": (
        "seed_002.yaml: without a size or a time statistics are running",
    ),
}

SAMZA: dict[str, tuple[str, ...]] = {
    "output is timely, and the same whatever the latency of messages": (
        "proof/test_splitting: where nothing is too late contents and ledger do not depend on the cut",
    ),
    "output is the same after failures and redelivery": (
        "operators/test_contract: an operator emits what its oracle says however it is fed cut killed and robbed",
    ),
    "size in event time, or in messages": (
        "seed_003.yaml: orders in a time window, max",
        "seed_003.yaml: orders in a tuple window, max",
    ),
    "tumbling, hopping and sliding windows": (
        "tuples.yaml: tumbling tuple windows",
        "tuples.yaml: hopping tuple windows",
        "tuples.yaml: sliding tuple windows",
        "assignment.yaml: hopping windows with an offset",
    ),
    "case 1: windowed aggregation, update by update": (
        "seed_003.yaml: orders in a tuple window, max",
        "seed_003.yaml: orders in a time window, max",
    ),
    "case 2: windowed join, update by update": (
        "embedded/test_joins_seed_003: orders and shipments give what the seed lists",
    ),
    "past windows are kept, so that late arrivals are computed anew": (
        "seed_003.yaml: the median needs the messages and is updated late",
    ),
    "retention by event time": ("proof/test_recovery: what has expired leaves nothing",),
    "and by size": ("retention.yaml: the oldest windows of a key are dropped by number",),
    "early emission, by the system's clock, of the current window": (
        "seed_003.yaml: early emission of current, late emission of past windows, each on its grid of now",
    ),
    "full size: by time, or by messages": (
        "seed_003.yaml: defaults of the aggregator",
        "tuples.yaml: a full tuple window fires once, not early as well",
    ),
    "late arrival: outputs of past windows": (
        "seed_003.yaml: orders in a time window, only what is new",
        "seed_003.yaml: defaults of the aggregator",
    ),
    "an aggregator counts a message in every window that includes it": (
        "seed_003.yaml: one message counts in every window that includes it",
    ),
    "a join window sends it for its first window only": (
        "operators/join_window/test_join_window: a message is emitted in its first window only and all of its windows have it",
    ),
    "a join is bounded by the window of the other stream alone": (
        "oracle/test_oracle_join: windows match by the union of both sides",
        "oracle/test_oracle_join: a hopping window around a moment is the hull of those that cover it",
    ),
    "the message store is an exactly-once view of the stream": (
        "stores/test_message_store: a replay is stored once and known",
    ),
    "metadata of a window: first and last offset, start and end": (
        "embedded/test_api: rows of one record are distinguished by ordinals",
        "embedded/test_questions: the messages of a window are asked for by the window",
    ),
    "output of an aggregator: keyed by window, the updated result": (
        "seed_003.yaml: orders in a time window, max",
    ),
    "output of a join window: messages newly added": (
        "operators/join_window/test_join_window: the windowed join of the samza design is written on two join windows",
    ),
    "messages, metadata and offsets are flushed together": (
        "proof/test_kill: no pane is lost or sent twice however often the process is killed",
    ),
    "a lost message store is replayed from the earliest window": (
        "embedded/test_replay: a job that lost its messages continues as if nothing had happened",
        "embedded/test_replay: only what retained windows need is read",
    ),
    "in-time messages: those of the window that is open": (
        "seed_003.yaml: early emission of current, late emission of past windows, each on its grid of now",
    ),
    "past messages: late arrivals": ("seed_001.yaml: a window whose first message is late",),
    "past messages out of retention are discarded (here dead letters)": (
        "seed_003.yaml: a message out of retention goes to the dead letters",
    ),
    "future messages wait in the state": ("seed_003.yaml: a future message waits in its own window",),
    "tuple windows have no late arrivals": ("tuples.yaml: tuple windows do not know late",),
    "metadata is a key-value store with a changelog": (
        "proof/test_recovery: window metadata comes back from its changelog",
    ),
    "it holds the aggregated value, where no message is needed": (
        "embedded/test_recovery: snapshots are lost too and windows come from the changelog",
    ),
    "window keys are in the order of expiry": (
        "stores/test_window_state: dropping a range of windows leaves the others",
    ),
    "messages are kept where an aggregation needs all of them": (
        "seed_003.yaml: the median needs the messages and is updated late",
        "embedded/test_api: messages of an operator that keeps none are refused",
    ),
    "R.1, R.2: messages of past windows by a range": (
        "stores/test_message_store: both bounds are inclusive",
        "stores/test_message_store: a scan takes the times that are asked for",
    ),
    "R.3: expired messages are dropped fast": (
        "stores/test_message_store: where time leads expiry is one range and exact",
    ),
    "R.4: replays and duplicates are not stored": (
        "stores/test_message_store: a replay is stored once and known",
        "ids.yaml: the second of an id is a duplicate and does nothing",
    ),
    "the matrix of message keys": ("stores/test_message_store: the layout is the one of seed 003s matrix",),
    "fields first: a range, or all, of the equal fields": (
        "stores/test_message_store: one keys scan reads only that keys range",
    ),
    "fields first: expired lazily, key by key": (
        "stores/test_message_store: where fields lead expiry frees keys that never return",
    ),
    "session windows have a key, and open when it comes first": (
        "sessions.yaml: keys have sessions of their own, the null key too",
    ),
    "sessions by time end by the difference to the last message of the key": (
        "sessions.yaml: messages exactly one gap apart are one session",
        "sessions.yaml: messages a microsecond more than a gap apart are two sessions",
    ),
    "tuple sessions end by a number of messages of others": (
        "sessions.yaml: a session by messages of others goes on as long as at most so many stand between two of its key",
    ),
    "metadata of sessions lies by session key and start (here in pages of keys)": (
        "embedded/test_sessions: a reader finds the sessions of a key",
        "embedded/test_sessions: a commit of few messages reads few of many open sessions",
    ),
    "messages of sessions lie by session key": (
        "operators/join_window/test_join_window: a session emits what none of its parts has emitted",
    ),
    "a join of sessions without the session key makes no sense (here refused)": (
        "operators/join/test_session_joins: what does not go with sessions is refused with what to do",
    ),
    "Windowed Aggregator, with and without messages": (
        "seed_003.yaml: defaults of the aggregator",
        "seed_003.yaml: the median needs the messages and is updated late",
    ),
    "Join Window Operator": (
        "operators/join_window/test_join_window: the windowed join of the samza design is written on two join windows",
    ),
    "Session Aggregator": (
        "embedded/test_sessions: sessions are what is left when all messages are sorted by time",
    ),
    "Session Join Window Operator": (
        "operators/join_window/test_join_window: a session emits what none of its parts has emitted",
        "joins.yaml: a message meets the whole session of the other input that goes on at its time",
    ),
    "what is configured must be: function, size and its unit, retention (here by size, by time or by both)": (
        "core/test_definition: a refusal names the values and the remedy",
        "retention.yaml: the oldest windows of a key are dropped by number",
    ),
    "defaults of an aggregator: nothing early, full, late every ten seconds": (
        "seed_003.yaml: defaults of the aggregator",
    ),
    "defaults of a join window: each message early and late": (
        "operators/join_window/test_join_window: a message is emitted in its first window only and all of its windows have it",
    ),
    "setOntimeUpdatePeriod, setLateUpdatePeriod": (
        "operators/join_window/test_join_window: "
        "what nobody emitted early is emitted when the window is full and what comes late by its period",
        "joins.yaml: what waits for a period comes on its grid, late pairs by their own",
    ),
    "setKeyedMessageStore": (
        "operators/join_window/test_join_window: messages of a join key are found without a look at the others",
    ),
    "retention of a join window by size and time": (
        "operators/join_window/test_join_window: the oldest windows beyond a number go and emit what waits",
        "operators/join/test_session_joins: sessions of a join beyond a number go with all that they hold",
    ),
    "addMessage: out of retention goes to the error topic": (
        "seed_003.yaml: a message out of retention goes to the dead letters",
        "kafka/test_consume: a record that cannot be read is a dead letter with its coordinates",
    ),
    "addMessage: a replay does nothing": (
        "embedded/test_api: a replayed message does nothing and is counted",
    ),
    "addMessage: a new window is opened": ("seed_003.yaml: a future message waits in its own window",),
    "what the next operator refuses stops intake, and is tried again by timeout": (
        "embedded/test_api: a sink that refuses pauses the operator until it takes what is pending",
    ),
    "timeout: what waits is judged by the clock": (
        "embedded/test_api: periods tick by the clock that is given",
    ),
    "standalone: getResult hands out, flush commits and clears": (
        "embedded/test_api: results stay until they are flushed over a restart too",
    ),
    "getWindows(startTime, endTime): sorted, all that cover the range": (
        "embedded/test_api: windows that overlap the closed range are given in order",
    ),
    "getWindows(sessKey, startTime, endTime)": (
        "embedded/test_sessions: a reader finds the sessions of a key",
        "operators/join/test_session_joins: sessions of a join and their messages are found by session key and without",
    ),
    "getMessages(startTime, startOffset, endTime, endOffset)": (
        "embedded/test_api: messages between two bounds both included",
        "embedded/test_joins: messages of an input between two bounds both included",
    ),
    "getMessages(..., joinKeys)": (
        "operators/join_window/test_join_window: messages of a join key are found without a look at the others",
    ),
    "getMessages(sessKey, ...), with join keys and without": (
        "operators/join_window/test_join_window: a session emits what none of its parts has emitted",
        "embedded/test_questions: leading columns find the messages of a join window",
    ),
}


ATSD: dict[str, tuple[str, ...]] = {
    "Windows: in memory, one for each combination of grouping tags (here of key columns, and durable)": (
        "operators/alert/test_alerts: samples that leave cause an evaluation",
    ),
    "a page that lists windows (here `windrow table LOCATION alerts`)": (
        "operators/alert/test_alerts: the table of alerts says what is open and what is due",
    ),
    "`count` windows hold up to so many samples, by command time, the oldest is removed": (
        "seed_000.yaml: the animated window of three samples is red as long as the red one is inside",
        "operators/alert/test_alerts: a counted window holds the newest by event time",
    ),
    "the picture of the `count` window": (
        "seed_000.yaml: the animated window of three samples is red as long as the red one is inside",
    ),
    "`time` windows hold all samples of the interval, without limit": (
        "operators/alert/test_alerts: a window of time holds what is as old as it is long and no older",
    ),
    "their start moves with time (event time; with `wr.fixed` the clock)": (
        "seed_000.yaml: a window of time has a start that moves with time, and removes what is older",
    ),
    "a command at the start or later is added; one before it is not (a dead letter)": (
        "operators/alert/test_alerts: a window of time holds what is as old as it is long and no older",
    ),
    "the end is not set: samples from the future are accepted, unless a filter discards them (`max_ahead=`)": (
        "operators/alert/test_alerts: under the clock samples from the future belong to the window",
    ),
    "old commands are removed": (
        "seed_000.yaml: a window of time has a start that moves with time, and removes what is older",
    ),
    "the condition is evaluated as data is received and removed, and status changes trigger actions": (
        "operators/alert/test_alerts: samples that leave cause an evaluation",
    ),
    "no history is loaded unless Load History is on (`history=`): as long as the window, or as many samples": (
        "operators/alert/test_alerts: one true evaluation opens and a second one repeats",
        "operators/alert/test_alerts: history fills the window of a key before its first message without a row",
    ),
    "the window of a key is created by its first command": (
        "operators/alert/test_alerts: samples that leave cause an evaluation",
    ),
    "new windows have the status CANCEL": (
        "seed_000.yaml: the status table, for a condition that is value above 75",
    ),
    "triggers on status changes, and at scheduled intervals while REPEAT": (
        "operators/alert/test_alerts: repeats by time are due without data and survive a restart",
    ),
    "triggers of each action are configured and executed separately": (
        "operators/alert/test_alerts: each action has triggers of its own and the incident is shared",
    ),
    "the table of status events": (
        "seed_000.yaml: the status table, for a condition that is value above 75",
        "operators/alert/test_alerts: the status follows the table of transitions",
        "operators/alert/test_status: the status table",
    ),
    "OPEN: from false to true": ("seed_000.yaml: the status table, for a condition that is value above 75",),
    "REPEAT: true again, so at least two evaluations in a row": (
        "operators/alert/test_alerts: one true evaluation opens and a second one repeats",
    ),
    "actions with a frequency: every ten evaluations, every five minutes": (
        "operators/alert/test_alerts: repeats by number count evaluations",
        "operators/alert/test_alerts: repeats by time are due without data and survive a restart",
    ),
    "CANCEL: at first, and from true to false": (
        "seed_000.yaml: the status table, for a condition that is value above 75",
    ),
    "CANCEL triggers no repeats": (
        "seed_000.yaml: the status table, for a condition that is value above 75",
    ),
    "a negated expression emulates them": (
        "seed_000.yaml: a negated condition repeats while the other one is false",
    ),
    "modified, deleted or shut down: CANCEL, On Cancel is not invoked (here another `version=`; a shutdown keeps the status)": (
        "operators/alert/test_alerts: another version drops windows and statuses without a row",
        "operators/alert/test_alerts: a delay drops what is cancelled before it ends",
    ),
    "`cancel.on.rule.change` invokes On Cancel then (here there is none; [life cycle](../semantics/alerts.md#life-cycle))": (
        "operators/alert/test_alerts: another version drops windows and statuses without a row",
    ),
    "a modified rule drops its windows, which new commands create again": (
        "operators/alert/test_alerts: another version drops windows and statuses without a row",
    ),
    "`timer` metrics of 15 seconds, 1 and 15 minutes, 1 hour, always there (here `evaluate=`, of any period)": (
        "operators/alert/test_alerts: a timer evaluates at each moment that is crossed and once after a pause",
    ),
    "window fields, updated continuously, in conditions, filters and variables (here `where=` is of messages alone)": (
        "operators/alert/test_alerts: samples that leave cause an evaluation",
        "operators/alert/test_alerts: hysteresis by the status before",
    ),
}


@dataclass(frozen=True)
class Requirements:
    """A requirement document: its title, and its statements with their proofs."""

    title: str
    statements: dict[str, tuple[str, ...]]


#: Pages of docs/reference/requirements, by their names.
REQUIREMENTS: dict[str, Requirements] = {
    "malhar": Requirements("The windowed operator of Apex Malhar", MALHAR),
    "psi": Requirements("Windows of Platform for Situated Intelligence", PSI),
    "samza": Requirements("The window operators of Samza (SAMZA-552)", SAMZA),
    "drools": Requirements("Drools Fusion", DROOLS),
    "atsd": Requirements("Windows of the rule engine of ATSD", ATSD),
    "cases": Requirements("Cases that must hold", {**CASES, **RULES}),
}
FOLDER = "reference/requirements"
INDEX = """# Requirements

<!-- Written by `make pages` from tests/docs/statements.py. -->

The documents that windrow follows, statement by statement, each with the tests that prove it. Names are those of the document
([their names in windrow](../../howto/migrating.md)). Brackets say what windrow does otherwise. `make test` checks that
every proof exists.

| document | statements |
|---|---|
"""
CASES_NOTE = """
Where nothing else is said, times are seconds, W is the watermark, and sessions have a gap of ten seconds.
"""


@functools.cache
def scenarios(name: str) -> frozenset[str]:
    """List the scenarios of a file of transcripts."""
    [path] = (ROOT / "tests" / "transcripts").rglob(name)
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line.removeprefix("name: ").strip('"') for line in lines if line.startswith("name: "))


@functools.cache
def tests(name: str) -> frozenset[str]:
    """List the tests of a module, as sentences."""
    path = ROOT / "tests" / f"{name}.py"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("def test_")]
    return frozenset(line.removeprefix("def test_").partition("(")[0].replace("_", " ") for line in lines)


def exists(proof: str) -> bool:
    """True if there is such a scenario, or test."""
    place, _, name = proof.partition(": ")
    try:
        return name in (scenarios(place) if place.endswith(".yaml") else tests(place))
    except (OSError, ValueError):
        return False


def link(proof: str) -> str:
    """Show a proof as a link to its file."""
    place, _, name = proof.partition(": ")
    path = f"tests/{place}.py"
    if place.endswith(".yaml"):
        [file] = (ROOT / "tests" / "transcripts").rglob(place)
        path = file.relative_to(ROOT).as_posix()
    return f"[{name}](../../../{path})"


def page(name: str) -> str:
    """Write the page of a requirement document."""
    document = REQUIREMENTS[name]
    rows = "".join(
        f"| {statement} | {'<br>'.join(map(link, proofs))} |\n"
        for statement, proofs in document.statements.items()
    )
    note = CASES_NOTE if name == "cases" else ""
    mark = "<!-- Written by `make pages` from tests/docs/statements.py. -->"
    return f"# {document.title}\n\n{mark}\n{note}\n| statement | proof |\n|---|---|\n{rows}"


def index() -> str:
    """Write the page that lists the documents."""
    rows = (
        f"| [{document.title}]({name}.md) | {len(document.statements)} |\n"
        for name, document in REQUIREMENTS.items()
    )
    return INDEX + "".join(rows)


def pages() -> dict[str, Callable[[], str]]:
    """List the pages, by their paths below docs."""
    written = {f"{FOLDER}/{name}.md": functools.partial(page, name) for name in REQUIREMENTS}
    return {f"{FOLDER}/README.md": index, **written}


def unproved() -> list[str]:
    """List the statements that have no proof, or one that does not exist."""
    return [
        f"{statement!r}: {proof}"
        for document in REQUIREMENTS.values()
        for statement, proofs in document.statements.items()
        for proof in proofs or ("",)
        if not exists(proof)
    ]
