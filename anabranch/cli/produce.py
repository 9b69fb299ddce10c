"""``anabranch produce``: writes the lines of standard input as records."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from cyclopts import Parameter

from anabranch import ClientClosedError, KafkaError, NewTopic, Producer, RecordHandle, RefusedWithBatchError
from anabranch.cli.admin import existing_topics, with_admin
from anabranch.cli.errors import message_of
from anabranch.cli.input_lines import read_lines
from anabranch.cli.logs import warnings_shown
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, JsonFlag, Settings, api_timeout_ms, client_settings
from anabranch.cli.output import print_json
from anabranch.client.config import ProducerConfig
from anabranch.command_error import CommandError, UsageError
from anabranch.runtime.interrupts import Interrupts
from anabranch.view.record_text import Input, InputError, parse_json, parse_text

MAX_UNCONFIRMED_READS = 64
"""How many pieces of input, 64 KiB each, may wait for the acknowledgements of their records."""


def produce(
    topic: str,
    *,
    create: Annotated[bool, Parameter(negative=())] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    key_separator: str | None = None,
    format: Literal["text", "json"] = "text",
    set_: Settings = None,
    json_: JsonFlag = False,
) -> int:
    """Write each line of standard input as a record, as soon as the line is complete.

    Exit status 0 when every record was acknowledged. The command ends at a line that is not a valid record, at a
    refused record, and at Ctrl-C. The records before are written, and a line on standard error has their number.

    Parameters
    ----------
    topic
        The topic. If it does not exist, the command asks on a terminal whether to create it, and ends elsewhere.
    create
        Create the topic if it does not exist, with the brokers' defaults, without a question.
    key_separator
        Text between key and value; without it a line is a value with no key.
    format
        text, or json: one object a line with value, key, headers, partition, timestamp.
    json_
        At the end, print the number of written records and the failed lines as JSON.
    set_
        A producer config, e.g. compression_type=zstd or acks=1; may be given many times.
    """
    if format == "json" and key_separator is not None:
        raise UsageError("--key-separator is for text; a JSON line has its own key field")
    if key_separator == "":
        raise UsageError("--key-separator is empty")
    if sys.stdin is None:
        raise CommandError("standard input is closed; there is nothing to read")
    separator = None if key_separator is None else key_separator.encode()
    settings = client_settings(set_)
    config = ProducerConfig.parse({"bootstrap_servers": bootstrap_server, **settings})  # a wrong one sends no request
    limit_ms = min(api_timeout_ms(), config.max_block_ms)
    _, missing = with_admin(bootstrap_server, lambda admin: existing_topics(admin, [topic]), timeout_ms=limit_ms)
    if missing:
        agree_to_create(topic, create=create)
        with_admin(bootstrap_server, lambda admin: admin.create_topics([NewTopic(topic)]))
    with warnings_shown():
        return anyio.run(_produce, topic, bootstrap_server, Lines(separator, format), settings, json_)


def agree_to_create(topic: str, *, create: bool) -> None:
    """Return if a missing topic is to be created: by ``--create``, or by an answer on the terminal. Else raise."""
    if create:
        print(f"anabranch: creating topic {topic} with the brokers' defaults", file=sys.stderr)
        return
    if sys.stderr.isatty():
        with suppress(OSError), open("/dev/tty", "r+b", buffering=0) as terminal:  # standard input has the records
            terminal.write(f"topic {topic} does not exist. Create it with the brokers' defaults [y/N]? ".encode())
            if terminal.readline().strip().lower() in (b"y", b"yes"):
                return
            raise CommandError(f"topic {topic} was not created, and no record was written")
    raise CommandError(f"topic {topic} does not exist; --create creates it, anabranch topics list shows those that do")


@dataclass(frozen=True, slots=True)
class Lines:
    """The format of input lines, and their parser."""

    separator: bytes | None = None
    format: str = "text"

    def parse(self, line: bytes) -> Input:
        return parse_json(line) if self.format == "json" else parse_text(line, self.separator)


Sent = tuple[int, Input, RecordHandle]


@dataclass(slots=True)
class Writing:
    """Writes lines to a topic. ``failures`` are the lines that were not written, with their errors."""

    producer: Producer
    topic: str
    lines: Lines
    unsettled: int = 0
    """How many sent records have no outcome yet."""
    given_up: int = 0
    """The value of ``unsettled`` when ``give_up`` was called."""
    written: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    refused_with_others: list[tuple[int, Input]] = field(default_factory=list)
    stop: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """The scope of the reading; cancelling it ends the input."""

    async def run(self, source: AsyncIterator[list[bytes]]) -> None:
        """Write until the source ends, a line fails, or ``stop`` is cancelled. Then wait for the sent records."""
        into, out = anyio.create_memory_object_stream[list[Sent]](MAX_UNCONFIRMED_READS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._confirm, out)
            async with into:
                with self.stop:
                    await self._read(source, into)
        while self.refused_with_others:
            again, self.refused_with_others = self.refused_with_others, []
            for sent in [(number, record, await self._send(record)) for number, record in again]:
                await self._settle(sent)
        self.failures.sort()

    async def _read(self, source: AsyncIterator[list[bytes]], into: ObjectSendStream[list[Sent]]) -> None:
        await self.producer.partitions_for(self.topic)  # no input is read before the topic is known to exist
        number = 0
        async for lines in source:
            sent: list[Sent] = []
            try:
                with anyio.CancelScope(shield=True):  # sent records are confirmed even if reading ends here
                    for line in lines:
                        number += 1
                        if self.stop.cancel_called:
                            return
                        record = self.lines.parse(line)
                        sent.append((number, record, await self._send(record)))
            except (InputError, KafkaError, ClientClosedError) as error:
                self.failures.append((number, message_of(error)))
                return
            finally:
                with anyio.CancelScope(shield=True):
                    await into.send(sent)

    async def _send(self, record: Input) -> RecordHandle:
        if record.partition is not None:
            existing = await self.producer.partitions_for(self.topic)
            if record.partition not in existing:
                raise InputError(
                    f"topic {self.topic} takes records in partitions 0 to {max(existing)}, not in {record.partition}"
                )
        handle = await self.producer.send(
            self.topic,
            key=record.key,
            value=record.value,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
        )
        self.unsettled += 1
        return handle

    async def give_up(self) -> None:
        """Stop waiting for acknowledgements."""
        self.given_up = self.unsettled
        await self.producer.close(timeout_ms=0)

    async def _confirm(self, out: ObjectReceiveStream[list[Sent]]) -> None:
        async with out:
            async for chunk in out:
                for sent in chunk:
                    await self._settle(sent)

    async def _settle(self, sent: Sent) -> None:
        number, record, handle = sent
        try:
            await handle
        except RefusedWithBatchError:
            self.refused_with_others.append((number, record))
        except KafkaError as error:
            self.failures.append((number, message_of(error)))
            self.stop.cancel()
        else:
            self.written += 1
        finally:
            self.unsettled -= 1

    def as_json(self) -> dict[str, Any]:
        """The result for programs; ``failed`` are the lines that were not written, in order."""
        failed = [{"line": number, "message": why} for number, why in self.failures]
        return {"topic": self.topic, "written": self.written, "failed": failed}

    def report(self) -> str:
        """The result in one sentence."""
        written = f"{_records_were(self.written)} written"
        if not self.failures:
            return written
        number, why = self.failures[0]
        more = f" (and {len(self.failures) - 1} lines more)" if len(self.failures) > 1 else ""
        return f"line {number} of standard input{more}: {why}; {written}"

    def report_given_up(self) -> str:
        """The result in one sentence after ``give_up``."""
        return (
            f"{_records_were(self.written)} written; {_records_were(self.given_up)} not acknowledged, "
            "and may have been written"
        )


def _records(count: int) -> str:
    return f"{count} {'record' if count == 1 else 'records'}"


def _records_were(count: int) -> str:
    return f"{_records(count)} {'was' if count == 1 else 'were'}"


async def _produce(topic: str, bootstrap: str, lines: Lines, settings: dict[str, Any], as_json: bool) -> int:
    async with Interrupts() as interrupts, Producer(bootstrap_servers=bootstrap, **settings) as producer:
        writing = Writing(producer, topic, lines)
        interrupts.on_first(writing.stop.cancel)
        async with aclosing(read_lines(sys.stdin.fileno())) as source, anyio.create_task_group() as tasks:
            interrupts.on_second(
                lambda: tasks.start_soon(writing.give_up),
                lambda: f"the acknowledgements of {_records(writing.unsettled)}",
            )
            await writing.run(source)
    if as_json:
        print_json(writing.as_json())
    if interrupts.gave_up:
        print(f"interrupted: {writing.report_given_up()}", file=sys.stderr)
        return interrupts.status
    if writing.failures:
        raise CommandError(writing.report())
    if interrupts.status:
        print(f"interrupted: {writing.report()}", file=sys.stderr)
    return interrupts.status
