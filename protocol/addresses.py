"""``host:port``, as configurations, flags and peers have it; an IPv6 host is in brackets."""

from __future__ import annotations

MAX_PORT = 65_535


def split_address(text: str) -> tuple[str, int]:
    """Host without brackets, and port. The host may be empty, and the port 0. Raises ``ValueError`` otherwise."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """The text that ``split_address`` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
