"""``anabranch produce``: standard input as records."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, Literal

import anyio
import anyio.to_thread

from anabranch import Producer
from anabranch.cli.errors import CommandError
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Settings
from anabranch.cli.record_text import Input, InputError, parse_json, parse_text

LINES_AT_ONCE_BYTES = 1 << 20
MAX_UNCONFIRMED = 10_000


def produce(
    topic: str,
    *,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    key_separator: str | None = None,
    format: Literal["text", "json"] = "text",
    set_: Settings = None,
) -> int:
    """Write each line of standard input as a record; exit status 0 when every one was acknowledged.

    Parameters
    ----------
    topic
        The topic.
    key_separator
        Text between key and value; without it a line is a value with no key.
    format
        text, or json: one object a line with value, key, headers, partition, timestamp.
    set_
        A producer config, e.g. compression_type=zstd or acks=1; may be given many times.
    """
    if format == "json" and key_separator is not None:
        raise CommandError("--key-separator is for text; a JSON line has its own key field")
    separator = None if key_separator is None else key_separator.encode()
    return anyio.run(_produce, topic, bootstrap_server, separator, format, client_settings(set_))


async def _produce(topic: str, bootstrap: str, separator: bytes | None, format: str, settings: dict[str, Any]) -> int:
    waiting: deque[tuple[int, Any]] = deque()
    async with Producer(bootstrap_servers=bootstrap, **settings) as producer:
        number = 0
        while lines := await anyio.to_thread.run_sync(sys.stdin.buffer.readlines, LINES_AT_ONCE_BYTES):
            for line in lines:
                number += 1
                record = _parse(line.rstrip(b"\r\n"), number, separator, format)
                handle = await producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                waiting.append((number, handle))
                if len(waiting) > MAX_UNCONFIRMED:
                    await waiting.popleft()[1]
        for _, handle in waiting:
            await handle
    return 0


def _parse(line: bytes, number: int, separator: bytes | None, format: str) -> Input:
    try:
        return parse_json(line) if format == "json" else parse_text(line, separator)
    except InputError as error:
        raise CommandError(f"line {number} of standard input: {error}") from error


def client_settings(settings: list[str] | None) -> dict[str, Any]:
    """``key=value`` pairs as client configs; dots in Kafka's names become underscores."""
    parsed = {}
    for setting in settings or []:
        key, separator, value = setting.partition("=")
        if not separator:
            raise CommandError(f"--set {setting}: expected key=value, e.g. --set compression_type=zstd")
        parsed[key.replace(".", "_")] = value
    return parsed
