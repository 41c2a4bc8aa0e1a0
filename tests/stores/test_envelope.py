"""A frame says what it is, and is refused when it is not what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core import envelope
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState, NewerFormat


@given(st.sampled_from(Kind), st.binary(max_size=40), st.integers(0, 255))
def test_what_was_sealed_is_unsealed(kind: Kind, payload: bytes, version: int) -> None:
    assert unseal(kind, seal(kind, payload, version), known=version) == payload


@given(st.binary(max_size=20), st.data())
def test_any_changed_bit_is_refused(payload: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(Kind.SEGMENT, payload))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptState):
        unseal(Kind.SEGMENT, bytes(sealed))


@given(st.binary(max_size=20), st.data())
def test_a_frame_cut_short_is_refused(payload: bytes, data: st.DataObject) -> None:
    sealed = seal(Kind.SEGMENT, payload)
    keep = data.draw(st.integers(0, len(sealed) - 1))
    with pytest.raises(CorruptState, match=f"a SEGMENT is cut short: {keep} "):
        unseal(Kind.SEGMENT, sealed[:keep])


def test_a_frame_followed_by_other_bytes_is_refused() -> None:
    with pytest.raises(CorruptState, match="followed by 1 bytes"):
        unseal(Kind.SEGMENT, seal(Kind.SEGMENT, b"x") + b"y")


def test_a_newer_version_is_refused_with_both_versions_and_the_remedy() -> None:
    with pytest.raises(NewerFormat, match=r"SEGMENT of version 3.*reads version 2: upgrade windrow"):
        unseal(Kind.SEGMENT, seal(Kind.SEGMENT, b"x", version=3), known=2)
    with pytest.raises(NewerFormat, match=r"version 2.*version 1"):
        unseal(Kind.SEGMENT, seal(Kind.SEGMENT, b"x", version=2))


def test_kinds_keep_their_numbers() -> None:
    assert envelope.MAX_PAYLOAD == 2**32 - 1
    assert [(kind.name, kind.value) for kind in Kind] == [
        ("SEGMENT", 1),
        ("LOG_RECORD", 3),
        ("SNAPSHOT_MANIFEST", 4),
        ("SINK_MANIFEST", 9),
        ("CHUNK", 11),
    ]


def test_another_kind_is_refused() -> None:
    with pytest.raises(CorruptState, match=r"expected a SEGMENT \(1\), found kind 3"):
        unseal(Kind.SEGMENT, seal(Kind.LOG_RECORD, b"x"))


def test_a_payload_above_the_length_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "MAX_PAYLOAD", 3)
    assert seal(Kind.CHUNK, b"abc")
    with pytest.raises(ValueError, match="CHUNK of 4 bytes is above 3"):
        seal(Kind.CHUNK, b"abcd")
