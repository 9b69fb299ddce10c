"""The calls of confluent-kafka: its configuration, and when its callbacks run."""

from __future__ import annotations

import contextlib
import gc
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import confluent_kafka
import pytest
from anyio.from_thread import BlockingPortal

from anabranch.client import OffsetAndMetadata
from anabranch.client.errors import ErrorCode
from anabranch.confluent import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from anabranch.confluent.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from anabranch.confluent.commits import Consumer as InTurn
from anabranch.confluent.config import IGNORED, ONLY, admin_options, consumer_options, producer_options
from anabranch.confluent.errors import CODES
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.generated.create_partitions import CreatePartitionsResponse
from anabranch.protocol.generated.describe_configs import DescribeConfigsResponse
from anabranch.protocol.types import TopicPartition as Partition
from anabranch.zk_schemas.config_def import ConfigError
from tests.support.protocol.messages import message
from tests.unit.client.fake_broker import FakeBroker, PartitionLog
from tests.unit.client.resized_broker import PARENT, Coordinated


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"bootstrap.servers": "h:1"}, {"bootstrap_servers": "h:1"}),
        ({"metadata.broker.list": "h:1", "client.id": "c"}, {"bootstrap_servers": "h:1", "client_id": "c"}),
        ({"acks": "all", "enable.idempotence": True}, {"acks": "all", "enable_idempotence": True}),
        ({"request.required.acks": -1}, {"acks": -1}),
        ({"linger.ms": 5, "batch.size": 10}, {"linger_ms": 5, "batch_size": 10}),
        ({"queue.buffering.max.ms": "5"}, {"linger_ms": "5"}),
        ({"queue.buffering.max.kbytes": "2"}, {"buffer_memory": 2048}),
        ({"compression.type": "lz4"}, {"compression_type": "lz4"}),
        (
            {"compression.codec": "zstd", "compression.zstd.level": 4},
            {"compression_type": "zstd", "compression_zstd_level": 4},
        ),
        ({"message.timeout.ms": 60_000}, {"delivery_timeout_ms": 60_000}),
        (
            {"message.timeout.ms": "1000", "linger.ms": 5, "socket.timeout.ms": 60_000},
            {"delivery_timeout_ms": "1000", "linger_ms": 5, "request_timeout_ms": 995},
        ),
        ({"delivery.timeout.ms": 0}, {"delivery_timeout_ms": 2**31 - 1}),
        ({"retries": 3, "message.send.max.retries": 4}, {"retries": 4}),
        ({"security.protocol": "PLAINTEXT", "log_level": 0, "partitioner": "murmur2_random"}, {}),
    ],
)
def test_the_keys_of_a_producer(conf: dict[str, Any], expected: dict[str, Any]) -> None:
    assert producer_options(conf) == (expected, 100_000, None)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"group.id": "g", "session.timeout.ms": 6000}, {"group_id": "g", "session_timeout_ms": 6000}),
        ({"max.poll.interval.ms": 1000}, {"max_poll_interval_ms": 1000}),
        ({"enable.auto.commit": "false"}, {"enable_auto_commit": "false"}),
        ({"enable.auto.offset.store": False}, {"enable_auto_offset_store": False}),
        ({"auto.offset.reset": "smallest"}, {"auto_offset_reset": "earliest"}),
        ({"auto.offset.reset": "end"}, {"auto_offset_reset": "latest"}),
        ({"auto.offset.reset": "error"}, {"auto_offset_reset": "none"}),
        ({"auto.offset.reset": "earliest"}, {"auto_offset_reset": "earliest"}),
        ({"fetch.wait.max.ms": 9}, {"fetch_max_wait_ms": 9}),
        ({"enable.partition.eof": False, "group.protocol": "classic"}, {}),
        ({"allow.auto.create.topics": True}, {"allow_auto_create_topics": True}),
    ],
)
def test_the_keys_of_a_consumer(conf: dict[str, Any], expected: dict[str, Any]) -> None:
    assert consumer_options(conf) == ({"allow_auto_create_topics": False, **expected}, None)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"group.idd": "g"}, r"group\.idd: there is no such key here; the nearest is group\.id"),
        ({"nonsense": 1}, r"nonsense: there is no such key here; docs/from-other-clients\.md has the keys"),
        ({"linger.ms": 1}, r"linger\.ms: is a key of Producer only"),
        ({"enable.partition.eof": True}, r"enable\.partition\.eof: True cannot be set: .*compare offsets"),
        ({"sasl.username": "u"}, r"sasl\.username: cannot be set: connections are plaintext"),
        ({"group.protocol": "consumer"}, r"group\.protocol: 'consumer' cannot be set"),
        ({1: 2}, "1: is not the name of a key"),
    ],
)
def test_a_key_without_a_meaning_is_refused_by_name(conf: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        consumer_options(conf)
    with pytest.raises(KafkaException, match=message) as refused:
        Consumer(conf)
    assert refused.value.args[0].code() == KafkaError._INVALID_ARG


def test_every_other_key_is_refused_or_ignored_as_the_tables_say() -> None:
    for key, (allowed, reason) in ONLY.items():
        assert admin_options(dict.fromkeys([key], allowed[0]) if allowed else {}) == {}
        with pytest.raises(ConfigError, match="cannot be set") as refused:
            admin_options({key: "another"})
        assert str(refused.value).endswith(reason)
    assert admin_options(dict.fromkeys(IGNORED, 1)) == {}
    for bad in (0, "x", True):
        with pytest.raises(ConfigError, match=r"queue\.buffering\.max\.messages: .* is not a whole number"):
            producer_options({"queue.buffering.max.messages": bad})
    with pytest.raises(ConfigError, match=r"queue\.buffering\.max\.kbytes: 'x' is not a whole number"):
        producer_options({"queue.buffering.max.kbytes": "x"})


def test_the_codes_have_the_names_of_librdkafka() -> None:
    theirs = confluent_kafka.KafkaError
    local = {name: code for name in dir(theirs) if isinstance(code := getattr(theirs, name), int) and name[0] == "_"}
    assert {name: code for name, code in CODES.items() if code < -1} == local
    for name in ("UNKNOWN", "NO_ERROR", "UNKNOWN_TOPIC_OR_PART", "MSG_SIZE_TOO_LARGE", "TOPIC_ALREADY_EXISTS"):
        assert getattr(KafkaError, name) == getattr(theirs, name)
        assert KafkaError(CODES[name]).name() == theirs(CODES[name]).name()
    error = KafkaError(KafkaError._PARTITION_EOF)
    assert error == KafkaError._PARTITION_EOF and error != KafkaError._FAIL and hash(error) == hash(error.code())
    with pytest.raises(AttributeError, match="no code NOPE"):
        KafkaError.NOPE


def test_callbacks_run_in_poll_and_flush_and_their_errors_come_out(broker: FakeBroker) -> None:
    called: list[tuple[int, bool]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        called.append((message.offset(), threading.current_thread() is threading.main_thread()))
        assert (error, message.topic(), message.partition(), message.key()) == (None, "t", 0, b"k")
        assert (message.value(), message.headers()) == (b"v", [("h", b"1")])
        if message.offset() == 0:
            raise LookupError("of the callback")

    with Producer({"bootstrap.servers": broker.address}) as producer:
        assert producer.poll(0) == 0
        for _ in range(3):
            producer.produce("t", "v", "k", on_delivery=delivered, headers={"h": "1"})
        assert (len(producer), bool(producer), called) == (3, True, [])
        with pytest.raises(LookupError, match="of the callback"):
            producer.flush()
        assert (called, len(producer)) == ([(0, True)], 2)
        assert (producer.flush(10), producer.poll(0)) == (0, 0)
        assert called == [(offset, True) for offset in range(3)]
        producer.produce("t", b"v")
        assert producer.flush() == 0
        producer.produce("t", b"v", "k", headers=[("h", b"1")], callback=delivered)
        assert producer.poll(10) == 1


def test_a_full_queue_is_a_buffer_error_until_callbacks_are_served(broker: FakeBroker) -> None:
    failed: list[Any] = []
    conf = {"bootstrap.servers": broker.address, "queue.buffering.max.messages": 2, "linger.ms": 600_000}
    producer = Producer(conf, on_delivery=lambda error, message: failed.append(error))
    for _ in range(2):
        producer.produce("t", b"v")
    with pytest.raises(BufferError, match=r"2 records wait for their outcome or for poll\(\)"):
        producer.produce("t", b"v")
    assert (producer.flush(0), failed) == (2, [])
    assert (producer.flush(), failed) == (0, [None, None])
    producer.produce("t", b"v")
    with pytest.raises(ValueError, match="partition -7 is not a whole number"):
        producer.produce("t", b"v", partition=-7)
    with pytest.raises(TypeError):
        producer.produce("t", 1)  # type: ignore[arg-type]
    assert len(producer) == 1
    producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.produce("t", b"v")


@pytest.mark.parametrize("place", ["before it was sent", "after it was sent", "at its report"])
def test_ctrl_c_leaves_no_record_for_which_flush_waits_for_ever(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    served: list[int] = []
    interrupts: list[type[BaseException]] = []

    class Reports(queue.Queue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            found = super().get(block, timeout)
            if interrupts:
                raise interrupts.pop()
            return found

    monkeypatch.setattr(queue, "SimpleQueue", Reports)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 600_000})
    send = producer._producer.send

    def interrupted(*args: Any, **kwargs: Any) -> None:
        if place == "after it was sent":
            send(*args, **kwargs)
        raise KeyboardInterrupt

    producer.produce("t", b"0", callback=lambda error, message: served.append(message.offset()))
    if place == "at its report":
        interrupts.append(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
    else:
        monkeypatch.setattr(producer._producer, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.produce("t", b"1", callback=lambda error, message: served.append(message.offset()))
    assert (producer.flush(), len(producer)) == (0, 0)
    assert served == {"before it was sent": [0], "after it was sent": [0, 1], "at its report": []}[place]
    producer.close()


def test_flush_forgets_no_record_that_another_thread_hands_over_meanwhile(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread may wait for room. The record has its callback in a later ``flush``."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 600_000})
    send, waits, may_send = producer._producer.send, threading.Event(), threading.Event()
    served: list[int | None] = []

    def slow(*args: Any, **kwargs: Any) -> None:
        waits.set()
        may_send.wait()
        send(*args, **kwargs)

    def delivered(error: KafkaError | None, message: Message) -> None:
        served.append(message.offset())

    producer.produce("t", b"0", callback=delivered)
    monkeypatch.setattr(producer._producer, "send", slow)
    other = threading.Thread(target=producer.produce, args=("t", b"1"), kwargs={"callback": delivered})
    other.start()
    waits.wait()
    assert (producer.flush(), served) == (1, [0])
    may_send.set()
    other.join()
    assert (producer.flush(), served) == (0, [0, 1])
    producer.close()


def test_errors_name_the_keys_as_the_program_gave_them() -> None:
    given = {"message.timeout.ms": 5, "linger.ms": 10}
    text = r"^message\.timeout\.ms: 5 is below linger\.ms \(10\) \+ request\.timeout\.ms \(30000\)$"
    with pytest.raises(KafkaException) as refused:
        Producer(given)
    assert re.match(text, refused.value.args[0].str())
    with pytest.raises(KafkaException) as refused:
        Consumer({"fetch.wait.max.ms": "x"})
    assert refused.value.args[0].str() == "fetch.wait.max.ms: 'x' is not a whole number"


def test_a_missing_name_has_what_to_use_instead(broker: FakeBroker) -> None:
    with pytest.raises(ImportError, match=r"anabranch\.confluent has no SerializingProducer: serialize before produce"):
        exec("from anabranch.confluent import SerializingProducer")
    with pytest.raises(ImportError, match=r"anabranch\.confluent\.admin has no OffsetSpec: anabranch\.sync\.Admin"):
        exec("from anabranch.confluent.admin import OffsetSpec")
    with pytest.raises(ImportError, match="cannot import name 'Nope'"):
        exec("from anabranch.confluent import Nope")
    conf = {"bootstrap.servers": broker.address}
    for client, name, instead in (
        (Producer(conf), "init_transactions", "there are no transactions yet"),
        (Consumer(conf), "consumer_group_metadata", "there are no transactions yet"),
        (AdminClient(conf), "describe_topics", r"use describe_topics\(\) of anabranch\.sync\.Admin"),
        (AdminClient(conf), "list_consumer_groups", r"use list_groups\(\) of anabranch\.sync\.Admin"),
    ):
        with pytest.raises(AttributeError, match=f"has no {name}: {instead}, see docs/from-other-clients.md"):
            getattr(client, name)
        with pytest.raises(AttributeError, match=r"has no nope$"):
            client.nope


@pytest.fixture
def ends() -> Iterator[contextlib.ExitStack]:
    """What is called after the test."""
    with contextlib.ExitStack() as found:
        yield found


AT, TOPIC_T = TopicPartition("t", 0, 0), ConfigResource("topic", "t")  # type: ignore[arg-type]
TIMED_CALLS: dict[str, tuple[type[Any], Callable[[Any, float], Any]]] = {
    "producer list_topics": (Producer, lambda client, timeout: client.list_topics(timeout=timeout)),
    "consumer list_topics": (Consumer, lambda client, timeout: client.list_topics(timeout=timeout)),
    "committed": (Consumer, lambda client, timeout: client.committed([AT], timeout=timeout)),
    "offsets_for_times": (Consumer, lambda client, timeout: client.offsets_for_times([AT], timeout=timeout)),
    "get_watermark_offsets": (Consumer, lambda client, timeout: client.get_watermark_offsets(AT, timeout=timeout)),
    "admin list_topics": (AdminClient, lambda client, timeout: client.list_topics(timeout=timeout)),
    "create_topics": (AdminClient, lambda a, s: a.create_topics([NewTopic("t")], request_timeout=s)["t"].result()),
    "delete_topics": (AdminClient, lambda a, s: a.delete_topics(["t"], request_timeout=s)["t"].result()),
    "create_partitions": (
        AdminClient,
        lambda a, s: a.create_partitions([NewPartitions("t", 2)], request_timeout=s)["t"].result(),
    ),
    "describe_configs": (
        AdminClient,
        lambda a, s: a.describe_configs([TOPIC_T], request_timeout=s)[TOPIC_T].result(),
    ),
}
"""Each call that takes a time limit, by name."""


@pytest.mark.parametrize("call", TIMED_CALLS)
def test_the_timeout_of_a_call_ends_it(call: str, ends: contextlib.ExitStack) -> None:
    """With the client's own limits the call would wait for a minute. The socket takes connections and never answers."""
    kind, run = TIMED_CALLS[call]
    silent = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
    conf = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
    client = kind({**conf, "group.id": "g"} if kind is Consumer else conf)
    ends.callback(client._admin.close if kind is AdminClient else client.close)
    with pytest.raises(KafkaException) as raised:
        run(client, 0.05)
    assert raised.value.args[0] == KafkaError._TIMED_OUT
    assert "60000" not in str(raised.value)


def test_an_admin_that_nobody_refers_to_ends(broker: FakeBroker) -> None:
    others = threading.enumerate()
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.list_topics(timeout=20)
    (thread,) = [
        thread for thread in threading.enumerate() if thread.name == "anabranch Admin" and thread not in others
    ]
    del admin
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_an_admin_resizes_and_describes_configurations(broker: FakeBroker, ends: contextlib.ExitStack) -> None:
    configs = [{"name": "retention.ms", "value": "5", "config_source": 5}]
    described = [{"resource_type": ResourceType.TOPIC.value, "resource_name": "t", "configs": configs}]
    broker.answers |= {
        ApiKey.CREATE_PARTITIONS: lambda body: message(CreatePartitionsResponse, results=[{"name": "t"}]),
        ApiKey.DESCRIBE_CONFIGS: lambda body: message(DescribeConfigsResponse, results=described),
    }
    admin = AdminClient({"bootstrap.servers": broker.address})
    ends.callback(admin._admin.close)  # the exceptions below refer to it until garbage is collected
    assert admin.create_partitions([NewPartitions("t", 4)], validate_only=True)["t"].result() is None
    (asked,) = broker.seen(ApiKey.CREATE_PARTITIONS)
    assert [(topic.name, topic.count) for topic in asked.topics] == [("t", 4)] and asked.validate_only
    refused = admin.create_partitions([NewPartitions("t", 4, [[1]])])["t"]
    with pytest.raises(ValueError, match="replica_assignment must be None"):
        refused.result()
    topic, nobody = ConfigResource("topic", "t"), ConfigResource(ResourceType.BROKER, "x")  # type: ignore[arg-type]
    futures = admin.describe_configs([topic, nobody])
    entry = futures[ConfigResource(ResourceType.TOPIC, "t")].result()["retention.ms"]
    assert (entry.name, entry.value, entry.is_default, entry.is_read_only) == ("retention.ms", "5", True, False)
    with pytest.raises(ValueError, match="'x'"):
        futures[nobody].result()
    admin._admin.close()  # it would warn in later tests that its broker is gone
    with pytest.raises(ValueError, match=r"restype 'group' is neither ResourceType\.TOPIC nor ResourceType\.BROKER"):
        ConfigResource("group", "g")  # type: ignore[arg-type]


def test_an_asynchronous_commit_does_not_wait_and_keeps_its_turn(
    portal: BlockingPortal, coordinated: Coordinated, caplog: pytest.LogCaptureFixture
) -> None:
    """The first commit waits for the broker, the second is refused, and the third, which waits, comes after them."""
    asked: list[int] = []
    may_answer = portal.call(anyio.Event)
    answer = coordinated.answers[ApiKey.OFFSET_COMMIT]

    async def commit(body: Any) -> Any:
        asked.append(body.topics[0].partitions[0].committed_offset)
        await may_answer.wait()
        response = answer(body)
        if len(asked) == 2:
            response.topics[0].partitions[0].error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
        return response

    coordinated.answers[ApiKey.OFFSET_COMMIT] = commit
    conf = {"bootstrap.servers": coordinated.address, "group.id": "g", "enable.auto.commit": False}
    with Consumer(conf, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(*PARENT, 0)])
        for _ in range(2):
            assert consumer.poll(30) is not None
            assert consumer.commit() is None
        portal.call(may_answer.set)
        assert consumer.poll(30) is not None
        (done,) = consumer.commit(asynchronous=False) or []
        assert (asked, done.offset) == ([1, 2, 3], 3)
        assert "an asynchronous commit failed" in caplog.text
        may_answer = portal.call(anyio.Event)
        assert consumer.poll(30) is not None
        consumer.commit()
        portal.start_task_soon(may_answer.set)
    assert (asked, coordinated.committed[0][0]) == ([1, 2, 3, 4], 4), "close() waits"


def test_asynchronous_commits_wait_for_an_absent_coordinator_together(
    coordinated: Coordinated, caplog: pytest.LogCaptureFixture
) -> None:
    """One after the other they would delay ``close`` by the time-out of each."""
    asked: set[int] = set()
    answer = coordinated.answers[ApiKey.OFFSET_COMMIT]

    def refuse(body: Any) -> Any:
        response = answer(body)
        asked.add(body.topics[0].partitions[0].committed_offset)
        response.topics[0].partitions[0].error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return response

    coordinated.answers[ApiKey.OFFSET_COMMIT] = refuse
    conf = {"bootstrap.servers": coordinated.address, "group.id": "g", "enable.auto.commit": False}
    with Consumer(conf, **{"default.api.timeout.ms": 200}) as consumer:
        consumer.assign([TopicPartition(*PARENT, 0)])
        for offset in range(20):
            consumer.commit(offsets=[TopicPartition(*PARENT, offset)])
    assert 0 in asked
    assert len(asked) < 20
    assert "the commits before it took default.api.timeout.ms" in caplog.text


def test_on_commit_is_called_by_poll_and_close_for_each_commit(coordinated: Coordinated) -> None:
    called: list[Any] = []

    def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        failures = [error] + [tp.error for tp in partitions]
        called.append(([each and each.code() for each in failures], [(*tp.key, tp.offset) for tp in partitions]))
        threads.add(threading.get_ident())
        if len(called) == 1:
            raise ValueError("of the callback")

    threads: set[int] = set()
    conf = {"bootstrap.servers": coordinated.address, "group.id": "g", "on_commit": on_commit}
    with Consumer(conf, **{"enable.auto.commit": False, "default.api.timeout.ms": 100}) as consumer:
        consumer.assign([TopicPartition(*PARENT, 10)])
        consumer.commit(offsets=[TopicPartition(*PARENT, 1)], asynchronous=False)
        assert called == []
        with pytest.raises(ValueError, match="of the callback"):
            consumer.poll(60)
        consumer.pause([TopicPartition(*PARENT)])
        consumer.commit(offsets=[TopicPartition(*PARENT, 2)])
        while len(called) < 2:
            assert consumer.poll(0.1) is None
        answer = coordinated.answers[ApiKey.OFFSET_COMMIT]

        def refuse(body: Any) -> Any:
            response = answer(body)
            response.topics[0].partitions[0].error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            return response

        coordinated.answers[ApiKey.OFFSET_COMMIT] = refuse
        consumer.commit(offsets=[TopicPartition(*PARENT, 3)])
    code = KafkaError.OFFSET_METADATA_TOO_LARGE
    assert called == [
        ([None, None], [(*PARENT, 1)]),
        ([None, None], [(*PARENT, 2)]),
        ([code, code], [(*PARENT, 3)]),
    ]
    assert threads == {threading.get_ident()}


def test_on_commit_ends_the_wait_of_poll_for_an_automatic_commit(coordinated: Coordinated) -> None:
    class Done(Exception):
        pass

    def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        raise Done

    conf = {"bootstrap.servers": coordinated.address, "group.id": "g", "auto.commit.interval.ms": 1}
    consumer = Consumer(conf, on_commit=on_commit)
    consumer.assign([TopicPartition(*PARENT, 10)])
    with pytest.raises(Done):
        consumer.poll()
    with contextlib.suppress(Done):
        consumer.close()


def test_an_error_of_on_commit_loses_no_message_of_consume(coordinated: Coordinated) -> None:
    def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        raise ValueError("of the callback")

    read: list[int | None] = []
    conf = {"bootstrap.servers": coordinated.address, "group.id": "g", "auto.commit.interval.ms": 1}
    consumer = Consumer(conf, on_commit=on_commit)
    consumer.assign([TopicPartition(*PARENT, 0)])
    raised, deadline = 0, time.monotonic() + 20
    while (len(read) < 10 or not raised) and time.monotonic() < deadline:
        try:
            read += [message.offset() for message in consumer.consume(4, 1)]
        except ValueError:
            raised += 1
    with contextlib.suppress(ValueError):
        consumer.close()
    assert read == [*range(10)]
    assert raised


def test_an_asynchronous_commit_leaves_out_partitions_that_were_revoked_before_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be sent as the new generation, and lower the offset that the new reader committed."""
    kept, revoked = (Partition("t", n) for n in range(2))
    consumer = InTurn("t", group_id="g")
    subscription, committed = consumer._client._subscription, []

    async def commit(offsets: Any, call: int) -> None:
        committed.append((offsets, call))

    async def check() -> None:
        subscription.set_assignment([kept, revoked])
        offsets, held = {tp: OffsetAndMetadata(5) for tp in (kept, revoked)}, subscription.partitions
        async with anyio.create_task_group() as tasks, consumer._committing:
            tasks.start_soon(consumer._commit_and_log, offsets, 7, held, anyio.current_time() + 60)
            await anyio.wait_all_tasks_blocked()
            subscription.set_assignment([kept])
            subscription.set_assignment([kept, revoked])

    monkeypatch.setattr(consumer, "send_commit", commit)
    anyio.run(check)
    assert committed == [({kept: OffsetAndMetadata(5)}, 7)]


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_a_topic_that_does_not_exist_is_one_message_until_it_exists(broker: FakeBroker, how: str) -> None:
    with Consumer({"bootstrap.servers": broker.address, "auto.offset.reset": "earliest"}) as consumer:
        if how == "subscribe":
            consumer.subscribe(["nope", "neither"])
        else:
            consumer.assign([TopicPartition("nope", 0), TopicPartition("neither", 0)])
        failed = consumer.consume(2, 60)
        assert [(message.topic(), message.partition()) for message in failed] == [("neither", -1), ("nope", -1)]
        errors = [message.error() for message in failed]
        assert [error and error.code() for error in errors] == [KafkaError.UNKNOWN_TOPIC_OR_PART] * 2
        assert errors[0] is not None and errors[0].str().endswith("topic neither does not exist")
        assert consumer.poll(0.3) is None
        broker.logs[Partition("nope", 0)] = PartitionLog()
        broker.topics["nope"] = 1
        with Producer({"bootstrap.servers": broker.address}) as producer:
            producer.produce("nope", b"v")
        message = consumer.poll(60)
        assert message is not None and (message.error(), message.value()) == (None, b"v")


def test_a_consumer_reads_stores_commits_and_seeks(coordinated: Coordinated) -> None:
    conf = {"bootstrap.servers": coordinated.address, "group.id": "g", "enable.auto.offset.store": False}
    topic, partition = PARENT
    with Consumer(conf, **{"auto.offset.reset": "earliest", "enable.auto.commit": False}) as consumer:
        with pytest.raises(KafkaException) as refused:
            consumer.position([TopicPartition(topic, partition)])
        assert refused.value.args[0].code() == KafkaError._STATE
        consumer.assign([TopicPartition(topic, partition, 2)])
        assert consumer.assignment() == [TopicPartition(topic, partition)]
        messages = consumer.consume(3, 30)
        assert [message.offset() for message in messages] == [2, 3, 4]
        consumer.store_offsets(messages[1])
        (done,) = consumer.commit(asynchronous=False) or []
        assert (done.offset, coordinated.committed[0][0]) == (4, 4)
        assert consumer.commit(message=messages[2]) is None
        consumer.commit(offsets=[], asynchronous=False)
        assert [tp.offset for tp in consumer.committed([done])] == [5]
        assert [tp.offset for tp in consumer.position([done])] == [5]
        consumer.seek(TopicPartition(topic, partition, 1))
        message = consumer.poll()
        assert message is not None and (message.offset(), message.error()) == (1, None)
        consumer.pause([done])
        assert consumer.poll(0) is None
        consumer.resume([done])
        consumer.unassign()
        assert consumer.assignment() == []
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(0)
