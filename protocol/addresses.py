"""Addresses as ``host:port`` in configurations, flags and messages; an IPv6 host is in brackets."""

from __future__ import annotations

MAX_PORT = 65_535


def split_address(text: str) -> tuple[str, int]:
    """Host without brackets, and port. The host may be empty, the port 0. Raises ``ValueError`` for another text."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """The address as the text that ``split_address`` parses."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
