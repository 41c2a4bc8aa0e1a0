"""What a driver warns of after a commit: it stands, and must not look like success where it is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.checkpoint.records import Step
from windrow.core.chain import parts_of
from windrow.core.logs import Logger
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, show_duration, show_instant

#: Counters of dead letters, by reason.
LETTERS = "dead."


def warn_of_letters(logger: Logger, commit: int, counters: Mapping[str, int]) -> None:
    """One warning for a commit that could not count all of its messages."""
    reasons = {
        name.removeprefix(LETTERS): n for name, n in counters.items() if name.startswith(LETTERS) and n
    }
    if reasons:
        logger.warning(
            "dead letters: messages that could not be counted",
            commit=commit,
            reasons=", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items())),
            look="wr.read_state(location).dead_letters()",
        )


def warn_of_jump(
    logger: Logger,
    commit: int,
    definitions: Sequence[Any],
    watermark_us: int,
    now_us: int | None,
    steps: Sequence[Step],
) -> None:
    """One warning where the watermark, last at `watermark_us`, ran ahead of all that is kept, and of `now`: a wrong time may
    do that, and makes others late.
    """
    kept = [p.retention.time_us for d in definitions for p in parts_of(d) if p.retention.time_us is not None]
    if not kept:
        return
    for step in steps:
        at_us = step.watermark_us
        if at_us is None or at_us in (watermark_us, END_OF_TIME_US):
            continue
        passed_us = 0 if now_us is None else step.now_us - now_us
        if watermark_us > START_OF_TIME_US and at_us - watermark_us - passed_us > min(kept):
            logger.warning(
                "the watermark jumped by more than the retention: what is dated before it is late. If one message was dated "
                "wrongly: windrow watermark LOCATION --set TIME",
                commit=commit,
                before=show_instant(watermark_us),
                watermark=show_instant(at_us),
                retention=show_duration(min(kept)),
            )
            return
        watermark_us, now_us = at_us, step.now_us
