"""Files that exist whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence


def write_whole(path: str, parts: Sequence[bytes], *, fsync: bool = True, fsync_dir: bool = True) -> None:
    """Writes a file under an attempt-unique temporary name beside it, then renames: readers see all or
    nothing."""
    temporary = f"{path}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.writelines(parts)
            file.flush()
            if fsync:
                os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if fsync and fsync_dir:
        sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Makes the names in a directory survive a power loss."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
