"""A child of ``fork`` gets an error from its parent's clients. The parent works on, and so do clients of the child."""

from __future__ import annotations

import pytest

from anabranch import TopicPartition
from tests.component.blocking.conftest import Program
from tests.unit.client.fake_broker import FakeBroker

T = TopicPartition("t", 0)
USES = """
uses = {
    "send": lambda: producer.send("t", b"child"),
    "send_and_wait": lambda: producer.send_and_wait("t", b"child"),
    "flush": lambda: producer.flush(),
    "start": lambda: producer.start(),
    "iterate": lambda: next(iter(consumer)),
    "go on iterating": lambda: next(records),
    "getone": lambda: consumer.getone(),
    "getmany": lambda: consumer.getmany(timeout_ms=60_000),
    "end_offsets": lambda: consumer.end_offsets([TopicPartition("t", 0)]),
    "list_topics": lambda: admin.list_topics(),
    "result": lambda: handle.result(),
}
"""


@pytest.mark.parametrize("ends", ["os._exit(0)", "sys.exit()"])
def test_a_child_gets_an_error_from_each_blocking_class(broker: FakeBroker, run_program: Program, ends: str) -> None:
    done = run_program(f"""
        import os, sys
        from anabranch import ForkedClientError, TopicPartition
        from anabranch.sync import Admin, Consumer, Producer

        producer = Producer(bootstrap_servers=BOOTSTRAP)
        producer.send_many("t", [(None, b"%d" % number) for number in range(9)])
        admin = Admin(bootstrap_servers=BOOTSTRAP).start()
        consumer = Consumer(bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest")
        consumer.assign([TopicPartition("t", 0)])
        records = iter(consumer)
        assert [next(records).offset for _ in range(4)] == [0, 1, 2, 3]
        slow = Producer(bootstrap_servers=BOOTSTRAP, linger_ms=60_000)
        handle = slow.send("t", b"last")
        {USES.replace(chr(10), chr(10) + "        ")}
        child = os.fork()
        if not child:
            for name, use in uses.items():
                try:
                    print("no error:", name, use())
                except ForkedClientError as error:
                    assert "before the process forked" in str(error)
            for client in (producer, consumer, admin, slow):
                client.close()
            with Producer(bootstrap_servers=BOOTSTRAP) as own:
                own.send_and_wait("t", b"child")
            print("child", flush=True)
            {ends}
        os.waitpid(child, 0)
        producer.send_and_wait("t", b"parent")
        assert next(records).offset == 4
        print("parent", flush=True)
        for client in (producer, consumer, admin, slow):
            client.close()
        assert handle.result().offset == 11
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child\nparent\n", "")
    assert broker.logs[T].values()[-3:] == [b"child", b"parent", b"last"]


def test_a_child_gets_an_error_from_each_async_class(broker: FakeBroker, run_program: Program) -> None:
    """The program forks while its loop does not run, and the child runs a loop of its own."""
    done = run_program("""
        import asyncio, os
        from anabranch import Admin, Consumer, ForkedClientError, Producer, TopicPartition

        async def begin():
            global producer, slow, admin, consumer
            producer = await Producer(bootstrap_servers=BOOTSTRAP).start()
            slow = await Producer(bootstrap_servers=BOOTSTRAP, linger_ms=500).start()
            admin = await Admin(bootstrap_servers=BOOTSTRAP).start()
            consumer = await Consumer(bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest").start()
            await producer.send_and_wait("t", b"parent")
            consumer.assign([TopicPartition("t", 0)])
            await consumer.getone()
            return await slow.send("t", b"slow")

        async def go_on(handle):
            await producer.send_and_wait("t", b"parent 2")
            await handle
            assert [(await consumer.getone()).value for _ in range(2)] == [b"parent 2", b"slow"]
            for client in (producer, slow, admin, consumer):
                await client.stop()
            print("parent", flush=True)

        async def in_child(producer, admin, consumer, handle):
            uses = producer.send, producer.send_and_wait, consumer.getmany, consumer.getone, admin.list_topics
            uses += (lambda: asyncio.wait_for(handle.wait(), 5)), producer.flush, lambda: anext(consumer)
            for use in uses:
                try:
                    print("no error:", await use(*["t"] * ("send" in str(use))))
                except ForkedClientError as error:
                    assert "before the process forked" in str(error)
            for client in (producer, consumer, admin):
                await client.close()
                await client.stop()
            async with Admin(bootstrap_servers=BOOTSTRAP) as own:
                await own.list_topics()

        with asyncio.Runner() as runner:
            handle = runner.run(begin())
            child = os.fork()
            if not child:
                asyncio.run(in_child(producer, admin, consumer, handle))
                print("child", flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            runner.run(go_on(handle))
    """)
    assert (done.returncode, done.stdout) == (0, "child\nparent\n"), done.stderr
    assert broker.logs[T].values() == [b"parent", b"parent 2", b"slow"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing_have_clients_of_their_own(
    broker: FakeBroker, run_program: Program, method: str
) -> None:
    """A client that no process has used before is started by the process that uses it."""
    done = run_program(f"""
        import multiprocessing
        from anabranch.sync import Producer

        used = Producer(bootstrap_servers=BOOTSTRAP)
        unused = Producer(bootstrap_servers=BOOTSTRAP)

        def work(number):
            unused.send("t", b"%d" % number)
            unused.close()

        if __name__ == "__main__":
            used.send_and_wait("t", b"parent")
            context = multiprocessing.get_context("{method}")
            workers = [context.Process(target=work, args=(number,)) for number in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            print([worker.exitcode for worker in workers])
            used.send_and_wait("t", b"parent")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0]\n", "")
    assert sorted(broker.logs[T].values()) == [b"0", b"1", b"parent", b"parent"]
