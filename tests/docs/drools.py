"""Drools Fusion, statement by statement, with the proofs of each; and the cases of rules that must hold.

Proofs are written as in statements.py.
"""

from __future__ import annotations

TIMES, DEFINED = "core/test_temporal", "operators/rules/test_rules_definition"
FACTS, FRAMES, SAME = (
    "operators/rules/test_facts",
    "operators/rules/test_frames",
    "operators/rules/test_engines",
)
STEPS = "operators/rules/test_equivalents"
CONTRACT = (
    "operators/test_contract: an operator emits what its oracle says however it is fed cut killed and robbed"
)
SPARK = "spark/test_rules: a query of rules emits what they emit embedded and counts copied facts once"
FORMULA = (f"{TIMES}: operators are the formulas of the requirements",)
BOUNDARIES = (f"{TIMES}: cases in milliseconds",)
REFUSED = (f"{DEFINED}: what cannot be meant is refused with names and remedy",)
ORACLE = "operators/rules/test_oracle: random rules emit what the oracle says"

DROOLS: dict[str, tuple[str, ...]] = {
    # -- events
    "events are facts; immutable, so attributes are never changed (here messages are filed once and never change)": (
        ORACLE,
    ),
    "strong temporal constraints: rules correlate events at points in time relative to others": (
        "rules.yaml: orders and acknowledgements within ten seconds",
    ),
    "managed lifecycle: the engine finds out when an event can no longer match, and lets it go": (
        f"{TIMES}: nothing is kept too short and deadlines are tight",
    ),
    "sliding windows over the timestamps of events": (
        f"{FRAMES}: a message is out of a frame of time at its age",
    ),
    "point-in-time and interval-based events; a point is an interval of duration 0": (
        f"{TIMES}: points and durations of the requirements",
    ),
    "Example 2.1: an existing type is an event (here an input): `event` or `fact` (here `wr.Input` or `wr.Table`)": (
        "rules.yaml: an event without a timestamp has that of the clock",
    ),
    "Examples 2.2, 2.3: a type declared inline, a class (here the columns of an input)": (
        "rules.yaml: the columns of a declared event",
    ),
    "by default the timestamp is read from the session clock (here the recorded `now`, with `event_time=None`)": (
        "rules.yaml: an event without a timestamp has that of the clock",
    ),
    "Example 2.5: `@timestamp` names the attribute of the timestamp": (
        "rules.yaml: an event lasts as long as its duration says",
    ),
    "Example 2.6: `@duration` names the attribute of the duration; by default it is 0": (
        "rules.yaml: an event lasts as long as its duration says",
    ),
    "`@duration` counts in STREAM mode only (here in both)": (
        f"{FACTS}: in cloud mode a negative is decided in its step",
    ),
    "Example 2.7: `@expires( [#d][#h][#m][#s][#[ms]] )`, 1h35m": (
        f"{TIMES}: points and durations of the requirements",
        "rules.yaml: an event lasts as long as its duration says",
    ),
    "the `@expires` policy overrides the implicit expiration offset (here with a warning where matches are lost)": (
        f"{DEFINED}: what is probably not meant is warned of",
    ),
    # -- clock
    "reasoning over time requires a reference clock, by a strategy": (
        "embedded/test_backtest: time passes between messages where rows wait for it",
    ),
    "real time clock, the default (here `wr.fixed`; the default is event time); pseudo clock, by the application": (
        "rules.yaml: an event without a timestamp has that of the clock",
        "rules.yaml: a negative pattern with a time waits for its deadline, which still counts",
    ),
    "rules replay and simulation: the application controls the flow of time": (
        "embedded/test_backtest: a recorded job and its backtest emit the same rows",
    ),
    # -- entry points
    "a stream is an entry point (here an input); events of one never match a pattern of another": (
        f"{FACTS}: an event meets the row that is current",
    ),
    "facts of one entry point join with those of others, and with the working memory (here tables)": (
        f"{FACTS}: facts are joined as nested loops join them",
    ),
    "entry points are declared by use (here in `inputs=`, and an unknown one is refused)": REFUSED,
    "Example 2.8: authorize a withdrawal where the balance is over the amount": (
        f"{FACTS}: an event meets the row that is current",
    ),
    "Example 2.9: a fee on withdrawals at a branch": (f"{FACTS}: an event meets the row that is current",),
    "Example 2.10: events are inserted into an entry point (here `op.add_message(message, input)`)": (
        f"{FACTS}: an event meets the row that is current",
    ),
    # -- operators
    "`*` is positive infinity, `-*` negative infinity (here `wr.forever`, `-wr.forever`)": BOUNDARIES,
    "all 13 operators of Allen, and their complements": (
        f"{TIMES}: operators are the formulas of the requirements",
        f"{TIMES}: inverses and the one of thirteen",
    ),
    "after: min <= A.start - B.end <= max": FORMULA,
    "after with two values, with one (no upper bound), with none (1 ms; here 1 us, the tick) ": BOUNDARIES,
    "after: negative distances; a first value above the second is reversed": (
        f"{DEFINED}: reversed bounds are turned round",
    ),
    "before: min <= B.start - A.end <= max, with two, one and no values": FORMULA,
    "before: negative distances; reversed as those of after": (
        f"{DEFINED}: reversed bounds are turned round",
    ),
    "after, before and coincides take dates and longs, in any combination": (
        f"{TIMES}: time columns and instants are points",
    ),
    "coincides: both timestamps are the same; one threshold for both, two for start and end": FORMULA,
    "coincides: negative intervals are an error": BOUNDARIES,
    "during: A starts after B and ends before it; 1, 2 or 4 distances": FORMULA,
    "finishes: A starts after B and both end together; one parameter for the ends; negative is an error": FORMULA,
    "finishedby: A starts before B and both end together; one parameter; negative is an error": FORMULA,
    "includes: B starts after A and ends before it; 1, 2 or 4 distances": FORMULA,
    "meets: A ends when B starts; one parameter; negative is an error": FORMULA,
    "metby: A starts when B ends; one parameter; negative is an error": FORMULA,
    "overlaps: A starts before B and ends inside it; 1 or 2 parameters": FORMULA,
    "overlappedby: B starts before A and ends inside it; 1 or 2 parameters": FORMULA,
    "starts: both start together and A ends before B; one parameter; negative is an error": FORMULA,
    "startedby: both start together and B ends before A; one parameter; negative is an error": FORMULA,
    # -- modes
    "CLOUD mode: no flow of time, no order, no sliding windows (here not the default)": (
        f"{DEFINED}: what cannot be meant is refused with names and remedy",
        f"{FACTS}: in cloud mode facts meet events that came before them",
    ),
    "CLOUD mode: no lifecycle; the application retracts events (here rows of a table, by `deleted=`)": (
        f"{FACTS}: rows that are deleted before they come are not there",
    ),
    "CLOUD mode: the whole working memory, many-to-many, in any order": (
        f"{FACTS}: in cloud mode facts meet events that came before them",
        ORACLE,
    ),
    "CLOUD mode: the clock stamps events without a timestamp, and nothing else": (
        f"{FACTS}: in cloud mode a negative is decided in its step",
        "rules.yaml: an event without a timestamp has that of the clock",
    ),
    "STREAM mode: the clock gives `now`: ageing, synchronized streams, scheduled tasks (here the watermark of all inputs)": (
        "rules.yaml: a negative pattern with a time waits for its deadline, which still counts",
        ORACLE,
    ),
    "the mode is an option of the knowledge base (here `mode=`)": REFUSED,
    "STREAM mode: events of a stream are ordered (here out of order up to the watermark), streams are synchronized": (
        ORACLE,
    ),
    "CLOUD mode: negative patterns are evaluated immediately": (
        f"{FACTS}: in cloud mode a negative is decided in its step",
    ),
    "Example 2.11: a negative without temporal constraints activates immediately (here at the end of the step)": (
        "rules.yaml: a negative pattern without a time activates at once",
    ),
    "Example 2.12: a negative with `after[0s,10s]` waits for ten seconds, by itself": (
        "rules.yaml: a negative pattern with a time waits for its deadline, which still counts",
        "rules.yaml: the deadline of a fire that lasts counts from its end",
    ),
    "Example 2.13: the same with an explicit `duration( 10s )` (here `delay=`)": (
        "rules.yaml: an explicit delay of the same length gives the same rows",
    ),
    "Example 2.14: a heartbeat every ten seconds; the bound event is excluded (here `other_than=`)": (
        "rules.yaml: of heartbeats the last one is missed",
        f"{DEFINED}: what is probably not meant is warned of",
    ),
    # -- windows
    "windows start to match immediately; the average of no events is 0 (here null, unless `empty=` says it)": (
        f"{FRAMES}: nothing is no value unless it is said which",
    ),
    "`window:time( 2m )`: only events of the last two minutes": (
        f"{FRAMES}: a pattern over a frame of time meets what ends in it",
    ),
    "Example 2.15: the average temperature of ten minutes above a threshold": (
        f"{FRAMES}: thresholds are facts",
        f"{FRAMES}: any cut gives the sums of nested loops",
    ),
    "windows of time count for expiry; an event may fall off one and be kept for other rules": (ORACLE,),
    "`window:length( 10 )`, by order of insertion, of what passes the pattern": (
        f"{FRAMES}: a frame of messages counts those that pass",
        f"{FRAMES}: a pattern over a frame of messages is one of the newest as the last message comes",
    ),
    "Example 2.16: the average of the last 100 readings above a threshold": (
        f"{FRAMES}: thresholds are facts",
        f"{FRAMES}: any cut gives the sums of nested loops",
    ),
    "length windows define no expiry, so events may be kept indefinitely (here the last ones of a key are)": (
        f"{FRAMES}: a frame of messages counts those that pass",
    ),
    # -- partitions and memory
    "Examples 2.17, 2.18: rules are evaluated in parallel, up to so many threads (here shards, by `by=`)": (
        CONTRACT,
        SPARK,
    ),
    "rules fire one after the other by conflict resolution (here in the order in which they are written)": (
        ORACLE,
    ),
    "the engine retracts an event when it can no longer match (STREAM mode only)": (
        f"{TIMES}: nothing is kept too short and deadlines are tight",
    ),
    "Example 2.19: explicit expiry after 30 minutes, assuming no rule still needs the event (here `wr.at_least`)": (
        "rules.yaml: an explicit expiry of at least so long takes no match away",
    ),
    "Example 2.20: the inferred expiry of orders is 10 seconds, of acknowledgements 0": (
        f"{TIMES}: expiry of orders and of sprinklers",
        "rules.yaml: orders and acknowledgements within ten seconds",
    ),
    "the analysis is of the whole rulebase; of explicit and implicit the greater (here `wr.at_least`)": (
        f"{DEFINED}: a plan says what is kept read and decided",
    ),
}

RULES: dict[str, tuple[str, ...]] = {
    "boundaries of the operators, in milliseconds": BOUNDARIES,
    "three distances are refused": REFUSED,
    "of the thirteen without distances exactly one holds for two intervals; six pairs of inverses": (
        f"{TIMES}: inverses and the one of thirteen",
    ),
    "a column or a datetime is a point, and `during` refuses it": (
        f"{TIMES}: time columns and instants are points",
        *REFUSED,
    ),
    "`-3m30s` is -210 s, `1h35m` 5,700 s": (f"{TIMES}: points and durations of the requirements",),
    "a at 0, b at 9, no n between: emitted": (
        "rules.yaml: an absence between two events, with its two deadlines",
    ),
    "b after a 10 s and b before a: refused, both named": (
        f"{TIMES}: contradictions name the shortest cycle",
        *REFUSED,
    ),
    "an order is kept until W has passed its end by more than 10 s, an acknowledgement not": (
        f"{TIMES}: expiry of orders and of sprinklers",
    ),
    "an explicit expiry of 5 s: a warning with both figures": (
        f"{DEFINED}: what is probably not meant is warned of",
    ),
    "`wr.at_least('5 s')` under 10 s: 10 s": (
        "rules.yaml: an explicit expiry of at least so long takes no match away",
    ),
    "`wr.otherwise`, where nothing is inferred": (f"{DEFINED}: what is meant is not warned of",),
    "two rules on one input: the longer time": (f"{DEFINED}: a plan says what is kept read and decided",),
    "`during` without `longest`: taken (a container is kept until its own end)": (
        f"{TIMES}: nothing is kept too short and deadlines are tight",
    ),
    "a sprinkler at 5 s or 10 s suppresses, at 10.000001 s not; emitted once W is past 10 s": (
        "rules.yaml: a negative pattern with a time waits for its deadline, which still counts",
    ),
    "of a fire of 5 s the deadline is 15 s": (
        "rules.yaml: the deadline of a fire that lasts counts from its end",
    ),
    "a sprinkler that is read before its fire suppresses": (
        "rules.yaml: a sprinkler that is read before its fire suppresses the alarm",
    ),
    "with a lateness of a minute decided once W is past 70 s": (
        "rules.yaml: allowed lateness delays every negative",
    ),
    "heartbeats at 0 and 5: that of 5 alone": ("rules.yaml: of heartbeats the last one is missed",),
    "without a bound decided at the end of the step": (
        "rules.yaml: a negative pattern without a time activates at once",
    ),
    "a sprinkler of another room does not suppress": (
        "rules.yaml: a negative pattern with a time waits for its deadline, which still counts",
    ),
    "the absences of orders, one a millisecond, whatever the cut": (
        f"{SAME}: absences do not depend on the cut",
        f"{STEPS}: absences do not depend on the cut",
    ),
    "the same messages, one shard or several, any cut: the same match ids": (ORACLE, CONTRACT, SPARK),
    "a step done again after a crash: no second row": (
        CONTRACT,
        "proof/test_kill_absences: each absence is emitted once however often the process is killed",
    ),
    "20,000 x 20,000 of one key: all pairs, below 1 GiB": (
        f"{STEPS}: many pairs of one key need little memory",
        "stores/test_spill: tables in a list go to a file and stay in their order",
    ),
    "retracting: INSERT past 10 s, RETRACT at the late sprinkler with the same values; the ledger is what is emitted once": (
        "operators/rules/test_oracle: what is left of corrected rows is what is emitted once",
    ),
    "W jumps to the end of time: all is decided, the state is empty": (
        f"{FRAMES}: any cut gives the sums of nested loops",
    ),
    "4 at 0 s, 8 at 5 s, frame 10 s: 4, 6, 8 at age 10 s, nothing (no row before the first message)": (
        f"{FRAMES}: a message is out of a frame of time at its age",
    ),
    "`frame=2`, R 4, X 100, X 100, R 8, R 12: 4, 6, 10": (
        f"{FRAMES}: a frame of messages counts those that pass",
    ),
    "`closed='both'`: two still at 10 s": (
        f"{FRAMES}: a frame that is closed on both sides has it a moment longer",
    ),
    "the average of nothing is null, or what `empty=` says": (
        f"{FRAMES}: nothing is no value unless it is said which",
    ),
    "a withdrawal at a branch never matches the rule of ATMs": (
        f"{FACTS}: an event meets the row that is current",
    ),
    "`wait='1 minute'`: 59 s later a match, 61 s later none": (f"{FACTS}: a fact is waited for",),
    "cloud: decided in the step; frames are refused": (
        f"{FACTS}: in cloud mode a negative is decided in its step",
        *REFUSED,
    ),
    "`repr` builds an equal value; the fingerprint changes with a distance, not with `then`": (
        "state/test_definition_parser: a definition is built again from its text",
        f"{DEFINED}: a definition is a value",
    ),
    "explain names the messages, the distances, and the range of an absence": (
        "operators/rules/test_reasons: a row is explained with its distances and the range of its absence",
    ),
    "a backtest of a recorded job is its rows": (
        "embedded/test_backtest: a recorded job and its backtest emit the same rows",
    ),
    "a rule of two patterns is a join": (f"{SAME}: a rule of two patterns is an inner join",),
    "an absence is an anti join": (f"{SAME}: an absence is an anti join",),
    "an accumulate near an event is an OVER around it": (
        f"{SAME}: an accumulate is a window around anchors",
    ),
    "many rules emit what a job of each emits": (f"{SAME}: many rules are as many jobs of one",),
}
