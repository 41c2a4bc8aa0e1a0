"""Properties of the oracle for any definition, any messages, any steps."""

from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core.messages import Message, Pane, Position, Timing, TupleWindow
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.oracle import AggregateOracle
from windrow.testing.ledger import all_panes_equal, ledger, ledger_key
from windrow.testing.transcript_parser import parse

S = 1_000_000
WINDOWS = st.sampled_from(
    [
        'wr.tumbling("10 seconds")',
        'wr.hopping("10 seconds", "4 seconds")',
        'wr.hopping("3 seconds", "7 seconds", gaps=True)',
        "wr.global_window()",
        "wr.tuples(3)",
        "wr.tuples(4, step=2)",
    ]
)
EARLY = st.sampled_from(["wr.never", "wr.every_batch", "wr.every(2)", 'wr.every("7 seconds")'])
LATE = st.sampled_from(["wr.every_batch", "wr.every(3)", 'wr.every("5 seconds")'])
FLAGS = st.booleans()


@st.composite
def definitions(
    draw: st.DrawFn, *, mode: str | None = None, lateness: str | None = None
) -> AggregateDefinition:
    window = draw(WINDOWS)
    unending = "tuples" in window or "global" in window
    retention = "wr.forever" if unending else repr(draw(st.sampled_from(["8 seconds", "20 seconds"])))
    if lateness is not None and not unending:
        retention = "wr.forever"
    emit = f"""wr.Emit(early={draw(EARLY)}, late={draw(LATE)}, on_time={draw(FLAGS)},
        mode={mode or draw(st.sampled_from(["accumulating", "discarding", "retracting"]))!r},
        only_if_changed={draw(FLAGS)}, closing_pane={draw(FLAGS)})"""
    text = f"""wr.Aggregate(by="k", event_time="t", window={window}, retention={retention}, emit={emit},
        watermark=wr.explicit(), agg={{"n": wr.count(), "max": wr.max("v"), "list": wr.collect_list("v")}},
        allowed_lateness={lateness!r})"""
    return parse({"name": "any", "operator": text, "steps": []}, {}).definition


BATCHES = st.lists(
    st.tuples(st.integers(-5, 60), st.sampled_from(["a", "b", None]), st.integers(0, 3)), max_size=5
)
ADVANCES = st.tuples(st.integers(0, 70), st.integers(0, 60))
STEPS = st.lists(st.one_of(BATCHES, ADVANCES), max_size=12)


class Played:
    """A run of steps: lists are ingested, pairs are (watermark, now) in seconds to advance to."""

    def __init__(self, definition: AggregateDefinition, steps: list[Any]) -> None:
        self.oracle = AggregateOracle(definition)
        self.panes: list[Pane] = []
        self.dead: list[str] = []
        self.accepted = 0
        now, offset = 0, 0
        for step in steps:
            if isinstance(step, tuple):
                now = max(now, step[1] * S)
                done = self.oracle.advance(step[0] * S, now)
            else:
                batch = []
                for t, k, v in step:
                    batch.append(Message({"t": t * S, "k": k, "v": v}, Position("s", 0, offset)))
                    offset += 1
                done = self.oracle.ingest(batch, now, self.oracle.watermark_us)
                self.accepted += len(self.oracle.counted)
            self.panes += done.rows
            self.dead += [letter.reason for letter in done.dead]
        self.now = now
        self.messages = offset

    def drain(self) -> None:
        for watermark_us in (self.oracle.watermark_us, END_OF_TIME_US):
            self.now += 3600 * S
            self.panes += self.oracle.advance(watermark_us, self.now).rows


@given(definition=definitions(), steps=STEPS)
@examples(60, deep=2_000)
def test_the_ledger_always_adds_up(definition: AggregateDefinition, steps: list[Any]) -> None:
    played = Played(definition, steps)
    played.drain()
    ledger(played.panes, retracting=definition.emit.mode == "retracting")


@given(definition=definitions(), steps=STEPS)
def test_the_same_steps_give_the_same_panes(definition: AggregateDefinition, steps: list[Any]) -> None:
    once, again = Played(definition, steps), Played(definition, steps)
    assert all_panes_equal(once.panes, again.panes)
    assert once.oracle.windows() == again.oracle.windows()


@given(definition=definitions(), steps=STEPS)
def test_every_message_is_counted_or_a_dead_letter(definition: AggregateDefinition, steps: list[Any]) -> None:
    played = Played(definition, steps)
    assert played.accepted + len(played.dead) == played.messages


@given(definition=definitions(), steps=STEPS)
def test_on_time_comes_once_before_late_and_after_early(
    definition: AggregateDefinition, steps: list[Any]
) -> None:
    played = Played(definition, steps)
    played.drain()
    rank = {Timing.EARLY: 0, Timing.ON_TIME: 1, Timing.LATE: 2}
    seen: dict[Any, list[int]] = {}
    for pane in played.panes:
        if pane.kind.value == "INSERT":
            seen.setdefault((pane.window, pane.key["k"]), []).append(rank[pane.timing])
    for ranks in seen.values():
        assert ranks == sorted(ranks)
        assert ranks.count(1) <= 1


@given(definition=definitions(mode="discarding"), steps=STEPS)
def test_while_discarding_every_message_of_a_window_that_ended_is_sent_exactly_once(
    definition: AggregateDefinition, steps: list[Any]
) -> None:
    played = Played(definition, steps)
    held = {(i.window, i.key["k"]): i for i in played.oracle.windows()}
    sent: dict[Any, int] = {}
    for pane in played.panes:
        key = (pane.window, pane.key["k"])
        sent[key] = sent.get(key, 0) + pane["n"]
    for key, info in held.items():
        assert sent.get(key, 0) + info.values["n"] == info.messages


@given(definition=definitions(lateness="100 days"), steps=STEPS, cut=st.integers(1, 3))
@examples(60, deep=3_000)
def test_where_nothing_is_too_late_contents_and_ledger_do_not_depend_on_the_cut(
    definition: AggregateDefinition, steps: list[Any], cut: int
) -> None:
    assume(definition.emit.mode != "discarding")
    assume(
        definition.emit.on_time
    )  # else what a count leaves over waits for its window to close, which a cut decides
    rows = [row for step in steps if isinstance(step, list) for row in step]
    cut_up: list[Any] = [rows[i : i + cut] for i in range(0, len(rows), cut)]
    advances = [step for step in steps if isinstance(step, tuple)]
    held, ledgers = [], []
    for played in (Played(definition, steps), Played(definition, [*advances, *cut_up])):
        assert played.dead == []
        played.drain()
        held.append([replace(info, panes=0, fired=False) for info in played.oracle.windows()])
        current = ledger(played.panes)
        partial = [
            ledger_key(info.key, info.window)
            for info in held[-1]
            if isinstance(info.window, TupleWindow) and info.messages <= info.window.last - info.window.first
        ]  # what was sent of a tuple window that never got full is a matter of when
        ledgers.append({key: values for key, values in current.items() if key not in partial})
    assert held[0] == held[1]
    assert ledgers[0] == ledgers[1]


@given(definition=definitions(), steps=STEPS)
def test_a_window_that_is_past_its_retention_leaves_nothing(
    definition: AggregateDefinition, steps: list[Any]
) -> None:
    assume(definition.retention.time_us is not None)
    played = Played(definition, steps)
    played.drain()
    assert played.oracle.windows() == []


def test_the_oracle_begins_before_all_time() -> None:
    text = (
        'wr.Aggregate(event_time="t", window=wr.global_window(), retention=wr.forever, agg={"n": wr.count()})'
    )
    definition = parse({"name": "any", "operator": text, "steps": []}, {}).definition
    assert AggregateOracle(definition).watermark_us == START_OF_TIME_US
