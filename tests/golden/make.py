"""Writes an archive of golden jobs, with whichever windrow PYTHONPATH leads to.

    git archive 5362c5b --prefix old/ | tar x -C /somewhere
    PYTHONPATH=/somewhere/old/src python -m tests.golden.make tests/golden/NAME.tar.xz KIND ...

An archive is never written again: it is what its version wrote. A kind of job that is new gets an archive of its own.
Names that are else drawn are counted, and the clock is set by hand; only RocksDB's files tell when they were made.
"""

from __future__ import annotations

import io
import itertools
import json
import lzma
import secrets
import shutil
import sys
import tarfile
import tempfile
import uuid
from pathlib import Path
from typing import Any

import windrow.runners.embedded.engine as engine
from tests.golden.jobs import KINDS, begin, go_on
from tests.golden.on_spark import SPARK, begin_on_spark, go_on_on_spark


def make(archive: str, names: list[str]) -> None:
    drawn = itertools.count(1)
    vars(uuid)["uuid4"] = lambda: uuid.UUID(int=next(drawn) << 64)
    vars(secrets)["token_hex"] = lambda n=4: f"{next(drawn):0{2 * n}x}"
    vars(engine).update(SNAPSHOT_EVERY=4, TIDY_SHARE=0.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        lzma.open(archive, "wb", preset=9) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name in names:
            said = _spark(folder) if name == SPARK else _embedded(name, folder)
            _add(tar, f"{name}.json", said)
            tar.add(Path(folder, name), f"{name}/job", filter=_timeless)


def _embedded(name: str, folder: str) -> dict[str, Any]:
    location = str(Path(folder, name))
    said = {"state": begin(KINDS[name], location)}
    shutil.copytree(location, f"{location} goes on")
    return said | go_on(KINDS[name], f"{location} goes on")


def _spark(folder: str) -> dict[str, Any]:
    from tests.spark.conftest import session

    location, spark = str(Path(folder, SPARK)), session()
    said = {"state": begin_on_spark(spark, location)}
    shutil.copytree(location, f"{location} goes on")
    return said | go_on_on_spark(spark, f"{location} goes on")


def _timeless(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if Path(one.name).name.startswith("LOG"):
        return None  # what RocksDB tells of itself
    one.mtime, one.uid, one.gid, one.uname, one.gname = 0, 0, 0, "", ""
    return one


def _add(tar: tarfile.TarFile, name: str, said: dict[str, Any]) -> None:
    text = json.dumps(said, indent=1).encode()
    one = tarfile.TarInfo(name)
    one.size = len(text)
    tar.addfile(one, io.BytesIO(text))


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2:])
