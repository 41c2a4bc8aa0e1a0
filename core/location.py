"""Locations of jobs, sinks and checkpoints: folders of a POSIX file system."""

from __future__ import annotations

import os
import re

from windrow.core.errors import BadLocation

#: `s3://`, `dbfs:/`, `log:`. One letter before the colon is no scheme: such a name is one of a folder.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_FILE = re.compile(r"file:(?:/(?!/)|//(?:localhost)?/+)")


def local_path(location: str | os.PathLike[str], what: str = "location") -> str:
    """Return the absolute path of a folder that a user names: a path, `~` included, or `file://`. `BadLocation` for all else.

    An object store would otherwise become, without a word, a local folder of its name.
    """
    if not isinstance(location, (str, os.PathLike)) or isinstance(os.fspath(location), bytes):
        raise BadLocation(f"{what} {location!r} is no path: give the name of a folder, such as 'ckpt/delays'")
    text = os.fspath(location)
    if not text.strip():
        raise BadLocation(f"{what} {text!r} is empty: give the name of a folder, such as 'ckpt/delays'")
    if text.startswith("file:"):
        found = _FILE.match(text)
        if found is None:
            raise BadLocation(
                f"{what} {text!r} names another host, or no whole path: write 'file:///' and the path"
            )
        text = "/" + text[found.end() :]
    elif scheme := _SCHEME.match(text):
        raise BadLocation(
            f"{what} {text!r} begins with {scheme[0]!r}, and windrow keeps files only in folders of a file system with hard "
            f"links (ext4, xfs, NFS), never in object stores: give a path or 'file:///...' (for a folder of that very name "
            f"'./{text}')"
        )
    expanded = os.path.expanduser(text)
    if text.startswith("~") and expanded == text:
        raise BadLocation(
            f"{what} {text!r}: that user is not known here. Give the whole path (or './{text}')"
        )
    return os.path.abspath(expanded)
