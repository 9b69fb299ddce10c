"""The first, second and third Ctrl-C during a command that has work to finish."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable

import pytest
import trio

from anabranch.cli import consume, produce
from anabranch.protocol.types import TopicPartition
from anabranch.runtime import interrupts
from anabranch.runtime.interrupts import REMIND_S, TOGETHER_S, Interrupts
from tests.unit.client.fake_broker import SILENCE, FakeBroker, Fault


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.001)  # polls: the effects of a signal handler


@pytest.mark.trio
async def test_the_first_signal_finishes_the_work_and_the_second_abandons_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done: list[str] = []
    async with Interrupts() as given:
        given.on_first(lambda: done.append("first"))
        given.on_second(lambda: done.append("second"), lambda: "an answer")
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: done)
        os.kill(os.getpid(), signal.SIGTERM)  # `timeout` sends two signals at once
        await trio.sleep(2 * TOGETHER_S)  # pause: closer signals count as one
        assert (done, given.status, given.gave_up) == (["first"], 143, False)
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: len(done) == 2)
    assert (done, given.status, given.gave_up) == (["first", "second"], 143, True)


@pytest.mark.trio
async def test_a_wait_after_a_signal_is_reported_and_ends_at_its_limit(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    given_up = trio.Event()
    async with Interrupts() as given:
        given.on_second(given_up.set, lambda: "an answer", limit_s=10)
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep(REMIND_S - 0.1)  # virtual time: autojump_clock
        assert capsys.readouterr().err == ""
        await given_up.wait()
    assert trio.current_time() == pytest.approx(10)
    assert (
        capsys.readouterr().err == "anabranch: waiting at most 10 s for an answer; press Ctrl-C again to stop waiting\n"
    )


def test_a_second_signal_ends_a_command_that_waits_for_nothing_without_a_traceback() -> None:
    script = (
        "import anyio; from anabranch.runtime.interrupts import Interrupts\n"
        "async def run():\n"
        "    async with Interrupts() as given:\n"
        "        given.on_first(lambda: print('first', flush=True))\n"
        "        print('ready', flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(run)\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "first\n"
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(TOGETHER_S)
            except subprocess.TimeoutExpired:
                continue
        assert (process.returncode, process.stderr.read()) == (-signal.SIGINT, "")


@pytest.mark.trio
async def test_a_second_signal_makes_produce_report_unacknowledged_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interrupts, "REMIND_S", 0.0)
    broker = FakeBroker({"t": 1})
    reading, writing = os.pipe()
    ended: list[int] = []

    async def run() -> None:
        ended.append(await produce._produce("t", broker.address, produce.Lines(), {}, as_json=False))

    with os.fdopen(reading) as stdin, os.fdopen(writing, "wb", buffering=0) as lines:
        monkeypatch.setattr(sys, "stdin", stdin)
        async with broker.running(), trio.open_nursery() as nursery:
            nursery.start_soon(run)
            lines.write(b"1\n")
            await until(lambda: broker.logs[TopicPartition("t", 0)].end_offset == 1)
            broker.faults[TopicPartition("t", 0)] = deque([Fault(SILENCE)])
            lines.write(b"2\n3\n")
            await until(lambda: not broker.faults[TopicPartition("t", 0)])
            os.kill(os.getpid(), signal.SIGINT)
            output: list[str] = []

            def is_reminded() -> bool:
                output.append(capsys.readouterr().err)
                return "waiting" in output[-1]

            await until(is_reminded)
            await trio.sleep(2 * TOGETHER_S)  # pause: closer signals count as one
            os.kill(os.getpid(), signal.SIGINT)
    assert ended == [130]
    assert (
        "".join(output)
        == "anabranch: waiting for the acknowledgements of 2 records; press Ctrl-C again to stop waiting\n"
    )
    given_up = "interrupted: 1 record was written; 2 records were not acknowledged, and may have been written\n"
    assert capsys.readouterr().err == given_up


class GroupThatNeverAnswers:
    """A consumer that never finishes leaving its group."""

    def __init__(self, **_: object) -> None:
        self.entered = trio.Event()

    async def __aenter__(self) -> GroupThatNeverAnswers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.sleep_forever()


@pytest.mark.trio
async def test_consume_stops_waiting_for_its_group_after_a_limit(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nothing(*_: object, **__: object) -> None:
        return

    async def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    monkeypatch.setattr(consume, "Consumer", GroupThatNeverAnswers)
    for name, replaced in (("_check_topics", nothing), ("_begin", nothing), ("_print", interrupted)):
        monkeypatch.setattr(consume, name, replaced)
    reading = consume.Reading(("t",), consume.Start(), lambda record: b"", None, None, in_group=True)
    assert await consume._consume("h:1", {"group_id": "g"}, reading) == 130
    assert trio.current_time() == pytest.approx(consume.LEAVE_LIMIT_S)
    assert capsys.readouterr().err.endswith(
        "anabranch: the last positions of group g are perhaps not committed: its coordinator did not answer\n"
    )
