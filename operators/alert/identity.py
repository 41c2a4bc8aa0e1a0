"""Identities of alerts: one text for each incident, the same however input is cut and wherever it is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xxhash

from windrow.core.keys import encode_key


def alert_id(name: str, key: bytes, opening: Sequence[Any]) -> str:
    """Return the identity of the incident that an evaluation of a key has opened.

    opening: its moment, its cause, how many samples there were, the moment of a timer. Where a key opens twice by all of them,
    both incidents have one identity: where a message stood depends on the cut, of rows of other operators
    """
    return xxhash.xxh3_128_hexdigest(encode_key([name, key, *opening]))
