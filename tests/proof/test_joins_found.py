"""Faults that the comparison of joins with the oracle found, as plain cases."""

from __future__ import annotations

from typing import Any

import windrow as wr
from tests.operators.join.cases import JoinCase, S
from tests.oracle.joins import join
from tests.proof.test_joins_against_oracle import Run


def row(side: int, second: int, **fields: Any) -> dict[str, Any]:
    names = ("k", "key", "g", "v", "x", "a", "b")
    return {
        "side": side,
        "partition": 0,
        "t": second,
        "jitter": 0,
        **dict.fromkeys(names),
        "k": "a",
        **fields,
    }


def test_a_semi_join_with_a_window_of_rows_emits_a_left_message_once() -> None:
    run = Run(JoinCase(join("semi", left=wr.rows(2), retention="1 hour"), S, False))
    run.ingest([row(0, 1)])
    run.ingest([row(1, 1)])
    run.ingest([row(1, 2)])
    run.end()
    assert len(run.emitted) == 1


def test_an_as_of_message_is_there_until_it_is_decided() -> None:
    """Its partners are too late before the right messages up to its own time are."""
    run = Run(
        JoinCase(
            join("asof", within=("-3 seconds", "-3 seconds"), allowed_lateness="12 seconds"),
            S,
            False,
        )
    )
    run.ingest([row(0, 2)])
    run.advance(12 * S, 0)
    run.advance(15 * S, 0)
    run.end()


def test_a_message_does_not_wait_for_a_partner_on_an_open_edge() -> None:
    right_of = {"left": wr.sliding("5 seconds", closed="right"), "right": wr.sliding("0 seconds")}
    run = Run(JoinCase(join("left", **right_of, allowed_lateness="0 seconds"), S, False))
    run.ingest([row(0, 10)])
    for watermark_us in (15 * S - 1, 15 * S, 15 * S + 1):
        run.advance(watermark_us, 0)
    run.end()
