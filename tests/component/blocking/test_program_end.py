"""A program with a blocking client ends: at its last line, by Ctrl-C, and when it leaves clients open."""

from __future__ import annotations

from collections import deque

import pytest

from anabranch import TopicPartition
from tests.component.blocking.conftest import Program
from tests.unit.client.fake_broker import SILENCE, FakeBroker, Fault

T = TopicPartition("t", 0)


@pytest.mark.parametrize("start", ["", "producer.start()"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_producer_that_is_left_open_sends_its_records_at_the_end(
    broker: FakeBroker, run_program: Program, start: str, backend: str
) -> None:
    done = run_program(f"""
        from anabranch.sync import Producer

        producer = Producer(bootstrap_servers=BOOTSTRAP, linger_ms=60_000, backend="{backend}")
        {start}
        for number in range(100):
            producer.send("t", b"%d" % number)
    """)
    assert (done.returncode, done.stdout) == (0, "")
    assert broker.logs[T].values() == [b"%d" % number for number in range(100)]
    (line,) = done.stderr.splitlines()
    assert line == "a Producer was not closed: the program waits up to 120 s for its last 100 records"


def test_a_program_without_a_broker_waits_for_delivery_timeout_ms(run_program: Program, broker: FakeBroker) -> None:
    broker.is_silent = True
    done = run_program("""
        from anabranch.sync import Consumer, Producer

        producer = Producer(bootstrap_servers=BOOTSTRAP, delivery_timeout_ms=300, request_timeout_ms=99, max_block_ms=9)
        try:
            producer.send("t", b"v")
        except Exception as error:
            print(type(error).__name__)
        consumer = Consumer(bootstrap_servers=BOOTSTRAP).start()
    """)
    assert (done.returncode, done.stdout) == (0, "KafkaTimeoutError\n")


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "Admin"])
@pytest.mark.parametrize("end", ["close", "stop", "__exit__"])
def test_each_way_to_end_a_client_ends_its_thread_too(run_program: Program, kind: str, end: str) -> None:
    arguments = "None, None, None" if end == "__exit__" else ""
    done = run_program(f"""
        import threading
        from anabranch.sync import Admin, Consumer, Producer

        client = {kind}(bootstrap_servers=BOOTSTRAP)
        client.{end}({arguments})  # it starts no thread
        assert threading.active_count() == 1, threading.enumerate()
        client = {kind}(bootstrap_servers=BOOTSTRAP).start()
        assert threading.active_count() > 1
        client.{end}({arguments})
        assert threading.active_count() == 1, threading.enumerate()
        client.close()
        try:
            client.start()
        except RuntimeError as error:
            print(error)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"this {kind} is closed\n", "")


WAITS = {
    "iterate": "for record in consumer: pass",
    "getone": "consumer.getone()",
    "getmany": "consumer.getmany(timeout_ms=600_000)",
    "batches": "next(consumer.batches())",
    "result": "producer.send('t', b'v').result()",
    "flush": "producer.send('t', b'v'); producer.flush()",
    "close": "producer.send('t', b'v'); producer.close()",
    "send": "producer.send('unknown', b'v')",
}


@pytest.mark.parametrize("waits", WAITS)
def test_ctrl_c_ends_each_wait_at_once_and_the_client_can_be_closed(
    broker: FakeBroker, run_program: Program, waits: str
) -> None:
    """The program would wait for ten minutes, longer than it may run. It is interrupted once its main thread waits."""
    if waits in ("flush", "close", "result"):
        broker.faults[T] = deque([Fault(SILENCE)] * 9)
    done = run_program(f"""
        import os, signal, sys, threading
        from anabranch import TopicPartition
        from anabranch.sync import Consumer, Producer

        limits = dict.fromkeys(["linger_ms", "request_timeout_ms", "max_block_ms"], 600_000)
        producer = Producer(bootstrap_servers=BOOTSTRAP, delivery_timeout_ms=1_200_000, **limits)
        consumer = Consumer(bootstrap_servers=BOOTSTRAP, group_id=None)
        consumer.assign([TopicPartition("t", 0)])
        producer.start()
        main = threading.main_thread().ident

        def interrupt() -> None:
            while "finished" not in (sys._current_frames()[main].f_code.co_name):
                threading.Event().wait(0.001)  # polls: the condition of the loop
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            {WAITS[waits]}
        except KeyboardInterrupt:
            print("interrupted")
        consumer.close()
        producer.close(timeout_ms=10)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
