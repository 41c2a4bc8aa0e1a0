"""A folder from somebody else changes nothing outside of itself, whatever the names in its files are."""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import xxhash

import windrow as wr
from tests.deep import usually
from windrow.checkpoint import job_admin, records
from windrow.checkpoint.backup import backup
from windrow.checkpoint.verify import verify
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState, WindrowError
from windrow.stores.files import inside
from windrow.testing import ManualClock

JOB = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "m": wr.median("x")},
    watermark="1 second",
    retention="30 seconds",
    name="n",
)
#: Which files have names in them, and what they are: of each the newest is attacked.
FILES = {
    "log/*.wrl": Kind.LOG_RECORD,
    "changelog/base-*.seg": Kind.SEGMENT,
    "snapshots/manifests/*": Kind.SNAPSHOT_MANIFEST,
    "out/_manifests/*/*.wrl": Kind.SINK_MANIFEST,
}
MOST = usually(2, deep=100_000)
#: Names of fields, which no reader takes for anything else.
FIELDS = {name for fields in records._FIELDS.values() for name in fields}
Path_ = tuple[Any, ...]


def feed(op: Any, numbers: range) -> None:
    for n in numbers:
        op.add_message({"k": "ab"[n % 2], "t": n * 1_000_000, "x": float(n)})
        if n % 7 == 6:
            op.add_message({"k": "a", "t": 0, "x": 0.0})  # too late
        if n % 4 == 3:
            op.timeout()


def ages_fast(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 3)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = tmp_path_factory.mktemp("made") / "job"
    with pytest.MonkeyPatch.context() as patch:
        ages_fast(patch)
        sink = wr.sinks.parquet(str(job / "out"))
        with JOB.open(str(job), clock=ManualClock(60_000_000), sink=sink, dead_letters=sink) as op:
            feed(op, range(60))
    return job


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Paths to the texts in a value, in lists and maps; `(..., key, None)` is the key itself."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str):
                yield (*path, key, None)
            yield from leaves(item, (*path, key))


def with_text(value: Any, path: Path_, text: str) -> Any:
    """The value with another text there. A key keeps the part before its last dot: `panes_file.n`."""
    changed = at = copy.deepcopy(value)
    *way, last = path
    if last is None:
        *way, key = way
        for step in way:
            at = at[step]
        head, dot, _ = key.rpartition(".")
        at[head + dot + text] = at.pop(key)
    else:
        for step in way:
            at = at[step]
        at[last] = text
    return changed


def sealed(kind: Kind, value: Any) -> bytes:
    return seal(kind, msgpack.packb(value))


def newest(job: Path, pattern: str) -> list[tuple[Path, Any]]:
    """The newest file of each kind of record that a pattern finds, and what is in it."""
    kind, files = FILES[pattern], dict[str, tuple[Path, Any]]()
    for path in sorted(job.glob(pattern)):
        body = msgpack.unpackb(unseal(kind, path.read_bytes(), 1), strict_map_key=False)
        of = body["record"] if isinstance(body, dict) else path.parent.name
        if of == "commit" and not any(r["panes"] for r in body["shards"]):
            continue
        files[of] = path, body
    return list(files.values())


def attacks(template: Path) -> list[tuple[str, str, Path_]]:
    """(pattern, file, where a text is) of all names in files; of the items of a list only the last."""
    attacked = {
        (path, tuple(step for step in leaf[:-1] if not isinstance(step, int)), leaf[-1]): (pattern, leaf)
        for pattern in FILES
        for path, body in newest(template, pattern)
        for leaf in leaves(body)
        if leaf[-1] is not None or leaf[-2] not in FIELDS
    }
    return [
        (pattern, str(path.relative_to(template)), leaf) for (path, _, _), (pattern, leaf) in attacked.items()
    ]


def put(job: Path, pattern: str, name: str, change: Callable[[Any], Any]) -> None:
    """Change a file such that its checksums are right."""
    path, kind = job / name, FILES[pattern]
    data = path.read_bytes()
    body = msgpack.unpackb(unseal(kind, data, 1), strict_map_key=False)
    data = sealed(kind, change(body))
    path.unlink()
    if kind == Kind.SNAPSHOT_MANIFEST:
        shard, commit, _ = path.name.split("-")
        path = path.with_name(f"{shard}-{commit}-{xxhash.xxh3_128_hexdigest(data)}.manifest")
        shutil.rmtree(job / "local", ignore_errors=True)  # so that the snapshot is restored
    path.write_bytes(data)


def everything(job: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Whatever somebody may do with a folder."""
    ages_fast(patch)
    uses: list[Callable[[], object]] = [
        lambda: verify(str(job)),
        lambda: read(job),
        lambda: backup(str(job), str(folder / "backup")),
        lambda: job_admin.fork(str(job), str(folder / "fork"), now_us=0, driver="d"),
        lambda: wr.read_panes(str(job / "out")),
        lambda: go_on(job),
    ]
    for use in uses:
        with suppress(WindrowError):
            use()


def read(job: Path) -> None:
    with wr.read_state(str(job)) as state:
        state.get_windows()
        state.dead_letters()


def go_on(job: Path) -> None:
    sink = wr.sinks.parquet(str(job / "out"))
    with JOB.open(str(job), clock=ManualClock(120_000_000), sink=sink, dead_letters=sink) as op:
        feed(op, range(60, 90))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def hostile(outside: Path, job: Path, chance: random.Random) -> str:
    name = chance.choice(["old", "new"])
    return chance.choice([str(outside / name), "../" * chance.randint(1, 4) + f"outside/{name}", "../old"])


def test_no_name_in_a_file_leads_out_of_its_folder(template: Path, tmp_path: Path) -> None:
    chance, all_of = random.Random(25), attacks(template)
    surely = [
        a
        for a in all_of
        if {"job", "segment", "panes", "panes_file.n", "parts"} & {*a[2]} or "manifests" in a[1]
    ]
    others = [a for a in all_of if a not in surely]
    chosen = surely + chance.sample(others, min(MOST, len(others)))
    print(f"{len(chosen)} of {len(all_of)} names in files")
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("old", "old.seg", "old.parquet", "old.n.parquet"):
        (outside / name).write_bytes(b"kept")
    for n, (pattern, name, leaf) in enumerate(chosen):
        folder = tmp_path / str(n)
        job = Path(shutil.copytree(template, folder / "job"))
        (folder / "old").write_bytes(b"kept")
        text = hostile(outside, job, chance)
        put(job, pattern, name, lambda body, leaf=leaf, text=text: with_text(body, leaf, text))
        with pytest.MonkeyPatch.context() as patch:
            everything(job, folder / "beside", patch)
        assert len(contents(outside)) == 4 and set(contents(outside).values()) == {b"kept"}, (
            name,
            leaf,
            text,
        )
        assert {p.name for p in folder.iterdir()} <= {"job", "beside", "old"}, (name, leaf, text)
        assert (folder / "old").read_bytes() == b"kept", (name, leaf, text)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["/{}/sitecustomize.py", "../../sitecustomize.py", "a/b", "..", "", ".x", 5])
def test_a_manifest_writes_no_file_outside_of_the_store(template: Path, tmp_path: Path, name: Any) -> None:
    """Content lies in the manifest, under any name that its author likes."""
    job = Path(shutil.copytree(template, tmp_path / "job"))
    name = name.format(tmp_path) if isinstance(name, str) else name
    content = b"import os"
    file = [name, len(content), xxhash.xxh3_128_hexdigest(content), content]
    for path in sorted((job / "snapshots" / "manifests").iterdir()):
        relative = str(path.relative_to(job))
        put(job, "snapshots/manifests/*", relative, lambda body: [*body[:2], [*body[2], file]])
    report = verify(str(job))
    assert any(what.startswith("snapshot") and "whole but wrong" in why for what, why in report.wrong)
    with suppress(WindrowError):
        read(job)
    assert not list(tmp_path.rglob("sitecustomize.py"))


@pytest.mark.parametrize(
    "pattern",
    [
        "segments/*",
        "changelog/0*",
        "changelog/base-*",
        "panes/*",
        "dead/*",
        "snapshots/blobs/*",
        "snapshots/manifests/*",
    ],
)
def test_no_link_is_followed(template: Path, tmp_path: Path, pattern: str) -> None:
    job = Path(shutil.copytree(template, tmp_path / "job"))
    path = max(job.glob(pattern))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert any(f"{path} is a link" in why for _, why in verify(str(job)).wrong)


@pytest.mark.parametrize("name", ["LOCK", "LOG", "CURRENT", "IDENTITY"])
def test_no_link_in_a_store_is_followed(template: Path, tmp_path: Path, name: str) -> None:
    """RocksDB opens files in the folder of a store: a link for one of them makes it anew."""
    job = Path(shutil.copytree(template, tmp_path / "job"))
    [store] = (job / "local").glob("shard-0000")
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(tmp_path / "elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        everything(job, tmp_path / "beside", patch)
    assert not (tmp_path / "elsewhere").exists()
    go_on(job)
    assert not (job / "local" / "shard-0000" / name).is_symlink()


def test_a_name_is_resolved_inside_of_its_folder_or_refused(tmp_path: Path) -> None:
    assert inside(str(tmp_path), "000012.sst") == str(tmp_path / "000012.sst")
    for name in ["", ".", "..", "../a", "/a", "a/b", "a\0", "a\n", ".a", "x" * 201, b"a", None, 1]:
        with pytest.raises(CorruptState, match="is no name of a file"):
            inside(str(tmp_path), name)
    os.symlink(tmp_path / "not there", tmp_path / "link")
    with pytest.raises(CorruptState, match="is a link, and windrow follows none"):
        inside(str(tmp_path), "link")
