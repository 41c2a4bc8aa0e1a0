"""Sinks that notify: a row is an HTTP request, or a mail; and a sink that routes rows to others by the value of a column.

Delivery is at least once, and exactly once for a receiver that honours the key: after a crash between a request and the note
that its commit is out, the same rows are sent again, each with the same key. Secrets are read from environment variables when
they are used. They are in no definition, no log and no error.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import smtplib
import ssl
import string
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import EmailMessage
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from windrow.connectors.pane_files import PaneFiles, Sink
from windrow.core import check
from windrow.core.errors import ConfigurationError, SinkFailed
from windrow.core.logs import get_logger
from windrow.core.messages import Token
from windrow.core.show import Raw, call, json_text, rfc3339
from windrow.core.time import Duration, duration_us, show_duration
from windrow.core.types import concat
from windrow.operators.operator import Definition

_LOG = get_logger("windrow.sinks")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 30.0
_VISIBLE = re.compile(r"[!-~]+")
#: Answers after which the same request may succeed.
_AGAIN = frozenset({408, 425, 429})


def keyed_rows(token: Token, panes: PaneFiles) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each row with its key: of job, operator, commit and the row's content, the same whenever it is sent."""
    seen: Counter[str] = Counter()
    for table in panes.tables():
        for row in table.to_pylist():
            digest = xxhash.xxh3_64_hexdigest(json_text(row).encode())
            seen[digest] += 1
            yield f"{token.job}-{panes.operator}-{token.commit}-{digest}-{seen[digest]}", row


def secret(name: str | None) -> str | None:
    """Return the value of an environment variable. Raises `ConfigurationError` where there is none."""
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise ConfigurationError(f"environment variable {name!r} is not set: export it before the job runs")
    return value


class _Refused(Exception):
    """Error for a notification that failed. again: the same one may succeed."""

    def __init__(self, why: str, again: bool) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True, repr=False)
class _Notifying:
    """Sink that sends each row by itself, retries failures, and gives up after some attempts."""

    timeout_us: int
    attempts: int
    undelivered: Sink | None

    def last_commit(self, job: str, operator: str) -> int | None:
        return None

    def check(self, definition: Definition) -> None:
        """Refuse secrets that are not set, before the first notification."""
        for name, value in vars(self).items():
            if name.endswith("_env"):
                secret(value)
        if self.undelivered is not None and hasattr(self.undelivered, "check"):
            self.undelivered.check(definition)

    def _each(self, token: Token, panes: PaneFiles, send: Callable[[str, dict[str, Any]], None]) -> None:
        failed: list[int] = []
        for number, (key, row) in enumerate(keyed_rows(token, panes)):
            try:
                self._send(partial(send, key, row), key)
            except _Refused as error:
                if self.undelivered is None:
                    raise SinkFailed(
                        f"{self!r} did not take row {key} of commit {token.commit} in {self.attempts} attempts: {error}; "
                        "repair the receiver, or give undelivered=, a sink for what it refuses"
                    ) from None
                _LOG.warning("a notification was not delivered", sink=repr(self), key=key, why=str(error))
                failed.append(number)
        if failed and self.undelivered is not None:
            _publish_rows(self.undelivered, token, panes, np.array(failed))

    def _send(self, send: Callable[[], None], key: str) -> None:
        wait_s = _FIRST_WAIT_S
        for attempt in range(1, self.attempts + 1):
            try:
                send()
                return
            except _Refused as error:
                if not error.again or attempt == self.attempts:
                    raise
                _LOG.warning("a notification is sent again", key=key, attempt=attempt, why=str(error))
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


@dataclass(frozen=True, repr=False)
class WebhookSink(_Notifying):
    """Sink that sends each row as JSON by POST."""

    url: str | None
    url_env: str | None
    secret_env: str | None
    headers: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        parts = urlsplit(self.url or "")
        shown = (
            SplitResult(parts.scheme, parts.hostname or "", parts.path, "", "").geturl() if self.url else None
        )
        return call(
            "sinks.webhook", *([shown] if shown else []), url_env=self.url_env, secret_env=self.secret_env
        )

    def publish(self, token: Token, panes: PaneFiles) -> None:
        url, key = self.url or secret(self.url_env) or "", secret(self.secret_env)
        self._each(
            token, panes, lambda name, row: self._post(url, key, name, json_text(row, rfc3339).encode())
        )

    def _post(self, url: str, secret_key: str | None, key: str, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": key, **dict(self.headers)}
        if secret_key is not None:
            signed = hmac.new(secret_key.encode(), body, hashlib.sha256).hexdigest()
            headers["X-Windrow-Signature"] = f"sha256={signed}"
        parts = url_parts(url)
        timeout_s, port = self.timeout_us / 1e6, parts.port
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", port, timeout=timeout_s)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise _Refused(f"no answer ({type(error).__name__})", again=True) from None
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise _Refused(f"status {status}", again=status >= 500 or status in _AGAIN)


@dataclass(frozen=True, repr=False)
class EmailSink(_Notifying):
    """Sink that sends each row as a mail by SMTP."""

    to: tuple[str, ...]
    server: str
    port: int
    sender: str
    subject: str
    body: str | None
    user_env: str | None
    password_env: str | None
    starttls: bool

    def __repr__(self) -> str:
        to = self.to[0] if len(self.to) == 1 else list(self.to)
        names = {"user_env": self.user_env, "password_env": self.password_env}
        return call("sinks.email", to, server=self.server, **names)

    def publish(self, token: Token, panes: PaneFiles) -> None:
        user, password = secret(self.user_env), secret(self.password_env)
        self._each(token, panes, lambda key, row: self._mail(self.message(key, row), user, password))

    def message(self, key: str, row: Mapping[str, Any]) -> EmailMessage:
        """Return the mail of a row."""
        shown = {name: value for name, value in row.items() if name not in ("pane", "commit")}
        made = EmailMessage()
        subject = _TEMPLATE.vformat(self.subject, (), row)
        made["Subject"] = " ".join(subject.split())
        made["From"], made["To"] = self.sender, ", ".join(self.to)
        made["Message-ID"] = f"<{key}@windrow>"
        lines = "\n".join(f"{name}: {value}" for name, value in shown.items() if value is not None)
        made.set_content(lines if self.body is None else _TEMPLATE.vformat(self.body, (), row))
        return made

    def _mail(self, message: EmailMessage, user: str | None, password: str | None) -> None:
        try:
            with smtplib.SMTP(self.server, self.port, timeout=self.timeout_us / 1e6) as server:
                if self.starttls:
                    server.starttls(context=ssl.create_default_context())
                if user is not None:
                    server.login(user, password or "")
                refused = server.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            raise _Refused(f"all addresses are refused ({codes})", again=max(codes) < 500) from None
        except smtplib.SMTPResponseException as error:  # what the server says may repeat what it was given
            raise _Refused(f"SMTP status {error.smtp_code}", again=error.smtp_code < 500) from None
        except (OSError, smtplib.SMTPException) as error:
            raise _Refused(f"no answer ({type(error).__name__})", again=True) from None
        for address, (code, _) in refused.items():
            _LOG.warning("an address is refused", sink=repr(self), address=address, status=code)


class _Template(string.Formatter):
    """Template over the columns of a row. A null or missing value is empty; no value makes a template fail."""

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        return kwargs.get(field_name), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return ""
        try:
            return format(value, format_spec)
        except (TypeError, ValueError):
            return str(value)


_TEMPLATE = _Template()


@dataclass(frozen=True, repr=False)
class RouteSink:
    """Sink that routes rows to other sinks by the value of a column."""

    column: str
    sinks: tuple[tuple[Any, Sink], ...]
    other: Sink | None

    def __repr__(self) -> str:
        return call("sinks.route", self.column, Raw(dict(self.sinks)), other=self.other)

    def check(self, definition: Definition) -> None:
        """Refuse rows without the column, and actions without a sink."""
        emitted, actions = definition.output_columns, getattr(definition, "actions", None)
        if emitted is not None and self.column not in emitted:
            raise ConfigurationError(
                f"{self!r} asks for column {self.column!r}, and rows of {definition.name!r} have {list(emitted)}"
            )
        for sink in (*dict(self.sinks).values(), *(() if self.other is None else (self.other,))):
            if hasattr(sink, "check"):
                sink.check(definition)
        missing = [a for a in actions or () if a not in dict(self.sinks)] if self.column == "action" else []
        if missing and self.other is None:
            raise ConfigurationError(
                f"{self!r} has no sink for the actions {missing} of {definition.name!r}: name one for each, or give other="
            )

    def publish(self, token: Token, panes: PaneFiles) -> None:
        values = np.array(
            [v for table in panes.tables() for v in table.column(self.column).to_pylist()], object
        )
        rows: dict[int, tuple[Sink, list[int]]] = {}
        by_value, lost = dict(self.sinks), set()
        for number, value in enumerate(values.tolist()):
            sink = by_value.get(value, self.other)
            if sink is None:
                lost.add(value)
            else:
                rows.setdefault(id(sink), (sink, []))[1].append(number)
        if lost:
            _LOG.warning("rows have no sink", sink=repr(self), values=sorted(map(str, lost)))
        for sink, row_numbers in rows.values():
            _publish_rows(sink, token, panes, np.array(row_numbers))

    def last_commit(self, job: str, operator: str) -> int | None:
        return None  # each sink knows for itself what it has


def _publish_rows(sink: Sink, token: Token, panes: PaneFiles, rows: Any) -> None:
    """Give a sink some of the rows of a commit."""
    table = concat(list(panes.tables())).take(pa.array(rows))
    with tempfile.TemporaryDirectory(prefix="windrow-rows-") as folder:
        path = os.path.join(folder, "rows.parquet")
        pq.write_table(table, path)
        sink.publish(token, replace(panes, files=(path,), rows=len(table)))


def common(timeout: Duration, attempts: int, undelivered: Any) -> tuple[int, int, Sink | None]:
    """Check the options that all notifying sinks share."""
    timeout_us = duration_us(timeout, "timeout")
    if timeout_us <= 0:
        raise ConfigurationError(f"timeout={show_duration(timeout_us)!r}: use more than 0")
    check.number(attempts, "attempts", "use a number of attempts, 1 or more", least=1)
    return timeout_us, attempts, undelivered


def url_parts(url: str) -> SplitResult:
    """Check the URL of a receiver, and return its parts. It may hold a secret: no error shows it."""
    try:
        parts = urlsplit(url)
        if (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and _VISIBLE.fullmatch(url)
        ):
            return parts
    except ValueError:  # of a port
        pass
    raise ConfigurationError(
        "webhook: the URL is none: use http://host:port/path or https://host/path, without spaces"
    )


def check_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Check headers of requests."""
    for name, value in headers.items():
        if not (
            isinstance(value, str)
            and _VISIBLE.fullmatch(name)
            and _VISIBLE.fullmatch(f"-{value.replace(' ', '')}")
        ):
            raise ConfigurationError(
                f"headers: {name!r} has a value that no request can have: use text of ASCII, in one line"
            )
    return tuple(headers.items())


def check_mail(sink: EmailSink) -> EmailSink:
    """Check that a sink makes mails: its sender and its templates."""
    try:
        sink.message("key", {})
    except ValueError as error:
        raise ConfigurationError(
            f"{sink!r}: {error}; use sender='ops@example.org', subject='{{status}}: {{mean:.1f}}'"
        ) from None
    return sink


def addresses(to: str | Sequence[str]) -> tuple[str, ...]:
    """Check addresses of mails."""
    found = check.names(to, "to", "give an address, or several")
    for address in found:
        if "@" not in address or any(c.isspace() for c in address):
            raise ConfigurationError(f"to={to!r}: {address!r} is no address, use ops@example.org")
    return found
