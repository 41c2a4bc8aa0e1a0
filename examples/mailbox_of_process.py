"""A mail server in this process, which keeps what it gets."""

from __future__ import annotations

import email
import socket
from typing import Any, Self

from aiosmtpd.controller import Controller


class Mailbox:
    """Mails, and their keys: a mail that comes twice has one."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def keys(self) -> set[str]:
        return {mail["Message-ID"] for mail in self.mails}

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(email.message_from_bytes(envelope.content))
        return "250 OK"

    def __enter__(self) -> Self:
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()
