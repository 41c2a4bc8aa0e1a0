"""Cases that must hold, with their numbers and the proofs of each: docs/reference/requirements/cases.md.

Instants and durations are seconds where nothing else is said, W is the watermark, the gap of sessions is ten seconds.
"""

from __future__ import annotations

OVER, ANCHORS = "operators/over/test_over", "operators/anchors/test_anchors"

SESSIONS: dict[str, tuple[str, ...]] = {
    "0, 10 are one session, `[0, 20)`": ("sessions.yaml: messages exactly one gap apart are one session",),
    "0, 10.000001 are two": ("sessions.yaml: messages a microsecond more than a gap apart are two sessions",),
    "20, 35, then 27: `[20, 45)`, whatever the order and cut": (
        "sessions.yaml: a message between two sessions makes them one",
    ),
    "two keys at the same time have two": (
        "sessions.yaml: keys have sessions of their own, the null key too",
    ),
    "the null key has one, or gives dead letters": (
        "sessions.yaml: keys have sessions of their own, the null key too",
        "sessions.yaml: messages without a key are dead letters, each by itself, where the null key is none",
    ),
    "gap 2, 2@1.1, 3@2, 4@5, 3@3.5, each emitted with its index, retracting and accumulating": (
        "sessions.yaml: every pane, retracting",
        "sessions.yaml: every pane, accumulating, takes back windows that are no more",
    ),
    "0, then 5, then 3: what keeps its window is not taken back": (
        "sessions.yaml: a pane of the same window stands in the place of the former, accumulating",
    ),
    "discarding, the same four add up to 12": (
        "sessions.yaml: discarding panes add up and take nothing back",
    ),
    "0; W=20; late 5: `[0, 10)` is taken back, `[0, 15)` is emitted late": (
        "sessions.yaml: a late message corrects a session that was told",
    ),
    "10, 20 open at W=18: 5 is taken though lateness is 0": (
        "sessions.yaml: a message behind the watermark is taken where it touches an open session",
    ),
    "gap 5, 0, W=6, lateness 0: 0.9 is too late, 3 begins another session": (
        "sessions.yaml: a closed session never opens again, and what comes beside it in time begins another one",
    ),
    "0, W=10, lateness 0: 10 is on time, and the session goes on": (
        "sessions.yaml: a message at the end of a session is on time while the watermark stands there",
    ),
    "`Emit.append()`: 0 is emitted at W=10.000001, not at W=10": (
        "sessions.yaml: where nothing can be corrected a session is told when nothing on time can come",
    ),
    "two emitted sessions that become one, late every 10 s: both are current until the tick": (
        "sessions.yaml: two told sessions that were joined stand until the next tick",
    ),
    "gaps of their own, (10, 2) and (10.5, 1): `[10, 12)`": (
        "sessions.yaml: messages have gaps of their own, and the one that reaches furthest decides",
    ),
    "a gap of 0 is refused": ("core/test_definition: a refusal names the values and the remedy",),
    "23:55 and 00:05, cut by days: two, the first ends at 00:00": (
        "sessions.yaml: sessions never go across a boundary",
    ),
    "`messages=2`, a b c a d e f a: a `[1, 4]` is emitted with the seventh": (
        "sessions.yaml: a session by messages of others goes on as long as at most so many stand between two of its key",
    ),
    "the median of a session of two is that of all messages": (
        "sessions.yaml: the median of a session that was joined is that of all of its messages",
    ),
    "the message that joined two comes again: nothing": (
        "embedded/test_sessions: a message that joined two sessions and comes again does nothing",
        "sessions.yaml: a message that joined two sessions and comes again, known by its id, does nothing",
    ),
    "groups of Spark SQL and rows give the panes of the embedded operator": (
        "spark/test_sessions: both routes give the sessions of the oracle",
    ),
    "any cut gives the same sessions, and emitted ones never touch": (
        "embedded/test_sessions: sessions are what is left when all messages are sorted by time",
        "embedded/test_sessions: what is emitted of a key never overlaps nor touches",
        "proof/test_sessions_against_oracle: any aggregate over sessions says what its oracle says",
    ),
    "many lone sessions that end at once: one advance, one range, nothing waits after": (
        "embedded/test_sessions: many lone sessions that end at once leave by one range and nothing waits for them any more",
    ),
    "a join, left 0, 12, right 6: (0, 6), (12, 6), whoever comes last": (
        "joins.yaml: messages of both inputs make a session together, and each meets all others of it",
        "joins.yaml: a session of both inputs has the same pairs whoever comes last",
    ),
    "a join of the sessions of the left, 0, 8, right 15: (0, 15), (8, 15)": (
        "joins.yaml: a message meets the whole session of the other input that goes on at its time",
    ),
    "a join of sessions without their key is refused": (
        "operators/join/test_session_joins: what does not go with sessions is refused with what to do",
    ),
}

AROUND: dict[str, tuple[str, ...]] = {
    "rows (-2, 0) of 0..4: 012, 123, 234, nothing for 0 and 1": (
        f"{OVER}: a window by index is emitted when it is whole",
    ),
    "rows [0, 2) of 0..4: 01, 12, 23, 34": (
        "seed_002.yaml: a window of the next messages without the last of them",
    ),
    "rows (-3, -1) of 0..9: 3, 6, .. 21, of 3..9": (
        "seed_002.yaml: a window wholly past, of the third message before to the first before, is told of each that has "
        "three before it",
    ),
    "rows (1, 3]: the second and the third behind the message": (
        f"{OVER}: a window by index is emitted when it is whole",
    ),
    "range (-2 ms, 0) of 0..4 ms, closed on both sides and on the right": (
        f"{OVER}: a window by time is emitted for every message",
    ),
    "averages over (0, 35 ms) and (-15, 25 ms) of 0..6 at 10 ms": (f"{OVER}: averages over a time around",),
    "averages over 4, over 4 ms and over all of 0..6": (
        f"{OVER}: statistics over the last messages and over all so far",
    ),
    "0, 1, 100 with (0, 5): both windows come with W past 100, in order": (
        "seed_002.yaml: windows that one message of much later completes come together, in their order",
    ),
    "two messages at 5: both see both by time, one the other by index": (
        f"{OVER}: messages of one moment are in each others windows by time and in order by index",
    ),
    "late 3 after 2, 4, 9: its own row, and 4 is corrected, by time and by index": (
        "operators/over/test_corrections: a late message has its row and corrects those whose windows it is in",
    ),
    "the deviation of one is null": ("seed_002.yaml: without a size or a time statistics are running",),
    "a crash while windows wait: each is emitted once": (
        "operators/test_contract: an operator emits what its oracle says however it is fed cut killed and robbed",
        "seed_002.yaml: windows that one message of much later completes come together, in their order",
    ),
    "a running count goes on over commits and restarts": (
        "seed_002.yaml: without a size or a time statistics are running",
    ),
    "any cut gives the same rows, those of polars": (
        "operators/over/test_properties: windows by time are those of polars in any cut",
    ),
    "windows that grow to the right, and to the left, with every kind of ends": (
        f"{ANCHORS}: each anchor says which messages its window holds",
    ),
    "(3, 3, 5), then (2, 3, 5): the second is `obsolete_window`, the next goes on": (
        f"{ANCHORS}: a window that breaks a promise is a dead letter and the next continues",
    ),
    "an empty window is emitted": (
        f"{ANCHORS}: each anchor says which messages its window holds",
        f"{ANCHORS}: keys of both inputs are one where they are equal and else refused",
    ),
    "a clock of 0.5, (-0.5, 0.5), source 0, 0.5, 1: 2, 3, 2": (
        f"{ANCHORS}: a clock drives a fixed window whatever comes",
    ),
    "a silent source: nothing until its time moves or it is idle": (
        "seed_002.yaml: while the source is silent no window is told, until its time moves or it is idle",
    ),
}

OTHERS: dict[str, tuple[str, ...]] = {
    "the latest of each key of a1 a2 b1: a2, b1, and W as if all had passed": (
        "operators/delivery/test_delivery: the latest of each key is passed on and the others advance time",
    ),
    "within 2 s at 10: 8 is taken, 7.999999 is skipped": (
        "operators/delivery/test_delivery: what is too old when the step is made is skipped to the microsecond",
    ),
    "a step that is made again skips the same": (
        "operators/test_contract: an operator emits what its oracle says however it is fed cut killed and robbed",
        "operators/delivery/test_delivery: a throttle remembers when it took one until the interval is over",
    ),
    "two inputs at 1,000, 200, then 2,100: none, 200, 1,000": (
        "embedded/test_cogroup: its watermark is the earliest of those of its inputs",
    ),
    "any of every 3 and every 10 s: 3 messages fire, the next tick does not, one more message and the next tick do": (
        "triggers.yaml: any of two triggers tells, and a tick after a count tells what is new alone",
    ),
    "sessions of users are windows of sites; `wr.inherited()` outside a chain is refused": (
        "embedded/test_propagated_windows: sessions of users are windows of sites",
        "embedded/test_propagated_windows: what has no window to inherit is refused",
    ),
    "state in memory, killed: equal, and emitted once": (
        "embedded/test_memory_store: what was committed in memory is there after a kill and is emitted once",
        "proof/test_kill: no pane is lost or sent twice however often the process is killed",
    ),
}

ALERTS: dict[str, tuple[str, ...]] = {
    "alerts, value > 75 on 70, 80, 90, 60, 50: none, OPEN 0, REPEAT 1, CANCEL, none": (
        "operators/alert/test_alerts: the status follows the table of transitions",
    ),
    "80 alone: OPEN": ("operators/alert/test_alerts: one true evaluation opens and a second one repeats",),
    "frame=3 at 1, 3, 2, 5: at last {2, 3, 5}": (
        "operators/alert/test_alerts: a counted window holds the newest by event time",
    ),
    "90 at 0, 5 s window, samples > 0: OPEN at 0, CANCEL as it leaves; `leaving=False`: stays": (
        "operators/alert/test_alerts: samples that leave cause an evaluation",
    ),
    "every(10), trues 1 to 21: OPEN, counts 10 and 20": (
        "operators/alert/test_alerts: repeats by number count evaluations",
    ),
    "delay 60 s: CANCEL at 59: no rows; at 61: OPEN at 60, CANCEL at 61": (
        "operators/alert/test_alerts: a delay drops what is cancelled before it ends",
    ),
    "hysteresis 80/70 on 79, 80, 75, 71, 69, 79: OPEN, REPEAT, REPEAT, CANCEL": (
        "operators/alert/test_alerts: hysteresis opens at one threshold and cancels at the other",
    ),
    "a restart inside a delay, and inside REPEAT: the rows of an undisturbed run": (
        "operators/alert/test_alerts: a delay drops what is cancelled before it ends",
        "operators/alert/test_alerts: repeats by time are due without data and survive a restart",
        "operators/test_contract: a job that dies at every point of a commit loses nothing and repeats nothing",
    ),
    "a timer of 15 s without data: each moment, one after a pause of an hour": (
        "operators/alert/test_alerts: a timer evaluates at each moment that is crossed and once after a pause",
    ),
    "any cut, nothing late: the same transitions": (
        "operators/alert/test_alerts: with nothing late transitions do not depend on the cut",
    ),
    "history of eight hours before the first message: its window has the last hour, or the last ten; no row while it loads": (
        "operators/alert/test_alerts: history fills the window of a key before its first message without a row",
        "operators/test_contract: spark emits what the embedded operator emits",
    ),
    "two actions, own frequencies, one opening and `alert_id`": (
        "operators/alert/test_alerts: each action has triggers of its own and the incident is shared",
    ),
    "a webhook that fails twice: accepted once, one key thrice; killed between send and note: the same key": (
        "connectors/test_notifications: a webhook that fails twice takes a row once under one key",
        "connectors/test_notifications: a receiver that honours the key has each row once though the job dies ten times",
    ),
    "a backtest of recorded alerts is their rows": (
        "operators/alert/test_alerts: a backtest emits what the job emitted",
    ),
    "a key that is CANCEL and empty is removed at once; by ttl an open one is cancelled, `expired`": (
        "operators/alert/test_alerts: what leaves no state is forgotten at once",
        "operators/alert/test_alerts: a ttl evicts quiet keys and cancels open ones",
    ),
}

CASES = {**SESSIONS, **AROUND, **OTHERS, **ALERTS}
