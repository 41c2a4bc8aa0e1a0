"""`windrow ui`: a server for the page, until it is interrupted."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import TextIO

import pyarrow as pa

from windrow.console.text import modules_from_here
from windrow.core.errors import ConfigurationError
from windrow.core.extras import need
from windrow.runners.state.definitions import imported


def ui(options: argparse.Namespace, out: TextIO) -> int:
    """Serve the page of some jobs."""
    for module in ("uvicorn", "starlette", "jinja2"):
        need(module, "ui", "windrow ui")
    import uvicorn

    from windrow.console.ui.job_reader import JobReader
    from windrow.console.ui.web_app import web_app

    if options.definition is not None and len(options.location) > 1:
        raise ConfigurationError(
            f"--definition {options.definition} with {len(options.location)} locations: name one location"
        )
    with modules_from_here():
        definition = None if options.definition is None else imported(options.definition)
    names = names_of(options.location)
    readers = {
        name: JobReader(name, location, definition)
        for name, location in zip(names, options.location, strict=True)
    }
    pa.array([])  # Arrow loads pandas now, where it is installed, and no reader waits for it
    listening = _listen(options.host, options.port)
    port = listening.getsockname()[1]
    token = None if is_loopback(options.host) else secrets.token_urlsafe(24)
    app = web_app(readers, hosts=hosts_of(options.host), token=token)
    address = f"[{options.host}]" if ":" in options.host else options.host
    print(f"http://{address}:{port}/{'' if token is None else f'?token={token}'}", file=out, flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    with suppress(KeyboardInterrupt):  # how it is stopped
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"{host}:{port} cannot be listened on ({error.strerror}): choose another --port, or --port 0 for a free one"
        ) from error
    return listening


def is_loopback(host: str) -> bool:
    """True for a host that only this machine reaches."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hosts_of(host: str) -> list[str]:
    """Return the names that a browser may call this server by: rebinding to another name is refused."""
    own = {host, "localhost", "127.0.0.1", "::1", "[::1]"}
    if not is_loopback(host):
        name = socket.gethostname()
        own |= {name, socket.getfqdn(), *socket.gethostbyname_ex(name)[2]}
    return sorted(own)


def names_of(locations: Sequence[str]) -> list[str]:
    """Return a name for each location, for URLs: its last folders, as many as set them apart."""
    names: list[str] = []
    for location in locations:
        parts = [p for p in location.removeprefix("log:").rstrip("/").split(os.sep) if p] or ["job"]
        own = parts[-2] if parts[-1] == "windrow" and len(parts) > 1 else parts[-1]
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in own).strip(".") or "job"
        same = sum(name.partition("~")[0] == plain for name in names)
        names.append(f"{plain}~{same + 1}" if same else plain)
    return names
