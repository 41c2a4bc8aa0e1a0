"""Each refusal of recovery has its error."""

from __future__ import annotations

from typing import Any

import pytest

from windrow.checkpoint.batches import BatchAction
from windrow.checkpoint.recovery import PublishAction, ShardAction
from windrow.core.errors import (
    CorruptState,
    Fenced,
    NewerFormat,
    OffsetGap,
    PositionsMissing,
    SourceBehind,
    StateLost,
)

ERRORS: dict[Any, type[Exception]] = {
    BatchAction.REFUSE_GAP: OffsetGap,
    BatchAction.REFUSE_BEHIND: SourceBehind,
    BatchAction.REFUSE_NO_POSITIONS: PositionsMissing,
    BatchAction.REFUSE_SKIPPED_BATCH: OffsetGap,
    BatchAction.REFUSE_STATE_MISSING: StateLost,
    BatchAction.STOP_FENCED: Fenced,
    ShardAction.REFUSE_AHEAD: Fenced,
    ShardAction.REFUSE_NEWER_FORMAT: NewerFormat,
    ShardAction.REFUSE_LOST: StateLost,
    PublishAction.REFUSE_SINK_AHEAD: CorruptState,
    PublishAction.REFUSE_PANES_LOST: StateLost,
}


def check_refusal(decision: Any) -> None:
    """A refusal has its error, which says why and what to do; nothing else raises."""
    assert decision.why
    error = ERRORS.get(decision.action)
    assert (error is not None) == decision.action.name.startswith(("REFUSE", "STOP")) == bool(decision.remedy)
    if error is None:
        decision.raise_if_refused()
        return
    with pytest.raises(error) as raised:
        decision.raise_if_refused()
    assert decision.why in str(raised.value)
    assert decision.remedy[1:] in str(raised.value)
