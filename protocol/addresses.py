"""Addresses as ``host:port`` in configurations, flags and messages; an IPv6 host is in brackets."""

from __future__ import annotations

import re

MAX_PORT = 65_535
_HOST = re.compile(r"(?:\[([^][]+)]|([^][:]+))(?::[0-9]*)?")


def split_address(text: str) -> tuple[str, int]:
    """Host without brackets, and port. The host may be empty, the port 0. Raises ``ValueError`` for any other text."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def host_of(text: str) -> str:
    """The host, without brackets, of an address whose port may be absent or empty, as in HTTP (RFC 9110, section 7.2).

    Empty for any other text, also for an IPv6 host without brackets: its last group could be a port.
    """
    found = _HOST.fullmatch(text)
    return "" if found is None else found[1] or found[2]


def join_address(host: str, port: int) -> str:
    """Join host and port to a text that ``split_address`` parses."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
