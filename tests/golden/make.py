"""Write the archive of golden jobs: `python -m tests.golden.make`.

A change of a persisted format writes it anew; else it stays as it is. Names that are drawn elsewhere are counted here, and
the clock is set by hand, so that an archive differs from the one before by RocksDB's files only.
"""

from __future__ import annotations

import io
import itertools
import json
import lzma
import secrets
import shutil
import tarfile
import tempfile
import uuid
from pathlib import Path

import windrow.runners.embedded.engine as engine
from tests.golden.jobs import ARCHIVE, ARCHIVED, KINDS, begin, go_on


def make() -> None:
    drawn = itertools.count(1)
    vars(uuid)["uuid4"] = lambda: uuid.UUID(int=next(drawn) << 64)
    vars(secrets)["token_hex"] = lambda n=4: f"{next(drawn):0{2 * n}x}"
    vars(engine).update(SNAPSHOT_EVERY=4, TIDY_SHARE=0.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        lzma.open(ARCHIVE, "wb", preset=9) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name in ARCHIVED:
            location = str(Path(folder, name))
            answers = {"state": begin(KINDS[name], location)}
            shutil.copytree(location, f"{location} goes on")
            answers |= go_on(KINDS[name], f"{location} goes on")
            text = json.dumps(answers, indent=1).encode()
            one = tarfile.TarInfo(f"{name}.json")
            one.size = len(text)
            tar.addfile(one, io.BytesIO(text))
            tar.add(location, f"{name}/job", filter=_timeless)


def _timeless(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if Path(one.name).name.startswith("LOG"):
        return None  # RocksDB's own log
    one.mtime, one.uid, one.gid, one.uname, one.gname = 0, 0, 0, "", ""
    return one


if __name__ == "__main__":
    make()
