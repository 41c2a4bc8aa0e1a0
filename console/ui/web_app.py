"""Web application of the page: addresses, templates, JSON by `Accept`, live parts, and who may read."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from windrow.console import views
from windrow.console.text import long, readable
from windrow.console.ui import cells
from windrow.console.ui.job_reader import JobReader
from windrow.console.ui.page_models import VIEWS, Content, number_in
from windrow.core.errors import WindrowError
from windrow.core.positions import shown_source
from windrow.core.show import json_text
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.drawing.theme import stylesheet

HERE = Path(__file__).parent
COOKIE = "windrow"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: Views in the order of the navigation; tables and what hangs on one window are reached from these.
NAVIGATION = (
    ("", "Overview"),
    ("commits", "Commits"),
    ("watermark", "Watermark"),
    ("dead-letters", "Dead letters"),
    ("explain", "Explain"),
)


def web_app(readers: Mapping[str, JobReader], *, hosts: Sequence[str], token: str | None) -> ASGIApp:
    """Return the application. hosts: the names that it answers to; token: what other machines have to know."""
    pages = _Pages(readers)

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        opening = asyncio.gather(
            *(reader.poll() for reader in readers.values())
        )  # before the first reader comes
        yield
        await opening
        for reader in readers.values():
            reader.close()

    async def pictures_css(request: Request) -> Response:
        return Response(stylesheet(), media_type="text/css")

    app = Starlette(
        routes=[
            Route("/", pages.jobs, methods=["GET"]),
            Route("/jobs/{job}", pages.view, methods=["GET"]),
            Route("/jobs/{job}/events", pages.events, methods=["GET"]),
            Route("/jobs/{job}/{view}", pages.view, methods=["GET"]),
            Route("/static/pictures.css", pictures_css, methods=["GET"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False),
        ],
        exception_handlers={HTTPException: pages.refused, Exception: pages.failed},
        lifespan=life,
    )
    return _Guarded(app, token)


class _Guarded:
    """Adds the headers of every answer. Where there is a token, only a reader that showed it once is let in."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._answer(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a reader who is not known, or shows the token; None to one who is known."""
        if self._token is None or _same(request.cookies.get(COOKIE), self._token):
            return None
        if request.method == "GET" and _same(request.query_params.get("token"), self._token):
            answer = RedirectResponse(str(request.url.remove_query_params("token")), 303)
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        return Response(
            "Open the address that `windrow ui` printed: it has a token.\n", 403, media_type="text/plain"
        )


def _same(shown: str | None, token: str) -> bool:
    return shown is not None and hmac.compare_digest(shown.encode(), token.encode())


class _Pages:
    """The views of all jobs."""

    def __init__(self, readers: Mapping[str, JobReader]) -> None:
        self._readers = readers
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    # -- answers ----------------------------------------------------------------------------------------------------

    async def jobs(self, request: Request) -> Response:
        """Answer with all jobs and their health; of a single job with its overview."""
        rows = []
        for reader in self._readers.values():
            await reader.poll()
            rows.append(await reader.run(partial(_status, reader, None)))
        if len(rows) == 1 and not _wants_json(request):
            return RedirectResponse(cells.Links(rows[0]["name"]).to(), 307)
        shown = {"jobs": rows, "title": "Jobs", "template": "jobs.html", "job": None}
        data = {"jobs": [row["facts"] | {"name": row["name"], "error": row["error"]} for row in rows]}
        return self._answer(request, data, shown, 200)

    async def view(self, request: Request) -> Response:
        """Answer with a view of a job."""
        reader = self._reader(request)
        name = request.path_params.get("view", "")
        if name not in VIEWS:
            raise HTTPException(404, f"There is no view {name!r} of a job")
        await reader.poll()
        content, frame, code = await reader.run(partial(_content, reader, name, dict(request.query_params)))
        data = {"job": frame["status"]["facts"], "as_of": frame["commit"], **content.data}
        if code != 200:
            data = {"error": content.data["error"]}
        shown = {**frame, **content.shown, "title": content.title, "template": content.template, "view": name}
        return self._answer(request, data, shown, code)

    async def events(self, request: Request) -> Response:
        """Answer with the numbers of commits, as they come."""
        reader = self._reader(request)

        async def stream() -> AsyncIterator[str]:
            async for number in reader.news():
                yield f"data: {number}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def refused(self, request: Request, error: Exception) -> Response:
        """Answer where there is nothing, or nothing for this method."""
        code = error.status_code if isinstance(error, HTTPException) else 500
        said = error.detail if isinstance(error, HTTPException) else str(error)
        return self._error(request, said, code)

    async def failed(self, request: Request, error: Exception) -> Response:
        """Answer where the server is at fault."""
        return self._error(request, f"{type(error).__name__}: {error}", 500)

    def _error(self, request: Request, said: str, code: int) -> Response:
        shown = {"title": "Not found" if code == 404 else "Error", "template": "error.html", "job": None}
        return self._answer(request, {"error": said}, {**shown, "error": readable(said), "remedy": ""}, code)

    def _reader(self, request: Request) -> JobReader:
        name = request.path_params["job"]
        if name not in self._readers:
            raise HTTPException(404, f"There is no job {name!r} here: it is one of {list(self._readers)}")
        return self._readers[name]

    def _answer(
        self, request: Request, data: Mapping[str, Any], shown: Mapping[str, Any], code: int
    ) -> Response:
        if _wants_json(request):
            return Response(json_text(data, _plain), code, media_type="application/json")
        template = "part.html" if "x-part" in request.headers else "document.html"
        page = self._templates.get_template(template)
        text = page.render(**shown, navigation=NAVIGATION, several=len(self._readers) > 1)
        return HTMLResponse(text, code)


def _wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return request.query_params.get("format") == "json" or "application/json" in accepted


def _plain(value: Any) -> str:
    """Format a value that JSON lacks, as the commands do."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


# -- in the job's thread --------------------------------------------------------------------------------------------


def _status(reader: JobReader, links: cells.Links | None) -> dict[str, Any]:
    """Return how a job is."""
    links = cells.Links(reader.name) if links is None else links
    health = reader.health()
    status: dict[str, Any] = {
        "name": reader.name,
        "location": reader.location,
        "href": links.to(),
        "events": cells.Links(reader.name).to("events"),
        "error": None if reader.error is None else readable(reader.error),
        "since": cells.time(reader.since_us) if reader.error else "",
        "facts": {"location": reader.location},
        "stalled": "",
        "pairs": [],
        "commit": 0,
    }
    if reader.state is None or health is None:
        return status
    stalled = reader.stalled_since(health)
    known = START_OF_TIME_US < health.watermark_us < END_OF_TIME_US
    held = health.held_by
    commits = reader.state.look.state.last_commit
    age = "" if health.age_us is None else f"{long(health.age_us)} ago"
    pairs = [
        ("Commit", f"{health.commit:,}" if health.commit else "none yet", age),
        (
            "Watermark",
            cells.time(health.watermark_us) if known else "none yet" if commits is None else "end of time",
            "" if health.lag_us is None else _lag(health.lag_us),
        ),
        (
            "Held back by",
            "nothing" if held is None else f"{cells.source_name(shown_source(held[0]))} / {held[1]}",
            "",
        ),
        ("Unpublished", f"{health.unpublished:,}", "commits"),
        ("Since snapshot", f"{health.since_snapshot:,}", "commits"),
    ]
    status |= {
        "facts": views.health_facts(reader.state.look, health),
        "stalled": "" if stalled is None else cells.time(stalled),
        "pairs": pairs,
        "commit": health.commit,
        "job": reader.state.job,
        "driver": readable(reader.state.look.epoch.driver),
        "opened": cells.time(reader.state.look.epoch.opened_us),
        "age": age,
    }
    return status


def _lag(us: int) -> str:
    return f"{long(abs(us))} {'ahead of' if us < 0 else 'behind'} the clock"


def _content(reader: JobReader, view: str, parameters: dict[str, str]) -> tuple[Content, dict[str, Any], int]:
    """Return a view, its frame, and the status of the answer."""
    commit, wrong = None, None
    try:
        commit = number_in(parameters, "as_of", 1) if "as_of" in parameters else None
    except WindrowError as error:
        wrong = error
    links = cells.Links(reader.name, {} if commit is None else {"as_of": commit})
    frame: dict[str, Any] = {
        "job": reader.name,
        "links": links,
        "status": _status(reader, links),
        "commit": commit or 0,
        "as_of": commit,
        "look_back": None,
        "live": reader.state is not None and commit is None,
        "now": cells.Links(reader.name).to(
            view, **{n: v for n, v in parameters.items() if n not in ("as_of", "format")}
        ),
    }
    try:
        if wrong is not None:
            raise wrong
        state = reader.as_of(commit)
        newest = reader.as_of(None)
        readable_commits = newest.readable_commits()
        if readable_commits:
            asked = {n: v for n, v in parameters.items() if n not in ("as_of", "format", "page")}
            frame["look_back"] = (readable_commits[0], readable_commits[-1], asked)
        frame["commit"] = state.commit
        return VIEWS[view](state, links, parameters), frame, 200
    except LookupError as error:
        said = error.args[0] if error.args else None
    except (WindrowError, OSError) as error:
        said = str(error)
    text = readable(said or "The job cannot be read")
    gone = reader.state is None
    shown = {"error": text, "remedy": "" if gone or commit is None else frame["now"]}
    return Content("Error", "error.html", {"error": text}, shown), frame, 503 if gone else 400
