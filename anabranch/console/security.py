"""Protects the browser against other sites: against foreign host names, forged forms, and scripts in records.

- **Host**: another site can let its name resolve to this address (DNS rebinding). A request is refused if its Host is
  not one of the console's names.
- **Forms**: a change needs this process's token. If the browser sends an Origin, it must be the console's.
- **Content**: templates escape every value. The policy lets the page load its own two files, and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anabranch.protocol.addresses import host_of

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
MAX_FORM_BYTES = 1024 * 1024
REQUEST_S = 10
"""The time limit for receiving a request's head, and again for receiving its body."""


class Guard:
    """An ASGI application that passes on allowed requests, and adds the headers to every response."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        """``hosts``: the console's names without ports, in addition to the loopback's names."""
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if host_of(host).lower() not in self._hosts:
            await _refuse(send, 421, f"This console does not answer for {host!r}: start it with --allow-host NAME.")
        elif scope["method"] not in ("GET", "HEAD") and origin and origin.partition("://")[2] != host:
            await _refuse(send, 403, "This form was sent by a page of another site.")
        elif _length(headers.get(b"content-length", b"0")) > MAX_FORM_BYTES:
            await _refuse(send, 413, f"A form has at most {MAX_FORM_BYTES:,} bytes.")
        else:
            await self._app(scope, receive, _with_headers(send))


def _length(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else 0


def new_token() -> str:
    """A new random token for the forms of this process."""
    return secrets.token_urlsafe(32)


def is_token(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message["headers"], *own]}
        await send(message)

    return send_with_headers


async def _refuse(send: Send, status: int, why: str) -> None:
    send = _with_headers(send)
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": why.encode() + b"\n"})
