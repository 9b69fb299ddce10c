"""Addresses as ``host:port`` in configurations, flags and messages; an IPv6 host is in brackets."""

from __future__ import annotations

import re

MAX_PORT = 65_535
_MAX_SHOWN = 300
PLAINTEXT = "PLAINTEXT"
"""The security protocol of connections without TLS and SASL."""
_HOST = re.compile(r"(?:\[([^][]+)]|([^][:]+))(?::[0-9]*)?")


def split_address(text: str) -> tuple[str, int]:
    """Host without brackets, and port. The host may be empty, the port 0. Raises ``ValueError`` for any other text."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or "/" in host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def split_server(text: str) -> tuple[str, int]:
    """Host and port of a server that clients connect to: ``host:port`` or ``PLAINTEXT://host:port``, as Java takes it.

    Raises ``ValueError`` for any other text.
    """
    shown = repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
    scheme, separator, address = text.strip().rpartition("://")
    if separator and scheme.upper() != PLAINTEXT:
        raise ValueError(f"{shown} names another protocol than {PLAINTEXT}, which is the only one: give host:port")
    try:
        host, port = split_address(address)
    except ValueError:
        host, port = "", 0
    if not host or not port:
        raise ValueError(f"{shown} is not host:port")
    return host, port


def host_of(text: str) -> str:
    """The host, without brackets, of an address whose port may be absent or empty, as in HTTP (RFC 9110, section 7.2).

    Empty for any other text, also for an IPv6 host without brackets: its last group could be a port.
    """
    found = _HOST.fullmatch(text)
    return "" if found is None else found[1] or found[2]


def join_address(host: str, port: int) -> str:
    """Join host and port to a text that ``split_address`` parses."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
