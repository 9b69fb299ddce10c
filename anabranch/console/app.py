"""The console as an ASGI application: routes, live updates, forms, errors as pages."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import anyio
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, compile_path
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from anabranch import KafkaError
from anabranch.command_error import CommandError, UsageError
from anabranch.console import changes, pages
from anabranch.console.pages import Rendered
from anabranch.console.query import BadQueryError, Query
from anabranch.console.records import text_of
from anabranch.console.security import MAX_FORM_BYTES, REQUEST_S, Guard, is_token, new_token
from anabranch.console.tree import At, named_partitions
from anabranch.console.watch import NotThereError, UnreachableError, Watch
from anabranch.protocol.plurals import counted
from anabranch.view.amounts import duration, size
from anabranch.view.record_text import to_json

EVERY_S = 1.0
"""The interval at which an open page is updated."""
MOST_DONE = 100
"""The largest number of kept results of changes. A result is a sentence, which a page finds by its token."""
STREAMS = 100
"""The largest number of pages that are updated at once; other browsers are asked to try later."""


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """The console's settings. ``bootstrap`` is for clients. ``hosts``: further host names, besides the loopback's."""

    bootstrap: str
    hosts: Sequence[str] = ()
    allow_changes: bool = False


class Console:
    """Serves one cluster."""

    def __init__(self, watch: Watch, config: ConsoleConfig) -> None:
        self._watch, self._config = watch, config
        self._token = new_token()
        self._streams = 0
        self._done: dict[str, str] = {}
        self._templates = _templates()
        self._live = [(compile_path(path)[0], pages.PAGES[path]) for path in pages.LIVE]

    def app(self) -> ASGIApp:
        routes: list[Any] = [
            Route("/live", self._stream),
            Route("/healthz", _healthy),
            Route("/topics/{topic}/messages/download", self._download, methods=["GET"]),
            Route("/change/{change}", self._plan, methods=["GET"]),
            Route("/change/{change}/plan", self._plan, methods=["POST"]),
            Route("/change/{change}", self._make, methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("anabranch.console", "static")])),
            *(Route(path, self._shower(page), methods=["GET"]) for path, page in pages.PAGES.items()),
        ]
        errors = {404: self._not_found, 405: self._not_found}
        return Guard(Starlette(routes=routes, exception_handlers=errors), self._config.hosts)

    # ------------------------------------------------------------ pages

    def _shower(self, page: pages.Page) -> Any:
        async def show(request: Request) -> Response:
            return await self._answer(request, page)

        return show

    async def _answer(self, request: Request, page: pages.Page) -> Response:
        try:
            rendered = await page(self._watch, request.path_params, Query(_query_of(request)))
        except Exception as error:
            return self._failed(request, error)
        return HTMLResponse(self._render(rendered, _path_of(request), _query_of(request)))

    async def _download(self, request: Request) -> Response:
        """The records of a messages page as lines of JSON, which ``anabranch produce --format json`` reads."""
        try:
            found = await pages.download(self._watch, request.path_params, Query(_query_of(request)))
        except Exception as error:
            return self._failed(request, error)
        text = "".join(to_json(record) + "\n" for record in found.records)
        name = re.sub(r"[^A-Za-z0-9._-]", "_", request.path_params["topic"])
        got, cut = counted(len(found.records), "record"), len(found.records) < found.wanted
        name += f"-{got}{f' of {found.wanted}' if cut else ''}.jsonl".replace(" ", "-")
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(text.encode("utf-8", "replace"), headers=headers, media_type="application/x-ndjson")

    def _failed(self, request: Request, error: Exception) -> Response:
        status, text = _status_of(error)
        rendered = Rendered("error", {"status": status, "text": text})
        return HTMLResponse(self._render(rendered, _path_of(request), ""), status)

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        return self._failed(request, NotThereError(f"{_path_of(request)} is not a page of the console"))

    def _render(self, rendered: Rendered, path: str, query: str, *, only_live: bool = False) -> str:
        template = self._templates.get_template(f"{rendered.template}.html.jinja")
        asked = Query(query)
        values = {
            "path": path,
            "here": quote(path) + (f"?{query}" if query else ""),
            "config": self._config,
            "token": self._token,
            "done": self._done.get(asked.get("done", "")),
            "kept": {name: value for name, value in asked.items() if name not in ("done", "page")},
            "now": datetime.now(UTC).strftime("%H:%M:%S UTC"),
            "is_live": any(pattern.fullmatch(path) for pattern, _ in self._live),
            **rendered.values,
        }
        if not only_live:
            return template.render(values)
        return "".join(template.blocks["live"](template.new_context(values)))

    # ------------------------------------------------------------ live updates

    async def _stream(self, request: Request) -> Response:
        """Server-sent events: the live part of the page at ``path``, and how current it is, at each change."""
        quoted, _, query = request.query_params.get("path", "/").partition("?")
        path = unquote(quoted)
        found = next(((m.groupdict(), page) for pattern, page in self._live if (m := pattern.fullmatch(path))), None)
        if found is None:
            return PlainTextResponse(f"{path} has no live updates", 404)
        if self._streams >= STREAMS:
            return PlainTextResponse(
                f"{STREAMS} pages get live updates, which is the limit", 503, {"retry-after": "10"}
            )
        params, page = found

        async def events() -> AsyncIterator[str]:
            self._streams += 1  # counted only once this runs: a browser may disconnect before
            last = None
            try:
                while True:
                    try:
                        rendered = await page(self._watch, params, Query(query))
                        part = self._render(rendered, path, query, only_live=True)
                        news = {"html": part, "state": state_of(rendered.values)}
                        event = "data: " + json.dumps(news) + "\n\n"
                    except Exception as error:
                        event = "event: wrong\ndata: " + json.dumps(_status_of(error)[1]) + "\n\n"
                    yield event if event != last else ": as before\n\n"
                    last = event
                    await anyio.sleep(EVERY_S)
            finally:
                self._streams -= 1

        return StreamingResponse(events(), media_type="text/event-stream")

    # ------------------------------------------------------------ changes

    async def _plan(self, request: Request) -> Response:
        """Show a change without making it. Values that may be long or private come in the body of a POST."""
        change = changes.CHANGES.get(request.path_params["change"])
        if change is None:
            return await self._not_found(request, NotThereError(""))
        try:
            asked = _query_of(request) if request.method != "POST" else await _body(request)
            plan = await change.plan(self._watch, Query(asked), self._config.bootstrap)
        except Exception as error:
            return self._failed(request, error)
        return HTMLResponse(self._show_plan(request, plan, None))

    def _show_plan(self, request: Request, plan: changes.Plan, wrong: str | None) -> str:
        values = {"change": request.path_params["change"], "plan": plan, "wrong": wrong}
        return self._render(Rendered("change", values), _path_of(request), "")

    async def _make(self, request: Request) -> Response:
        change = changes.CHANGES.get(request.path_params["change"])
        if change is None:
            return await self._not_found(request, NotThereError(""))
        if not self._config.allow_changes:
            return self._failed(request, PermissionError("This console was started without --allow-changes."))
        try:
            form = Query(await _body(request))
        except Exception as error:
            return self._failed(request, error)
        if not is_token(form.get("token", ""), self._token):
            return self._failed(
                request, PermissionError("This form comes from an earlier run of the console: load its page again.")
            )
        try:
            plan = await change.plan(self._watch, form, self._config.bootstrap)
            if plan.refused is not None:
                return HTMLResponse(self._show_plan(request, plan, None), 409)
            try:
                done = await change.make(self._watch, plan, self._config.bootstrap)
            except (KafkaError, CommandError) as error:
                return HTMLResponse(self._show_plan(request, plan, str(error)), 409)
        except Exception as error:
            return self._failed(request, error)
        number = new_token()
        self._done[number] = done
        while len(self._done) > MOST_DONE:
            del self._done[next(iter(self._done))]
        return RedirectResponse(f"{plan.back}?done={number}", 303)


def _path_of(request: Request) -> str:
    """The decoded path. ``Request.url`` would cut it at a decoded ``?`` or ``#``, and drop line ends."""
    path: str = request.scope["path"]
    return path


def _query_of(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


class _Text(Convertor[str]):
    """The rest of a path. A group's id is any text, also with slashes and line ends, or empty."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", _Text())


class LateBodyError(Exception):
    """The body of a request did not arrive in time."""


async def _body(request: Request) -> str:
    """The form's body. Raises ``BadQueryError`` for a body that is too large, ``LateBodyError`` for a late one."""
    data = bytearray()
    try:
        with anyio.fail_after(REQUEST_S):
            async for part in request.stream():
                data += part
                if len(data) > MAX_FORM_BYTES:
                    raise BadQueryError(f"a form has at most {MAX_FORM_BYTES:,} bytes")
    except TimeoutError:
        raise LateBodyError(f"the form did not arrive within {REQUEST_S} s") from None
    return data.decode("utf-8", "replace")


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


def state_of(values: Mapping[str, Any]) -> str:
    """How current a live page with these values is."""
    if values.get("error"):
        return "not up to date"
    every_s = round(values.get("every_s", 0))
    return f"live, every {every_s} s" if every_s > EVERY_S else "live"


def _status_of(error: Exception) -> tuple[int, str]:
    """The HTTP status for an error, and a sentence about it."""
    if isinstance(error, BadQueryError | UsageError):
        return 400, str(error)
    if isinstance(error, PermissionError):
        return 403, str(error)
    if isinstance(error, NotThereError):
        return 404, str(error)
    if isinstance(error, LateBodyError):
        return 408, str(error)
    if isinstance(error, ClientDisconnect):
        return 400, "the browser closed the connection"
    if isinstance(error, UnreachableError):
        return 503, f"The cluster does not answer. {error}"
    if isinstance(error, KafkaError):
        return 502, f"{error.code.name}: {error.message}"
    if isinstance(error, CommandError):
        return 409, str(error)
    raise error


def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("anabranch.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        number=lambda value: "-" if value is None else f"{value:,.0f}",
        bytes=size,
        seconds=duration,
        plain=lambda value: "" if value is None else f"{value:.15g}",
        counted=lambda count, noun: f"- {noun}s" if count is None else counted(count, noun, form=","),
        time=lambda ms: _time_text(ms, "%Y-%m-%d %H:%M:%S"),
        when=_when,
        clock=lambda ms: "" if ms is None else _time_text(ms, "%m-%d %H:%M:%S"),
        text=lambda data: text_of(data, "text"),
        partitions=named_partitions,
        segment=lambda text: quote(str(text), safe=""),
        group_path=lambda text: quote(str(text)),
    )
    templates.globals["parts"] = templates.get_template("parts.html.jinja").module
    return templates


def _when(at: At | None) -> list[str]:
    """A time as one word or two."""
    if at is None:
        return ["unknown"]
    text = _time_text(at.ms, "%m-%d %H:%M:%S")
    return [text] if at.is_exact else ["before", text]


def _time_text(ms: int, form: str) -> str:
    """The time in UTC, or its milliseconds: a producer may set a time that no calendar has."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
