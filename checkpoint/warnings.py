"""Warnings after a commit: the commit is valid, but must not look like success where it is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from windrow.checkpoint.definition_check import TIME_ZONES, grown_until
from windrow.checkpoint.records import Epoch, Step
from windrow.core.clock import STEP_US
from windrow.core.logs import Logger
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, show_duration, show_instant
from windrow.core.zones import DATABASE
from windrow.operators.evolution import Growth
from windrow.operators.operator import Definition

#: Counters of dead letters, by reason.
LETTERS = "dead."
#: A watermark may advance by so much with new messages without a wrong time.
JUMP_US = 60_000_000
#: Seconds since the epoch, of the years 2001 to 2286.
_SECONDS = (10**9, 10**10)


def warn_of_letters(logger: Logger, commit: int, counters: Mapping[str, int], location: str | None) -> None:
    """Warn once of a commit that could not count all of its messages. location: None where the log is elsewhere"""
    reasons = {
        name.removeprefix(LETTERS): n for name, n in counters.items() if name.startswith(LETTERS) and n
    }
    if reasons:
        logger.warning(
            "dead letters: messages that could not be counted",
            commit=commit,
            reasons=", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items())),
            look=f"windrow dead-letters {'log:SERVERS/NAME' if location is None else quote(location)}",
        )


def warn_of_jump(
    logger: Logger,
    commit: int,
    definitions: Sequence[Definition],
    watermark_us: int,
    now_us: int | None,
    steps: Sequence[Step],
) -> None:
    """Warn once where the watermark, last at `watermark_us`, ran ahead of all that is kept, and of `now`: a wrong time may
    do that, and makes others late. An operator that keeps nothing loses nothing by it.
    """
    times = [p.retention.time_us for d in definitions for p in d.parts]
    kept_us = min((time_us for time_us in times if time_us), default=None)
    last_us = steps[-1].watermark_us if steps else None
    if kept_us is None or last_us is None or last_us - watermark_us <= max(kept_us, JUMP_US):
        return
    for step in steps:
        at_us = step.watermark_us
        if at_us is None or at_us in (watermark_us, END_OF_TIME_US):
            continue
        passed_us = 0 if now_us is None else step.now_us - now_us
        if watermark_us > START_OF_TIME_US and at_us - watermark_us - passed_us > max(kept_us, JUMP_US):
            logger.warning(
                "the watermark jumped by more than the retention: what is dated before it is late. If one message was dated "
                "wrongly: windrow watermark LOCATION --set TIME",
                commit=commit,
                before=show_instant(watermark_us),
                watermark=show_instant(at_us),
                retention=show_duration(kept_us),
            )
            return
        watermark_us, now_us = at_us, step.now_us


def warn_on_opening(logger: Logger, recorded_us: int | None, clock_us: int, last: Epoch | None) -> None:
    """Warn of changes on the machine since the job was last opened: the clock, the time zone database."""
    warn_of_clock(logger, recorded_us, clock_us)
    warn_of_time_zones(logger, last)


def warn_of_clock(logger: Logger, recorded_us: int | None, clock_us: int) -> None:
    """Warn of a job whose `now` is ahead of the clock: `now` never decreases, so nothing periodic fires until then."""
    if recorded_us is not None and recorded_us - clock_us > STEP_US:
        logger.warning(
            "the job's now is ahead of the clock, and waits for it. If a clock was wrong: windrow watermark LOCATION --set-now",
            now=show_instant(recorded_us),
            clock=show_instant(clock_us),
        )


def warn_of_time_zones(logger: Logger, last: Epoch | None) -> None:
    """Warn where the job was last opened with another release of the time zone database."""
    before = None if last is None else last.meta.get(TIME_ZONES)
    if before is not None and before != DATABASE:
        logger.warning(
            "the time zone database is another than before: what comes now is read by its rules, and windows that hold "
            "messages keep their start. For the former rules, install the former version of tzdata",
            before=before,
            now=DATABASE,
        )


def warn_of_growth(logger: Logger, last: Epoch | None, growth: Mapping[str, Growth]) -> None:
    """Warn of aggregations that came to the state of a job or went from it, such as one that got another name."""
    for name, now in growth.items():
        before = Growth() if last is None else grown_until(last, name)
        parts = [(part, before.parts.get(part, Growth()), grown) for part, grown in now.parts.items()]
        for operator, then, since in [(name, before, now), *parts]:
            came, went = (
                sorted({*since.since_us} - {*then.since_us}),
                sorted({*since.removed} - {*then.removed}),
            )
            if came or went:
                logger.warning(
                    "aggregations have come or gone: one that has come, also under another name, is null in windows that were "
                    "open before, unless it is computed from kept messages (recompute=True)",
                    operator=operator,
                    came=came,
                    gone=went,
                )


def warn_of_unit(logger: Logger, commit: int, marks: Iterable[int]) -> bool:
    """Warn of times in seconds or milliseconds: read as microseconds these are of the year 1970."""
    for time_us in marks:
        for unit, short, per_second in (("seconds", "s", 1), ("milliseconds", "ms", 1000)):
            if _SECONDS[0] * per_second <= time_us < _SECONDS[1] * per_second:
                logger.warning(
                    f"event times are of 1970: they look like {unit} since the epoch. Integers are taken as microseconds: "
                    f"say event_time_unit={short!r}, or give timestamps",
                    commit=commit,
                    time=show_instant(time_us),
                    likely=show_instant(time_us * 1_000_000 // per_second),
                )
                return True
    return False
