"""Sinks that notify, against local servers that fail by plan."""

from __future__ import annotations

import email
import hashlib
import hmac
import http.server
import json
import logging
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

import windrow as wr
from tests.deep import usually
from tests.drills import webhook
from windrow.connectors import notifications
from windrow.core.errors import OperatorPaused, SinkFailed
from windrow.testing import CommitPoint, TestDriver

S = 1_000_000
#: What has to be nowhere but in the environment and in what is signed.
SECRET = "s3cret-of-the-hook"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_FIRST_WAIT_S", 0.01)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers by plan, then 200: a status; "never", no answer in time; "late", 200 after the time is over."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.requests.append((dict(self.headers), body))
        answer = server.plan.pop(0) if server.plan else 200
        if answer in ("never", "late"):
            select.select([self.connection], [], [])  # until the client gives up
        if answer == "never":
            return
        self.send_response(200 if answer == "late" else answer)
        if answer == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.requests, server.plan, server.daemon_threads = [], [], True
    server.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def hot(**changes: Any) -> wr.Alert:
    return wr.Alert(by="k", event_time="t", when=wr.col("x") > 80, max_ahead=wr.forever, **changes)


def readings(values: list[int], start: int = 0) -> list[dict[str, Any]]:
    return [{"t": (start + i) * S, "k": "a", "x": x} for i, x in enumerate(values)]


def test_a_webhook_that_fails_twice_takes_a_row_once_under_one_key(receiver: Any, tmp_path: Path) -> None:
    receiver.plan = [500, 503]
    sink = wr.sinks.webhook(receiver.url, timeout="5 seconds")
    with hot().open(str(tmp_path), sink=sink) as op:
        op.add_messages(readings([70, 90]))
    keys = [headers["Idempotency-Key"] for headers, _ in receiver.requests]
    assert len(keys) == 3 and len(set(keys)) == 1
    row = json.loads(receiver.requests[-1][1])
    assert (row["status"], row["k"], row["time"]) == ("OPEN", "a", "1970-01-01T00:00:01+00:00")


def test_each_row_is_a_request_signed_with_a_secret_that_is_shown_nowhere(
    receiver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOOK", SECRET)
    receiver.plan = [200, 400]
    sink = wr.sinks.webhook(receiver.url + "?token=hidden", secret_env="HOOK")
    op = hot().open(str(tmp_path), sink=sink)
    with caplog.at_level(logging.DEBUG), pytest.raises((SinkFailed, OperatorPaused)) as refused:
        op.add_messages(readings([90, 70]))
        op.next_offsets()
        op.add_messages(readings([90], 2))  # a sink that refuses pauses the job
    op.abandon()
    headers, body = receiver.requests[0]
    assert (
        headers["X-Windrow-Signature"]
        == "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    )
    assert len(receiver.requests) == 2  # what is refused for good is not sent again
    written = b"".join(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
    for text in (repr(sink), str(refused.value), caplog.text, written.decode(errors="replace")):
        assert SECRET not in text and "hidden" not in text


def test_no_answer_in_time_is_none_and_redirects_are_not_followed(receiver: Any, tmp_path: Path) -> None:
    receiver.plan = ["late", "never", 302, 200]
    undelivered = wr.sinks.memory()
    sink = wr.sinks.webhook(receiver.url, timeout="100 ms", attempts=3, undelivered=undelivered)
    with hot().open(str(tmp_path), sink=sink) as op:
        op.add_messages(readings([90, 70]))
    assert [row["status"] for row in undelivered.panes] == ["OPEN"]
    assert json.loads(receiver.requests[-1][1])["status"] == "CANCEL"


def test_a_receiver_that_honours_the_key_has_each_row_once_though_the_job_dies_ten_times(
    receiver: Any, tmp_path: Path
) -> None:
    definition, points = hot(), list(CommitPoint)
    driver = TestDriver(definition, str(tmp_path), sink=wr.sinks.webhook(receiver.url))
    for n in range(10):
        driver.feed(readings([90, 70, 95, 60], 4 * n))
        driver.crash(at=points[n % len(points)])
        driver.restart()
        offset = driver.next_offsets()
        lost = [m for m in readings([90, 70, 95, 60], 4 * n)]
        if not offset or max(offset.values()) < 4 * (n + 1):
            driver.feed(lost)
            driver.next_offsets()
    rows = {headers["Idempotency-Key"]: json.loads(body) for headers, body in receiver.requests}
    driver.op.close()
    statuses = sorted((row["time"], row["status"]) for row in rows.values())
    assert [status for _, status in statuses] == ["OPEN", "CANCEL"] * 20 and len(set(statuses)) == 40


def test_a_job_that_is_killed_while_it_sends_notifies_each_row_once() -> None:
    """Ten kills: `python -m tests.drills.webhook`."""
    figures = webhook.drill(kills=usually(2, deep=10), messages=usually(36, deep=None))
    assert webhook.ok(figures) and sum(figures["kills"].values()) == usually(2, deep=10), figures
    assert figures["rows"] > 20, figures


class Mailbox:
    """Keeps mails; refuses one address."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.fails = 0

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address.startswith("gone@"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.fails:
            self.fails -= 1
            return "451 try again"
        self.mails.append((envelope.rcpt_tos, email.message_from_bytes(envelope.content)))
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[Any]:
    box: Any = Mailbox()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        box.port = free.getsockname()[1]
    controller = Controller(box, hostname="127.0.0.1", port=box.port)
    controller.start()
    yield box
    controller.stop()


def test_mails_go_to_those_addresses_that_the_server_takes(
    mailbox: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox.fails = 1
    sink = wr.sinks.email(
        ["a@example.org", "gone@example.org", "b@example.org"],
        server="127.0.0.1",
        port=mailbox.port,
        subject="{status} of {k}\n{nothing}",
        body="x was {value}",
    )
    with hot(variables={"value": wr.col("x")}).open(str(tmp_path), sink=sink) as op:
        op.add_messages(readings([90]))
    [(addresses, mail)] = mailbox.mails
    assert addresses == ["a@example.org", "b@example.org"]
    assert (mail["Subject"], mail.get_payload().strip()) == ("OPEN of a", "x was 90")
    assert mail["Message-ID"].endswith("@windrow>") and "gone@example.org" in caplog.text


def test_mails_that_all_addresses_refuse_go_to_the_sink_for_what_is_undelivered(
    mailbox: Any, tmp_path: Path
) -> None:
    undelivered = wr.sinks.memory()
    sink = wr.sinks.email("gone@example.org", server="127.0.0.1", port=mailbox.port, undelivered=undelivered)
    with hot().open(str(tmp_path), sink=sink) as op:
        op.add_messages(readings([90]))
    assert len(undelivered.panes) == 1 and not mailbox.mails


def test_rows_are_routed_by_a_column(tmp_path: Path) -> None:
    mail, log = wr.sinks.memory(), wr.sinks.memory()
    actions = {"mail": wr.Action(cancel=False), "log": wr.Action(), "chat": wr.Action(open=False)}
    sink = wr.sinks.route(
        "action", {"mail": mail, "chat": wr.sinks.parquet(str(tmp_path / "out"))}, other=log
    )
    with hot(actions=actions).open(str(tmp_path / "job"), sink=sink) as op:
        op.add_messages(readings([90, 70]))
    assert [row["status"] for row in mail.panes] == ["OPEN"]
    assert [row["status"] for row in log.panes] == ["OPEN", "CANCEL"]
    assert wr.read_panes(str(tmp_path / "out")).column("status").to_pylist() == ["CANCEL"]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: wr.sinks.webhook(), "url_env"),
        (lambda: wr.sinks.webhook("ftp://x"), "http://"),
        (lambda: wr.sinks.webhook("http://x:port/"), "http://"),
        (lambda: wr.sinks.webhook("http://x/a b"), "without spaces"),
        (lambda: wr.sinks.webhook("http:///x"), "http://host"),
        (lambda: wr.sinks.webhook("http://x", headers={"X-A": "a\nb"}), "X-A"),
        (lambda: wr.sinks.webhook("http://x", headers={"X-A": 3}), "X-A"),  # type: ignore[dict-item]
        (lambda: wr.sinks.webhook("http://x", attempts=0), "attempts"),
        (lambda: wr.sinks.email("a@b", server="x", subject="{status"), "subject="),
        (lambda: wr.sinks.email("a@b", server="x", body="{status!z}"), "conversion"),
        (lambda: wr.sinks.email("a@b", server="x", sender="a@b\nBcc: c@d"), "sender="),
        (lambda: hot().open("x", sink=wr.sinks.webhook("http://x", secret_env="WINDROW_NO_SUCH")), "NO_SUCH"),
        (lambda: wr.sinks.email("nobody", server="x"), "nobody"),
        (lambda: hot(actions={"mail": wr.Action()}).open("x", sink=wr.sinks.route("action", {})), "mail"),
        (lambda: hot().open("x", sink=wr.sinks.route("rule", {})), "rule"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(make: Any, names: str) -> None:
    with pytest.raises(wr.ConfigurationError, match=names):
        make()
