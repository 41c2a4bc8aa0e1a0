"""The rows that the transitions of a step are emitted as, for each action by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import EveryCount
from windrow.core.expressions import Expr
from windrow.operators.alert.actions import Action
from windrow.operators.alert.conditions import Raised, bisected, true_of
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.alert.evaluations import CAUSES, DELAY, EXPIRED, REPEATED, Evaluations
from windrow.operators.alert.states import NEVER, States
from windrow.operators.alert.status import CANCEL, NAMES, OPEN, REPEAT, TRIGGERS, Transitions
from windrow.operators.steps.columns import LATE, TIMING
from windrow.operators.steps.groups import combine
from windrow.operators.steps.output_columns import STAMP

#: Returns the key columns of keys by their numbers.
KeyColumns: TypeAlias = Callable[[IntArray], pa.Table]


@dataclass(frozen=True)
class Step:
    """The evaluations of a step, by key and in their order, with their results.

    upto: up to when each key was judged. opened_us: when the incident of each evaluation opened. late: true for evaluations of
    what came late
    """

    evaluations: Evaluations
    known_schema: Transitions
    upto: IntArray
    opened_us: IntArray
    late: BoolArray
    now_us: int


@dataclass
class Emitted:
    """Rows to be emitted, as columns: of which key, when, why, and where their values are.

    sources: evaluations of the step; below 0 stored rows: -1 - 2 * key is the opening of a key, and -2 - 2 * key its last
    evaluation
    """

    codes: list[IntArray] = field(default_factory=list)
    columns: list[IntArray] = field(default_factory=list)
    sources: list[IntArray] = field(default_factory=list)

    @property
    def any(self) -> bool:
        """True if there are rows."""
        return any(map(len, self.codes))

    def add(
        self,
        codes: IntArray,
        times: IntArray,
        order: IntArray,
        action: int,
        trigger: IntArray,
        cause: IntArray,
        before: IntArray,
        count: IntArray,
        sources: IntArray,
        late: BoolArray | None = None,
    ) -> None:
        """Add rows. order: of one key and moment"""
        n = len(codes)
        full = np.full(n, action)
        marks = np.zeros(n, dtype=np.int64) if late is None else late.astype(np.int64)
        self.codes.append(codes)
        self.columns.append(np.stack([times, order, full, trigger, cause, before, count, marks]))
        self.sources.append(sources)


def delay_ends(step: Step, action: Action, carried: IntArray) -> IntArray:
    """Return the end of the delay of each evaluation's incident; the start of time where there is none, or it has ended."""
    opening = step.known_schema.opening
    moments = step.evaluations.moments
    ends = np.where(opening >= 0, moments[opening] + action.delay_us, carried[step.evaluations.codes])
    return np.where(ends == NEVER, np.iinfo(np.int64).min, ends)


def emit(definition: AlertDefinition, step: Step, states: States) -> Emitted:
    """Return the rows of a step's transitions, and move the due times of each action."""
    emitted = Emitted()
    for number, (name, action) in enumerate(definition.actions.items()):
        fired = _of_transitions(emitted, number, name, action, step, states)
        if action.period_us is not None:
            _repeat_from(step, name, action, states, fired)
    return emitted


def _of_transitions(
    emitted: Emitted, number: int, name: str, action: Action, step: Step, states: States
) -> BoolArray:
    """Add the rows of one action. Returns for each key if a delay ended, with a row, of an incident open after the step."""
    of, made = step.evaluations, step.known_schema
    fired = np.zeros(len(states), dtype=bool)
    waits = np.zeros(len(of), dtype=bool)
    if action.delay_us:
        carried = states.pending[name]
        ends = delay_ends(step, action, carried)
        waits = (ends > of.moments) | (made.after == OPEN)
        fired = _end_delays(emitted, number, action, step, states, name)
    wanted = made.triggers & ~waits
    wanted &= np.where(made.after == OPEN, action.open, np.where(made.after == CANCEL, action.cancel, True))
    if isinstance(action.repeat, EveryCount):
        wanted &= (made.after != REPEAT) | (made.count % action.repeat.n == 0)
    else:
        wanted &= made.after != REPEAT
    at = np.flatnonzero(wanted)
    emitted.add(
        of.codes[at],
        of.moments[at],
        at + 1,
        number,
        made.after[at].astype(np.int64),
        of.causes[at],
        made.before[at].astype(np.int64),
        made.count[at],
        _sources(step, at),
        step.late[at],
    )
    return fired


def _sources(step: Step, some: IntArray) -> IntArray:
    """Return the evaluation whose values each takes: its own; for an expiry the one before, of this step or an earlier one."""
    of = step.evaluations
    expired = of.causes[some] == EXPIRED
    former = np.where(of.heads[some], -2 - 2 * of.codes[some], some - 1)
    return np.where(expired, former, some)


def _end_delays(
    emitted: Emitted, number: int, action: Action, step: Step, states: States, name: str
) -> BoolArray:
    """Emit the openings whose delays end in the step, and set those that end later."""
    of, made, carried = step.evaluations, step.known_schema, states.pending[name]
    ends_of = np.full(len(states), NEVER)  # of the incident at the end of the step
    n = len(states)
    # The first evaluation that cancels each incident: of this step, and of those before it.
    cancels = np.flatnonzero((made.after == CANCEL) & (made.before != CANCEL))
    cancelled_us = np.full(len(of), NEVER)
    inside = cancels[made.opening[cancels] >= 0]
    cancelled_us[made.opening[inside]] = of.moments[inside]
    before_us = np.full(n, NEVER)
    outside = cancels[made.opening[cancels] < 0]
    before_us[of.codes[outside]] = of.moments[outside]
    opens = np.flatnonzero(made.after == OPEN)
    ends = of.moments[opens] + action.delay_us
    until = np.minimum(cancelled_us[opens], step.upto[of.codes[opens]])
    due = ends <= until
    current = cancelled_us[opens] == NEVER
    ends_of[of.codes[opens[current & ~due]]] = ends[current & ~due]
    fired = np.zeros(n, dtype=bool)
    fired[of.codes[opens[current & due]]] = True
    waiting = np.flatnonzero(carried != NEVER)
    past = carried[waiting] <= np.minimum(before_us[waiting], step.upto[waiting])
    stays = waiting[~past & (before_us[waiting] == NEVER)]
    ends_of[stays] = carried[stays]
    over = waiting[past]
    fired[over[before_us[over] == NEVER]] = True
    if action.open:
        shown = opens[due]
        for codes, times, sources in (
            (of.codes[shown], ends[due], shown),
            (over, carried[over], -1 - 2 * over),
        ):
            m = len(codes)
            zeros = np.zeros(m, dtype=np.int64)
            emitted.add(
                codes,
                times,
                zeros,
                number,
                np.full(m, OPEN),
                np.full(m, DELAY),
                zeros + CANCEL,
                zeros,
                sources,
            )
    states.pending[name] = ends_of
    return fired


def _repeat_from(step: Step, name: str, action: Action, states: States, fired: BoolArray) -> None:
    """Set when the action is repeated of keys that are open: so long of `now` after its last row."""
    of, made = step.evaluations, step.known_schema
    assert action.period_us is not None
    due, open_ = states.repeats[name], states.records["status"] != CANCEL
    opened, judged = np.zeros(len(states), dtype=bool), np.zeros(len(states), dtype=bool)
    opened[of.codes[made.after == OPEN]] = True
    judged[of.codes] = True
    waits = states.pending[name] != NEVER if action.delay_us else np.zeros(len(states), dtype=bool)
    fresh = fired | opened | (judged & (due == NEVER))
    due = np.where(fresh, step.now_us + action.period_us, due)
    states.repeats[name] = np.where(open_ & ~waits, due, NEVER)


def repeated(definition: AlertDefinition, states: States, moments: IntArray, now_us: int) -> Emitted:
    """Return the rows that are due by `now`, and set the next ones."""
    emitted, records = Emitted(), states.records
    for number, (name, action) in enumerate(definition.actions.items()):
        if action.period_us is None:
            continue
        due = np.flatnonzero((states.repeats[name] <= now_us) & (records["status"] != CANCEL))
        status = records["status"][due].astype(np.int64)
        n = len(due)
        emitted.add(
            due,
            moments[due],
            np.zeros(n, dtype=np.int64),
            number,
            np.full(n, REPEAT),
            np.full(n, REPEATED),
            status,
            records["count"][due],
            -2 - 2 * due,
        )
        states.repeats[name][due] = now_us + action.period_us
    return emitted


@dataclass(frozen=True)
class Values:
    """Aggregates and variables of the rows of a step. keys: the key columns by numbers of keys; table: of evaluations; stored:
    of openings and last evaluations, by their source."""

    keys: KeyColumns
    table: pa.Table
    stored: pa.Table
    of_stored: dict[int, int]


def to_table(
    definition: AlertDefinition,
    emitted: Emitted,
    values: Values,
    ids: Any,
    opened_us: IntArray,
    names: Sequence[bytes],
    records: Any,
    schema: pa.Schema,
    timing: str,
) -> tuple[pa.Table | None, list[tuple[int, int, str]]]:
    """Return rows in the order of time and key, those for which the condition of their action is true; None without any. And
    the cause, the time, and the error of each row on which that condition raises.

    ids, opened_us: of the incidents of evaluations; records: of the keys, whose names these are, before the step
    """
    codes, sources = np.concatenate(emitted.codes), np.concatenate(emitted.sources)
    columns = np.concatenate(emitted.columns, axis=1)
    distinct, of_distinct = np.unique(codes, return_inverse=True)
    ranks = np.empty(len(distinct), dtype=np.int64)
    emitted_names = [names[code] for code in distinct.tolist()]
    ranks[sorted(range(len(distinct)), key=emitted_names.__getitem__)] = np.arange(len(distinct))
    order = np.lexsort((columns[2], columns[1], ranks[of_distinct], columns[0]))
    codes, sources = codes[order], sources[order]
    times, _, actions, trigger, cause, before, count, late = columns[:, order]
    at, stored = sources.copy(), sources < 0
    for i in np.flatnonzero(stored).tolist():
        place = values.of_stored.get(int(sources[i]))
        at[i] = -1 if place is None else len(values.table) + place
    incident, opened = records["id"][codes], records["open"][codes].astype(np.int64)
    if not stored.all():
        incident[~stored], opened[~stored] = ids[sources[~stored]], opened_us[sources[~stored]]
    found = {
        "alert_id": pa.array([one.hex() for one in incident.tolist()], pa.string()),
        "action": _named(actions, list(definition.actions)),
        "trigger": _named(trigger, TRIGGERS),
        "cause": _named(cause, CAUSES),
        "status": _named(np.where(cause == REPEATED, before, trigger), NAMES),
        "before_status": _named(before, NAMES),
        "count": pa.array(count),
        "time": pa.array(times).cast(STAMP),
        "open_time": pa.array(opened).cast(STAMP),
    }
    both, own = pa.concat_tables([values.table, values.stored]), pa.array(at, mask=at < 0)
    found |= {name: combine(both.column(name).take(own)) for name in both.column_names}
    keys = values.keys(codes)
    found |= {name: combine(keys.column(name)) for name in keys.column_names}
    table = pa.table([found[f.name] for f in schema], schema=schema)
    label = np.where(late == 1, LATE, timing)
    table = table.append_column(TIMING, pa.array(label, pa.string()))
    passes, raised = np.ones(len(table), dtype=bool), Raised()
    for number, action in enumerate(definition.actions.values()):
        if action.where is not None:
            passes &= (actions != number) | _passing(action.where, table, actions == number, raised)
    if not passes.all():
        table = table.filter(pa.array(passes))
    whys = [(int(cause[i]), int(times[i]), why) for i, why in sorted(raised.items())]
    return (table if len(table) else None), whys


def _named(numbers: IntArray, names: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), list(names)).cast(pa.string())


def _passing(where: Expr, table: pa.Table, own: BoolArray, raised: Raised) -> BoolArray:
    """True for those of an action's own rows for which its condition is true."""
    passes, at, failed = np.zeros(len(table), dtype=bool), np.flatnonzero(own), Raised()
    part = table.take(pa.array(at))
    passes[at] = bisected(
        lambda rows: true_of(where, part.slice(rows.start, rows.stop - rows.start), "where"),
        slice(0, len(part)),
        failed,
    )
    raised |= {int(at[i]): why for i, why in failed.items()}
    return passes
