"""Read replica of a store that another process has open, in a folder of its own.

RocksDB's secondary and read-only openings take no lock, but rocksdict writes its `rocksdict-config.json` into whatever folder
it opens, and RocksDB its LOG. So the small files that say what the store is (CURRENT, MANIFEST, options) are copied, the
immutable SST files are linked by name, and that folder is opened read-only. It holds what was flushed when it was made: whole
commits, as `atomic_flush` is on. SST files stay open from then on, whatever the owner deletes.
"""

from __future__ import annotations

import os
import shutil

from windrow.core.errors import CorruptState
from windrow.stores.files import inside

#: Only these are copied; logs are empty (RocksDB's own log is off), LOCK is the owner's.
_COPIED = ("OPTIONS-", "IDENTITY", "rocksdict-config.json")


def mirror(path: str, target: str) -> None:
    """Make at `target`, which must not be there, a folder that opens read-only as the store at `path` was just now.

    Raises CorruptState where the owner replaced files meanwhile (try again) or the store is none.
    """
    os.makedirs(target)
    try:
        with open(os.path.join(path, "CURRENT"), "rb") as file:
            current = file.read()
        manifest = current.decode(errors="replace").strip()
        if not manifest.startswith("MANIFEST-"):
            raise CorruptState(f"the store {path} is damaged: its CURRENT says {manifest!r}")
        # The manifest before the folder: it may name a file that is deleted since, never one that we do not see.
        shutil.copyfile(inside(path, manifest), inside(target, manifest))
        for name in os.listdir(path):
            source = os.path.join(path, name)
            if name.endswith(".sst"):
                os.symlink(os.path.abspath(source), os.path.join(target, name))
            elif name.startswith(_COPIED):
                shutil.copyfile(source, os.path.join(target, name))
        with open(os.path.join(target, "CURRENT"), "wb") as file:
            file.write(current)
    except FileNotFoundError as error:
        raise CorruptState(f"the store {path} changed while it was looked at: {error}") from error
