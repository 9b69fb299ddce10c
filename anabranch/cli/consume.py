"""``anabranch consume``: records on standard output."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from typing import Any, Literal

import anyio

from anabranch import Consumer, TopicPartition
from anabranch.cli.logs import show_warnings
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Int, Settings, client_settings
from anabranch.cli.record_text import TextFormat, to_json
from anabranch.command_error import CommandError

POLL_MS = 200


def consume(
    *topics: str,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    group: str | None = None,
    from_beginning: bool = False,
    partition: Int | None = None,
    offset: Int | None = None,
    max_messages: Int | None = None,
    timeout_ms: Int | None = None,
    format: Literal["text", "json"] = "text",
    key_separator: str | None = None,
    print_place: bool = False,
    print_timestamp: bool = False,
    print_headers: bool = False,
    set_: Settings = None,
) -> int:
    """Print records until Ctrl-C, --max-messages, or --timeout-ms without a new one.

    Parameters
    ----------
    topics
        One topic or more.
    group
        Join this consumer group and commit; without it nothing is committed.
    from_beginning
        Start at the earliest offset where the group has committed none.
    partition
        Only this partition, without a group.
    offset
        Where to start in --partition.
    max_messages
        Stop after so many.
    timeout_ms
        Stop when nothing came for so long.
    format
        text, or json: one object a line.
    key_separator
        Print the key, then this text, then the value.
    print_place
        Partition and offset in front.
    print_timestamp
        The timestamp in front.
    print_headers
        The headers in front.
    set_
        A consumer config, e.g. isolation_level=read_committed; may be given many times.
    """
    if not topics:
        raise CommandError("name a topic: anabranch consume TOPIC")
    if partition is not None and (group is not None or len(topics) != 1):
        raise CommandError("--partition reads one topic without a group")
    if offset is not None and partition is None:
        raise CommandError("--offset needs --partition")
    separator = None if key_separator is None else key_separator.encode()
    text = TextFormat(separator, print_place, print_timestamp, print_headers)
    show: Callable[[Any], bytes] = (lambda record: to_json(record).encode()) if format == "json" else text.line
    settings: dict[str, Any] = {
        "group_id": group,
        "auto_offset_reset": "earliest" if from_beginning else "latest",
        "enable_auto_commit": group is not None,
        "client_id": f"anabranch-consume-{uuid.uuid4().hex[:8]}",
        **client_settings(set_),
    }

    async def run() -> None:
        async with Consumer(bootstrap_servers=bootstrap_server, **settings) as consumer:
            await _choose(consumer, topics, group, partition, offset)
            await _print(consumer, show, max_messages, timeout_ms)

    show_warnings()
    anyio.run(run)
    return 0


async def _choose(
    consumer: Consumer, topics: tuple[str, ...], group: str | None, partition: int | None, offset: int | None
) -> None:
    """Subscribe with a group; without one take every partition, or the one asked for."""
    if group is not None:
        consumer.subscribe(list(topics))
        return
    assigned = []
    for topic in topics:
        existing = await consumer.partitions_for_topic(topic)
        if not existing:
            raise CommandError(f"topic {topic} does not exist; anabranch topics create {topic}")
        if partition is not None and partition not in existing:
            raise CommandError(f"topic {topic} has partitions 0 to {max(existing)}, not {partition}")
        wanted = sorted(existing) if partition is None else [partition]
        assigned += [TopicPartition(topic, number) for number in wanted]
    consumer.assign(assigned)
    if offset is not None:
        consumer.seek(assigned[0], offset)


async def _print(
    consumer: Consumer, show: Callable[[Any], bytes], max_messages: int | None, timeout_ms: int | None
) -> None:
    out = sys.stdout.buffer
    printed = 0
    last = anyio.current_time()
    while max_messages is None or printed < max_messages:
        limit = None if max_messages is None else max_messages - printed
        batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=limit)
        for records in batches.values():
            for record in records:
                out.write(show(record) + b"\n")
            printed += len(records)
        if batches:
            out.flush()
            last = anyio.current_time()
        elif timeout_ms is not None and (anyio.current_time() - last) * 1000 >= timeout_ms:
            return
