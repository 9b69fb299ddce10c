"""``anabranch consume``: records on standard output."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
from cyclopts import Parameter

from anabranch import Admin, Consumer, TopicPartition
from anabranch.cli.admin import absent_topic
from anabranch.cli.logs import warnings_shown
from anabranch.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    JsonFlag,
    Natural,
    Offset,
    Settings,
    api_timeout_ms,
    client_settings,
)
from anabranch.cli.progress import waiting
from anabranch.command_error import CommandError, UsageError
from anabranch.runtime.interrupts import Interrupts
from anabranch.view.record_text import FormatError, FormatString, TextFormat, to_json, to_tsv
from anabranch.view.times import milliseconds

POLL_MS = 200
LEAVE_LIMIT_S = 10.0
"""How long the command waits for the group's coordinator after Ctrl-C."""
TEXT, JSON, TSV = "text", "json", "tsv"


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin reading without a group: by default at the end."""

    partition: int | None = None
    offset: int | None = None
    tail: int | None = None
    timestamp_ms: int | None = None

    @property
    def is_given(self) -> bool:
        return any(value is not None for value in (self.partition, self.offset, self.tail, self.timestamp_ms))


def consume(
    *topics: str,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    group: str | None = None,
    from_beginning: bool = False,
    partition: Natural | None = None,
    offset: Offset | None = None,
    tail: Natural | None = None,
    from_timestamp: str | None = None,
    max_messages: Offset | None = None,
    timeout_ms: Offset | None = None,
    format: Annotated[str, Parameter(name=["--format", "-f"])] = TEXT,
    key_separator: str | None = None,
    print_place: bool = False,
    print_timestamp: bool = False,
    print_headers: bool = False,
    set_: Settings = None,
    json_: JsonFlag = False,
) -> int:
    r"""Print records until Ctrl-C, --max-messages, or --timeout-ms without a new one.

    Partitions that are added meanwhile are read from their start. After Ctrl-C or SIGTERM, the printed records are
    committed, and the group is left.

    Parameters
    ----------
    topics
        One topic or more.
    group
        Join this consumer group and commit; without it nothing is committed.
    from_beginning
        Start at the earliest offset, not the end, of partitions without a committed offset.
    partition
        Only this partition, without a group.
    offset
        The offset at which to start in --partition.
    tail
        Start this many offsets before the end of each partition, without a group.
    from_timestamp
        Start at the first record of each partition at or after this time, without a group: 2026-01-31T12:00:00Z (local
        time when it has no zone), or milliseconds since 1970.
    max_messages
        Stop after this many records.
    timeout_ms
        Stop when no record has come for this time.
    format
        text; json: one object a line; tsv: topic, partition, offset, timestamp, key and value with tabs between; or a
        format string as kcat's, e.g. '%t %p %o %k: %s\n': %s value, %S its length, %k key, %K its length,
        %T timestamp, %h headers, %t topic, %p partition, %o offset.
    key_separator
        Print the key, then this text, then the value.
    print_place
        Print partition and offset before each record.
    print_timestamp
        Print the timestamp before each record.
    print_headers
        Print the headers before each record.
    set_
        A consumer config, e.g. isolation_level=read_committed; may be given many times.
    """
    if not topics:
        raise UsageError("name a topic: anabranch consume TOPIC")
    start = Start(
        partition, offset, tail, None if from_timestamp is None else milliseconds("--from-timestamp", from_timestamp)
    )
    _check(start, topics, group, from_beginning=from_beginning)
    separator = None if key_separator is None else key_separator.encode()
    show = _printer(_format(format, json=json_), TextFormat(separator, print_place, print_timestamp, print_headers))
    settings: dict[str, Any] = {
        "group_id": group,
        "auto_offset_reset": "earliest" if from_beginning else "latest",
        "enable_auto_commit": group is not None,
        "client_id": f"anabranch-consume-{uuid.uuid4().hex[:8]}",
        "allow_auto_create_topics": False,
        **client_settings(set_),
    }

    reading = Reading(topics, start, show, max_messages, timeout_ms, in_group=group is not None)
    with warnings_shown():
        return anyio.run(_consume, bootstrap_server, settings, reading)


@dataclass(frozen=True, slots=True)
class Reading:
    """The topics to read, and how to print their records."""

    topics: tuple[str, ...]
    start: Start
    show: Callable[[Any], bytes]
    max_messages: int | None
    timeout_ms: int | None
    in_group: bool


async def _consume(bootstrap: str, settings: Mapping[str, Any], reading: Reading) -> int:
    """Read and print. Returns the exit status: 130 or 143 after a signal, else 0."""
    reader = Consumer(bootstrap_servers=bootstrap, **settings)
    async with Interrupts() as interrupts:
        with anyio.CancelScope() as scope:
            interrupts.on_first(scope.cancel)
            with waiting(f"waiting for {bootstrap}"):
                await _check_topics(bootstrap, reading.topics, reading.start.partition)
        if interrupts.status:
            return interrupts.status
        with anyio.CancelScope() as whole:
            interrupts.on_second(
                whole.cancel,
                lambda: "the group's coordinator to accept the last commit and the request to leave",
                limit_s=LEAVE_LIMIT_S,
            )
            async with reader as consumer:
                with anyio.CancelScope() as scope:
                    interrupts.on_first(scope.cancel)
                    await _begin(consumer, reading.topics, reading.start, in_group=reading.in_group)
                    await _print(consumer, reading.show, reading.max_messages, reading.timeout_ms)
        if interrupts.gave_up and reading.in_group:
            group = settings["group_id"]
            print(
                f"anabranch: the last positions of group {group} are perhaps not committed: "
                "its coordinator did not answer",
                file=sys.stderr,
            )
        return interrupts.status


def _check(start: Start, topics: tuple[str, ...], group: str | None, *, from_beginning: bool) -> None:
    if start.partition is not None and (group is not None or len(topics) != 1):
        raise UsageError("--partition needs exactly one topic, and no --group")
    if start.offset is not None and start.partition is None:
        raise UsageError("--offset needs --partition")
    if start.is_given and group is not None:
        raise UsageError(
            "--tail and --from-timestamp do not go with --group; anabranch groups reset-offsets sets a group's offsets"
        )
    if sum((start.offset is not None, start.tail is not None, start.timestamp_ms is not None, from_beginning)) > 1:
        raise UsageError("give only one of --from-beginning --offset --tail --from-timestamp")


def _format(text: str, *, json: bool) -> str:
    """The format by ``--format`` and ``--json``."""
    if json and text not in (TEXT, JSON):
        raise UsageError(f"give --json or --format {text}, not both")
    return JSON if json else text


def _printer(format: str, text: TextFormat) -> Callable[[Any], bytes]:
    """The function that formats a record for printing, with its line end."""
    if format != TEXT and text != TextFormat():
        raise UsageError(f"--key-separator and --print-... need --format text, not {format}")
    if format == JSON:
        return lambda record: to_json(record).encode() + b"\n"
    if format == TSV:
        return lambda record: to_tsv(record) + b"\n"
    if format == TEXT:
        return lambda record: text.line(record) + b"\n"
    if "%" not in format:
        raise UsageError(f"--format {format} is neither text, json, tsv nor a format string such as '%k %s\\n'")
    try:
        return FormatString(format).text
    except FormatError as error:
        raise UsageError(f"--format: {error}") from None


async def _check_topics(bootstrap: str, topics: Iterable[str], partition: int | None) -> None:
    """Raise ``CommandError`` for a missing topic or partition: a consumer would wait until it is created."""
    async with Admin(
        bootstrap_servers=bootstrap, client_id="anabranch-consume", default_api_timeout_ms=api_timeout_ms()
    ) as admin:
        existing = {listing.name for listing in await admin.list_topics()}
        for topic in topics:
            if topic not in existing:
                raise absent_topic(topic)
        if partition is None:
            return
        for name, described in (await admin.describe_topics(list(topics))).items():
            numbers = [one.partition for one in described.partitions]
            if partition not in numbers:
                raise CommandError(f"topic {name} has partitions {min(numbers)} to {max(numbers)}, not {partition}")


async def _begin(consumer: Consumer, topics: tuple[str, ...], start: Start, *, in_group: bool) -> None:
    """Subscribe to the topics, or assign the one partition, and seek to the start."""
    if start.partition is not None:
        consumer.assign([TopicPartition(topics[0], start.partition)])
    else:
        consumer.subscribe(list(topics))
    if in_group:
        return
    if start.partition is None:
        for topic in topics:
            await consumer.partitions_for_topic(topic)
    chosen = sorted(consumer.assignment())
    ends = await consumer.end_offsets(chosen)
    if start.timestamp_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(chosen, start.timestamp_ms))
        for tp, at in found.items():
            consumer.seek(tp, ends[tp] if at is None else at.offset)
    if start.tail is not None or start.offset is not None:
        begins = await consumer.beginning_offsets(chosen)
        for tp in chosen:
            if start.tail is not None:
                consumer.seek(tp, max(begins[tp], ends[tp] - start.tail))
            elif start.offset is not None:
                if not begins[tp] <= start.offset <= ends[tp]:
                    raise CommandError(f"--offset {start.offset}: {tp} has offsets {begins[tp]} to {ends[tp]}")
                consumer.seek(tp, start.offset)


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
                out.write(show(record))
            printed += len(records)
        if batches:
            out.flush()
            last = anyio.current_time()
        elif timeout_ms is not None and (anyio.current_time() - last) * 1000 >= timeout_ms:
            return
