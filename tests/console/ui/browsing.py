"""A reader of the page without a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from windrow.console.ui.command import hosts_of, names_of
from windrow.console.ui.job_reader import JobReader
from windrow.console.ui.web_app import web_app


class Reader:
    """Asks the application for addresses, in this process."""

    def __init__(
        self, runner: asyncio.Runner, client: httpx.AsyncClient, jobs: Mapping[str, JobReader]
    ) -> None:
        self._runner, self._client, self.jobs, self.names = runner, client, jobs, list(jobs)

    def get(self, path: str, method: str = "GET", **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **options))

    def json(self, view: str = "", **parameters: Any) -> Any:
        """Return a view of the first job as JSON."""
        answer = self.get(self.address(view), params=parameters, headers={"Accept": "application/json"})
        return json.loads(answer.text)

    def html(self, view: str = "", **parameters: Any) -> str:
        answer = self.get(self.address(view), params=parameters)
        assert answer.headers["content-type"].startswith("text/html"), answer.text
        return answer.text

    def address(self, view: str) -> str:
        return f"/jobs/{self.names[0]}{f'/{view}' if view else ''}"


@contextmanager
def browsing(
    *locations: str, definition: Any = None, host: str = "127.0.0.1", token: str | None = None
) -> Iterator[Reader]:
    """A reader of the page of these jobs."""
    names = names_of(locations)
    readers: Mapping[str, JobReader] = {
        n: JobReader(n, at, definition) for n, at in zip(names, locations, strict=True)
    }
    app: Any = web_app(readers, hosts=hosts_of(host), token=token)
    with asyncio.Runner() as runner:
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        client = httpx.AsyncClient(transport=transport, base_url=f"http://{host}")
        try:
            yield Reader(runner, client, readers)
        finally:
            runner.run(client.aclose())
            for reader in readers.values():
                reader.close()
