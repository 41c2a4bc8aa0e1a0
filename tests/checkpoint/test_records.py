"""Records and their bytes: what goes in comes out, and nothing else comes out."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.checkpoint import records
from windrow.checkpoint.records import (
    Commit,
    Epoch,
    Intent,
    Mark,
    Record,
    ShardResult,
    Step,
    decode,
    encode,
    numbered,
)
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState, NewerFormat

int64 = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**63 - 1)
maybe_text = st.none() | st.text(max_size=5)
names = st.from_regex(r"[\w-][\w.-]{0,9}", fullmatch=True)
maybe_name = st.none() | names
partitions = st.tuples(st.text(max_size=5), st.integers(0, 2**31))
offsets = st.dictionaries(partitions, counts, max_size=4)
plain = st.recursive(
    st.none()
    | st.booleans()
    | int64
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
maps = st.dictionaries(st.text(max_size=5), plain, max_size=3)
counters = st.dictionaries(st.text(max_size=5), int64, max_size=3)
queries = st.just((None, None)) | st.tuples(st.text(max_size=5), counts)

epochs = st.builds(
    Epoch,
    seq=counts,
    epoch=counts,
    opened_us=int64,
    driver=st.text(max_size=5),
    fingerprints=st.dictionaries(names, st.text(max_size=5), max_size=3),
    shards=st.integers(0, 1 << 16),
    job=names,
    meta=maps,
    first_seq=counts,
    voids=st.lists(counts, max_size=3).map(tuple),
)
intents = st.builds(
    lambda query, **rest: Intent(query_id=query[0], batch_id=query[1], **rest),
    query=queries,
    seq=counts,
    epoch=counts,
    commit=counts,
    now_us=int64,
    watermark_us=st.none() | int64,
    next_offsets=offsets,
    idle=st.lists(partitions, max_size=3, unique=True).map(sorted).map(tuple),
    floors=maps,
    meta=maps,
)
steps = st.builds(
    Step,
    kind=st.sampled_from(["advance", "ingest"]),
    now_us=int64,
    watermark_us=st.none() | int64,
    first_offsets=offsets,
    next_offsets=offsets,
    rows=counts,
)
marks = st.builds(Mark, max_time_us=st.none() | int64, seen_us=st.none() | int64)
results = st.builds(
    ShardResult,
    shard=counts,
    segment=maybe_name,
    digest=maybe_text,
    panes=maybe_name,
    panes_rows=counts,
    snapshot=maybe_name,
    counters=counters,
)
commits = st.builds(
    lambda query, **rest: Commit(query_id=query[0], batch_id=query[1], **rest),
    query=queries,
    seq=counts,
    epoch=counts,
    commit=counts,
    steps=st.lists(steps, max_size=3).map(tuple),
    next_offsets=offsets,
    shards=st.lists(results, max_size=3).map(tuple),
    published=counts,
    watermark_us=st.none() | int64,
    marks=st.dictionaries(partitions, marks, max_size=3),
    floors=maps,
    counters=counters,
    meta=maps,
)

EPOCH = Epoch(seq=0, epoch=1, opened_us=1, driver="d", fingerprints={}, shards=1, job="j")
INTENT = Intent(seq=1, epoch=1, commit=1, now_us=1, watermark_us=None)
COMMIT = Commit(
    seq=2,
    epoch=1,
    commit=1,
    steps=(
        Step(kind="ingest", now_us=7, watermark_us=3, rows=2),
        Step(kind="advance", now_us=9, watermark_us=3),
    ),
    next_offsets={("s", 0): 2},
    shards=(ShardResult(shard=0, segment="a", counters={"n": 1}),),
    published=0,
    watermark_us=3,
    marks={("s", 0): Mark(max_time_us=4, seen_us=7)},
)
RECORDS: list[Record] = [EPOCH, INTENT, COMMIT]


def body_of(record: Record) -> dict[str, Any]:
    body: dict[str, Any] = msgpack.unpackb(unseal(Kind.LOG_RECORD, encode(record)))
    return body


def sealed(body: Any) -> bytes:
    return seal(Kind.LOG_RECORD, msgpack.packb(body))


@given(epochs | intents | commits)
def test_a_record_comes_back_equal_with_the_same_bytes(record: Record) -> None:
    data = encode(record)
    assert decode(data) == record
    assert type(decode(data)) is type(record)
    assert encode(decode(data)) == data


@given(epochs | intents | commits)
def test_a_record_can_be_pickled(record: Record) -> None:
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize("cls", [Epoch, Intent, Commit, Step, ShardResult])
def test_every_field_is_written(cls: type) -> None:
    assert {f.name for f in dataclasses.fields(cls)} == records._FIELDS[cls].keys()


def test_equal_records_have_equal_bytes_in_whatever_order_their_maps_were_filled() -> None:
    one = dataclasses.replace(INTENT, next_offsets={("a", 1): 1, ("a", 0): 2}, idle=(("b", 0), ("a", 0)))
    other = dataclasses.replace(INTENT, next_offsets={("a", 0): 2, ("a", 1): 1}, idle=(("a", 0), ("b", 0)))
    assert encode(one) == encode(other)


def test_a_record_without_a_number_is_not_written() -> None:
    with pytest.raises(ValueError, match="Epoch has no number"):
        encode(dataclasses.replace(EPOCH, seq=records.UNNUMBERED))
    assert numbered(EPOCH, 7) == dataclasses.replace(EPOCH, seq=7)


@pytest.mark.parametrize(("query_id", "batch_id"), [("q", None), (None, 0)])
@pytest.mark.parametrize("record", [INTENT, COMMIT])
def test_a_query_without_a_batch_is_not_written(record: Any, query_id: Any, batch_id: Any) -> None:
    with pytest.raises(ValueError, match="give both or neither"):
        encode(dataclasses.replace(record, query_id=query_id, batch_id=batch_id))


def test_values_that_would_come_back_as_another_type_are_not_written() -> None:
    for meta in ({"k": (1, 2)}, {"k": {1, 2}}, {"k": object()}):
        with pytest.raises(TypeError):
            encode(dataclasses.replace(EPOCH, meta=meta))


def test_now_of_a_commit_is_that_of_its_last_step() -> None:
    assert COMMIT.now_us == 9
    assert dataclasses.replace(COMMIT, steps=()).now_us is None


@pytest.mark.parametrize("record", RECORDS)
def test_a_field_too_few_or_too_many_is_refused(record: Record) -> None:
    body = body_of(record)
    for name in body:
        without = {key: value for key, value in body.items() if key != name}
        with pytest.raises(CorruptState, match=name if name != "record" else "unknown record type None"):
            decode(sealed(without))
    with pytest.raises(CorruptState, match="unknown \\['colour'\\]"):
        decode(sealed({**body, "colour": 1}))


@pytest.mark.parametrize("nested", ["steps", "shards"])
def test_so_it_is_inside(nested: str) -> None:
    body = body_of(COMMIT)
    body[nested][0]["colour"] = 1
    with pytest.raises(CorruptState, match=f"Commit.{nested}: .*unknown \\['colour'\\]"):
        decode(sealed(body))


WRONG: dict[str, list[Any]] = {
    "int": [None, "1", 1.0, True, [1]],
    "text": [None, 1, b"x", ["x"]],
    "list": [None, 1, {}, [1], [["s"]], [["s", 0, 1, 2, 3]], [[0, "s", 1]], [["s", True, 1]]],
    "map": [None, 1, [], [["a", 1]]],
}
KINDS: dict[str, str] = {
    **dict.fromkeys(
        ["seq", "epoch", "commit", "opened_us", "now_us", "shards_", "published", "first_seq"], "int"
    ),
    **dict.fromkeys(["driver", "job"], "text"),
    **dict.fromkeys(["next_offsets", "marks", "idle", "steps"], "list"),
    **dict.fromkeys(["meta", "floors", "fingerprints", "counters"], "map"),
}


@pytest.mark.parametrize("record", RECORDS)
def test_a_field_of_another_type_is_refused(record: Record) -> None:
    tried = 0
    for name in body_of(record):
        for value in WRONG[KINDS[name]] if name in KINDS else []:
            tried += 1
            with pytest.raises(CorruptState, match=f"{type(record).__name__}.{name}: "):
                decode(sealed({**body_of(record), name: value}))
    assert tried > 15


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query_id", 1),
        ("batch_id", "1"),
        ("watermark_us", False),
        ("next_offsets", [["s", 0, 1], ["s", 0, 2]]),
        ("marks", [["s", 0, 1]]),
        ("counters", {"n": "many"}),
        ("steps", [{**body_of(COMMIT)["steps"][0], "kind": "rest"}]),
        ("shards", [{**body_of(COMMIT)["shards"][0], "segment": 1}]),
        ("shards", [7]),
    ],
)
def test_nor_is_anything_guessed(name: str, value: Any) -> None:
    with pytest.raises(CorruptState, match=f"Commit.{name}: "):
        decode(sealed({**body_of(COMMIT), name: value}))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x01", msgpack.packb([1]), msgpack.packb(1) * 2])
def test_what_is_no_map_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptState, match="log record is whole but wrong"):
        decode(seal(Kind.LOG_RECORD, payload))


def test_a_record_has_kept_files_only_where_a_shard_names_them() -> None:
    plain = _commit(ShardResult(shard=0, segment="a", digest="x"))
    kept = _commit(ShardResult(shard=0, segment="a", digest="x", kept={"segment": (3, 5), "dead": (6, 6)}))
    assert decode(encode(kept)) == kept
    assert b"kept" not in encode(plain)


def _commit(shard: ShardResult) -> Commit:
    return Commit(
        seq=1, epoch=1, commit=1, steps=(), next_offsets={}, shards=(shard,), published=0, watermark_us=None
    )


@pytest.mark.parametrize("kept", [{"segment": [1]}, {"segment": [1, "2"]}, [], None])
def test_kept_files_that_make_no_sense_are_refused(kept: Any) -> None:
    body = msgpack.unpackb(unseal(Kind.LOG_RECORD, encode(_commit(ShardResult(shard=0)))))
    body["shards"][0]["kept"] = kept
    with pytest.raises(CorruptState, match="log record is whole but wrong"):
        decode(seal(Kind.LOG_RECORD, msgpack.packb(body)))


def test_a_newer_version_is_refused_before_its_fields_are_looked_at() -> None:
    with pytest.raises(NewerFormat, match=rf"version {records.VERSION + 1}.*upgrade"):
        decode(seal(Kind.LOG_RECORD, msgpack.packb({"record": "commit", "colour": 1}), records.VERSION + 1))


@pytest.mark.parametrize("record", RECORDS)
def test_any_single_damaged_byte_is_found(record: Record) -> None:
    data = encode(record)
    for n in range(len(data)):
        broken = data[:n] + bytes([data[n] ^ 0x55]) + data[n + 1 :]
        with pytest.raises((CorruptState, NewerFormat)):
            decode(broken)
        with pytest.raises(CorruptState):
            decode(data[:n])


@pytest.mark.parametrize("field", ["segment", "panes", "snapshot"])
@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "/etc/passwd", "..", ".hidden", "a\0b", "a\n", "x" * 300]
)
def test_a_name_that_leads_out_of_the_folders_is_damage(field: str, name: str) -> None:
    shard = dataclasses.replace(COMMIT.shards[0], **{field: name})
    with pytest.raises(CorruptState, match="is no name of a file of a job"):
        decode(encode(dataclasses.replace(COMMIT, shards=(shard,))))


@pytest.mark.parametrize("name", ["", "../x", "a/b", "/etc/passwd", "..", "a\0b", "x" * 300])
def test_a_job_or_an_operator_that_leads_out_of_the_folders_is_damage(name: str) -> None:
    shard = dataclasses.replace(COMMIT.shards[0], counters={f"panes_file.{name}": 1})
    kept = dataclasses.replace(COMMIT.shards[0], kept={f"panes/{name}": (0, 1)})
    for record in (
        dataclasses.replace(EPOCH, job=name),
        dataclasses.replace(EPOCH, fingerprints={name: "f"}),
        dataclasses.replace(COMMIT, shards=(shard,)),
        dataclasses.replace(COMMIT, shards=(kept,)),
    ):
        with pytest.raises(CorruptState, match="is whole but wrong"):
            decode(encode(record))


@pytest.mark.parametrize("shards", [-1, (1 << 16) + 1, 2**63 - 1])
def test_more_shards_than_anybody_could_go_through_are_damage(shards: int) -> None:
    with pytest.raises(CorruptState, match=f"{shards} shards"):
        decode(encode(dataclasses.replace(EPOCH, shards=shards)))


@pytest.mark.parametrize(
    "meta",
    [
        {"definitions": 1},
        {"definitions": {"a": 1}},
        {"watermarks": []},
        {"watermarks": {"a": None}},
        {"now_us": "x"},
        {"ordinals": [1]},
        {"sharding": {"t": "x"}},
        {"unread": [["s", 0, 1]]},
    ],
    ids=str,
)
def test_what_readers_rely_on_in_meta_has_its_type(meta: dict[str, Any]) -> None:
    for record in (EPOCH, COMMIT):
        with pytest.raises(CorruptState, match=rf"{type(record).__name__}.meta: "):
            decode(encode(dataclasses.replace(record, meta=meta)))
