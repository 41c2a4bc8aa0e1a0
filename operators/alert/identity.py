"""Identities of alerts: 128 bits for each incident, the same however input is cut and wherever it is evaluated.

They are mixed of numbers by the finalizer of SplitMix64, of Python's integers as of columns of numpy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import xxhash

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_FACTOR: Final = 0x9E37_79B9_7F4A_7C15


def seeds(name: str, key: bytes) -> tuple[int, int]:
    """Return the hash seeds of both halves of a key's identities."""
    named = name.encode() + b"\0" + key
    return xxhash.xxh3_64_intdigest(named), xxhash.xxh3_64_intdigest(named, seed=1)


def halves(first: Any, second: Any, opening: Sequence[Any]) -> tuple[Any, Any]:
    """Return both halves of identities: integers, or columns of unsigned ones.

    opening: of the evaluation that opens: its moment, its cause, how many samples there were, the moment of a timer. Where a
    key opens twice by all of them, both incidents have one identity: where a message stood depends on the cut
    """
    for number in opening:
        first = _mixed((first * _FACTOR + number) & _MASK)
        second = _mixed((second * _FACTOR + number) & _MASK)
    return first, second


def alert_id(name: str, key: bytes, opening: Sequence[int]) -> str:
    """Return the identity of one incident."""
    return "{:016x}{:016x}".format(*halves(*seeds(name, key), [number & _MASK for number in opening]))


def number_of(cause: str) -> int:
    """Return a number for the cause of an evaluation."""
    return int.from_bytes(cause.encode()[:7], "big")


def _mixed(value: Any) -> Any:
    value = ((value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return value ^ (value >> 31)
