"""``produce`` and its input lines: when a line is sent, the effect of a bad line, and the reports."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from anabranch import ErrorCode, KafkaError, RefusedWithBatchError
from anabranch.cli.input_lines import LineSplitter, read_lines
from anabranch.cli.produce import Lines, Writing, agree_to_create, produce
from anabranch.command_error import CommandError

Outcome = KafkaError | None


class Handle:
    def __init__(self, outcome: Callable[[], Outcome]) -> None:
        self._outcome = outcome

    def __await__(self) -> Any:
        yield from trio.lowlevel.checkpoint().__await__()
        error = self._outcome()
        if error is not None:
            raise error


class FakeProducer:
    """A producer whose first ``batch`` records are one batch. If one record is ``bad``, the whole batch is refused."""

    def __init__(self, *, bad: bytes = b"", batch: int = 0) -> None:
        self.bad, self.batch = bad, batch
        self.sent: list[bytes] = []

    async def partitions_for(self, topic: str) -> list[int]:
        return [0, 1]

    async def send(self, topic: str, *, value: bytes, **_: Any) -> Handle:
        place = len(self.sent)
        self.sent.append(value)
        return Handle(lambda: self._outcome(place, value))

    def _outcome(self, place: int, value: bytes) -> Outcome:
        if value == self.bad:
            return KafkaError(ErrorCode.INVALID_TIMESTAMP, "too old")
        if place < self.batch and self.bad in self.sent[: self.batch]:
            return RefusedWithBatchError(ErrorCode.INVALID_TIMESTAMP, "others")
        return None


@pytest.mark.parametrize(
    ("setting", "limit_ms"), [("max_block_ms=3000", 3_000), ("max_block_ms=90000", 20_000), ("linger_ms=1", 20_000)]
)
def test_the_topic_is_looked_for_at_most_max_block_ms(
    monkeypatch: pytest.MonkeyPatch, setting: str, limit_ms: int
) -> None:
    def with_admin(bootstrap_server: str, work: object, *, timeout_ms: int) -> None:
        raise CommandError(f"asked for {timeout_ms} ms")

    monkeypatch.setattr("anabranch.cli.produce.with_admin", with_admin)
    with pytest.raises(CommandError, match=f"^asked for {limit_ms} ms$"):
        produce("t", set_=[setting])


async def source(*chunks: list[bytes]) -> AsyncIterator[list[bytes]]:
    for chunk in chunks:
        yield chunk


def test_pieces_of_any_size_make_the_same_lines() -> None:
    text = b"one\r\n\ntwo\nlast"
    for size in range(1, len(text) + 1):
        splitter = LineSplitter()
        lines = [line for at in range(0, len(text), size) for line in splitter.feed(text[at : at + size])]
        assert [*lines, *splitter.end()] == [b"one", b"", b"two", b"last"]
    assert LineSplitter().end() == []


@pytest.mark.trio
async def test_a_line_is_read_before_the_next_one_arrives() -> None:
    reading, writing = os.pipe()
    lines = read_lines(reading)
    try:
        for text in (b"1", b"2"):
            os.write(writing, text + b"\n")
            assert await anext(lines) == [text]
        os.write(writing, b"rest")
        os.close(writing)
        assert [chunk async for chunk in lines] == [[b"rest"]]
    finally:
        await lines.aclose()
        os.close(reading)


@pytest.mark.trio
async def test_lines_before_a_bad_one_are_written_and_counted() -> None:
    producer = FakeProducer()
    writing = Writing(producer, "t", Lines(format="json"))  # type: ignore[arg-type]
    await writing.run(source([b'{"value": "1"}', b'{"value": "2"}', b'{"valu": "3"}', b'{"value": "4"}']))
    assert producer.sent == [b"1", b"2"]
    assert writing.report() == (
        "line 3 of standard input: unknown field 'valu'; did you mean 'value'?; 2 records were written"
    )


@pytest.mark.trio
async def test_lines_refused_with_a_bad_one_are_sent_again() -> None:
    producer = FakeProducer(bad=b"bad", batch=3)
    writing = Writing(producer, "t", Lines())  # type: ignore[arg-type]
    await writing.run(source([b"1", b"bad", b"3"]))
    assert producer.sent == [b"1", b"bad", b"3", b"1", b"3"]
    assert writing.report() == "line 2 of standard input: INVALID_TIMESTAMP: too old; 2 records were written"


@pytest.mark.trio
async def test_a_missing_partition_is_an_error_at_once() -> None:
    producer = FakeProducer()
    writing = Writing(producer, "t", Lines(format="json"))  # type: ignore[arg-type]
    await writing.run(source([b'{"value": "1", "partition": 2}']))
    assert "line 1" in writing.report() and "partitions 0 to 1, not in 2; 0 records" in writing.report()


@pytest.mark.trio
async def test_lines_read_before_the_stop_are_written() -> None:
    producer = FakeProducer()
    writing = Writing(producer, "t", Lines())  # type: ignore[arg-type]

    async def endless() -> AsyncIterator[list[bytes]]:
        yield [b"1", b"2"]
        writing.stop.cancel()
        await trio.sleep_forever()

    await writing.run(endless())
    assert writing.report() == "2 records were written"


REFUSAL = "topic nope does not exist; --create creates it, anabranch topics list shows those that do"


def test_without_a_terminal_a_missing_topic_is_created_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    agree_to_create("nope", create=True)
    assert capsys.readouterr().err == "anabranch: creating topic nope with the brokers' defaults\n"
    with pytest.raises(CommandError) as refused:
        agree_to_create("nope", create=False)
    assert str(refused.value) == REFUSAL


ASKS = """
from anabranch.cli.produce import agree_to_create
from anabranch.command_error import CommandError

for topic in ("first", "second", "third", "fourth"):
    try:
        agree_to_create(topic, create=False)
        print("agreed to", topic)
    except CommandError as refused:
        print(refused)
"""


def test_a_terminal_is_asked_whether_to_create_a_topic() -> None:
    """The records come from a pipe, so the answer is read from the terminal."""
    child, controlling = pty.fork()
    if child == 0:  # pragma: no cover: another process
        os.execv(sys.executable, [sys.executable, "-c", ASKS])
    shown = b""
    for asked, answer in enumerate((b"y\n", b"\n", b"n\n", b"\x04"), 1):
        while shown.count(b"[y/N]? ") < asked:
            shown += os.read(controlling, 4096)
        os.write(controlling, answer)
    with suppress(OSError):  # Linux reports the end of the terminal as an error
        while more := os.read(controlling, 4096):
            shown += more
    os.close(controlling)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for topic in (b"first", b"second", b"third", b"fourth"):
        assert b"topic %s does not exist. Create it" % topic in shown
    assert b"agreed to first" in shown and shown.count(b"agreed") == 1
    assert shown.count(b"was not created") == 3
