"""The consumer on a resized topic, against a scripted broker: deliveries, requests, logs and metrics."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from anabranch import Consumer
from anabranch.client.client_metrics import CONSUMER_GROUP, CONSUMER_TRAFFIC
from anabranch.client.consumer.consumer import Consumer as SimulatedConsumer
from anabranch.client.errors import ErrorCode, UnassignedParentError
from anabranch.client.subscription.fetched_batch import FetchedBatch
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.generated.fetch import FetchResponse
from anabranch.protocol.generated.metadata import MetadataResponse, MetadataResponseBroker
from anabranch.protocol.generated.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.records import RecordBatch, set_base_offset
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from tests.unit.client.resized_broker import CHILD, FAST, NO_SECOND_TRY, PARENT, Resized, Shrunk, Story
from tests.unit.client.virtual_time import in_virtual_time


async def test_a_child_is_delivered_after_its_parent_with_flush_and_load_between() -> None:
    story = Story()
    async with Resized().running() as broker, Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(1)) == 5, max_records=3)
    assert story.records(0) == list(range(10)) and story.records(1) == list(range(5))
    flush = len(story.lines) - 1 - story.lines[::-1].index(("flush", [0]))
    load = story.lines.index(("load", [1]))
    assert story.lines.index((0, 9)) < flush < load < story.lines.index((1, 0))


async def test_hole_25_under_read_committed_the_last_stable_offset_is_the_end() -> None:
    """A transaction is open from offset 8 on.

    No record from offset 8 on is processed, so the child waits for the end of the transaction.
    """
    story, broker = Story(), Resized()
    stable = 8

    def hold(body: Any, response: FetchResponse) -> None:
        for topic in response.responses:
            for p in topic.partitions:
                if p.partition_index == 0:
                    p.last_stable_offset = stable
                    kept = [b for b in broker.logs[PARENT].batches if RecordBatch(b).last_offset < stable]
                    p.records = b"".join(kept) if p.records else b""
                else:
                    p.last_stable_offset = p.high_watermark

    broker.fetch_hook = hold
    async with broker.client(Consumer, isolation_level="read_committed", **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(0)) == 8)
        await story.read_until(consumer, lambda: consumer.explain_blocked()[0].waits_for[0].position == 8)
        assert not story.records(1)
        stable = 10
        await story.read_until(consumer, lambda: len(story.records(1)) == 5)
        assert story.records(0) == list(range(10))


class Listener:
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))


@pytest.mark.parametrize("by", ["name", "pattern"])
async def test_a_subscription_without_a_group_takes_created_partitions(by: str) -> None:
    broker = Resized()
    broker.topics["t"] = 1
    broker.announce("t", (1, 1, 0))
    listener = Listener()
    async with broker.client(Consumer, **{**FAST, "auto_offset_reset": "latest"}) as consumer:
        if by == "name":
            consumer.subscribe(["t"], listener=listener)
        else:
            consumer.subscribe(pattern="t", listener=listener)
        while not consumer.assignment():
            assert await consumer.getmany(timeout_ms=10) == {}
        assert await consumer.position(PARENT) == 10
        broker.announce("t", (1, 2, 1))
        consumer._metadata.request_update()
        found = [await consumer.getone() for _ in range(5)]
        assert [(r.partition, r.offset) for r in found] == [(1, n) for n in range(5)]  # from the child's start
        assert consumer.assignment() == {PARENT, CHILD}
        assert listener.calls == [("assigned", [PARENT]), ("assigned", [CHILD])]
        await consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        again = Listener()
        consumer.subscribe(["t"], listener=again)
        await consumer.getmany()
        assert again.calls == [("assigned", [PARENT, CHILD])]


async def test_a_hand_over_between_manually_assigned_partitions_waits_for_no_broker() -> None:
    """The consumer knows its own reports at once: no message from a broker wakes ``getmany``."""
    never_ms = 600_000
    async with Resized().client(
        Consumer, session_timeout_ms=never_ms + 1, heartbeat_interval_ms=never_ms, **FAST
    ) as consumer:
        consumer.assign([CHILD, PARENT])
        read = 0
        while read < 15:
            read += sum(map(len, (await consumer.getmany(timeout_ms=never_ms)).values()))


async def test_metrics_show_the_duration_of_the_hand_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "anabranch.client.ordered_delivery.hand_over_metrics"):
        async with Resized().client(Consumer, **FAST) as consumer:
            consumer.assign([CHILD, PARENT], partition_key_listener=Story())
            story = Story()
            await story.read_until(consumer, lambda: len(story.records(0)) == 10, max_records=2)
            names = consumer.metrics()[CONSUMER_GROUP]
            assert (names["blocked-partitions"], names["blocked-total"], names["hand-over-total"]) == (1, 1, 0)
            await story.read_until(consumer, lambda: len(story.records(1)) == 5, max_records=2)
            names = consumer.metrics()[CONSUMER_GROUP]
        assert (names["blocked-partitions"], names["blocked-total"], names["hand-over-total"]) == (0, 1, 1)
        assert names["hand-over-time-max-ms"] > 0 and names["blocked-time-max-ms"] > 0
        assert names["partition-key-maybe-revoked-total"] >= 1
        assert names["partition-key-assigned-total"] == 1
    first, released = caplog.messages
    assert first.startswith(
        'blocked: partition=t-1 max_leader_epoch=-1 waits_for="partition 1 from epoch 0 waits for partition 0'
    )
    assert released.startswith("released: partition=t-1 after_ms=") and released.endswith(" waited_for=t-0")


async def test_metadata_that_a_request_finds_too_old_is_not_waited_for_twice() -> None:
    """Lineage requests have their own pauses. The pause after the last metadata refresh must not be added."""
    broker, epoch = Resized(), 1

    def set_epochs(response: MetadataResponse) -> None:
        response.topics[0].partitions[0].leader_epoch = epoch

    def refuse(body: Any) -> OffsetForLeaderEpochResponse:
        nonlocal epoch
        answer = broker.ends(body)
        for asked, given in zip(body.topics[0].partitions, answer.topics[0].partitions, strict=True):
            if asked.current_leader_epoch < 2:
                epoch, given.error_code = 2, ErrorCode.FENCED_LEADER_EPOCH
        return answer

    broker.metadata_hook = set_epochs
    broker.answers[ApiKey.OFFSET_FOR_LEADER_EPOCH] = refuse
    async with broker.client(Consumer, auto_offset_reset="earliest", **NO_SECOND_TRY) as consumer:
        consumer.assign([CHILD, PARENT])
        assert [(await consumer.getone()).partition for _ in range(15)] == [0] * 10 + [1] * 5
        assert consumer.metrics()[CONSUMER_TRAFFIC]["records-consumed-total"] == 15


async def test_hole_18_a_seek_back_on_the_parent_blocks_the_child_for_getone_as_well() -> None:
    """Buffered records of the child wait like records that are not fetched yet."""
    story = Story()
    async with Resized().client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        while (await consumer.getone()).partition != CHILD.partition:
            pass
        consumer.seek(PARENT, 4)
        found = [(r.partition, r.offset) for r in [await consumer.getone() for _ in range(10)]]
    assert found == [*((0, offset) for offset in range(4, 10)), *((1, offset) for offset in range(1, 5))]


async def test_a_reset_of_the_parent_with_a_late_response_blocks_the_child_for_getone_as_well() -> None:
    async with Resized().client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD, PARENT])
        while (await consumer.getone()).partition != CHILD.partition:
            pass
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.seek_to_beginning, PARENT)
            await anyio.lowlevel.checkpoint()
            await consumer.getone()  # meanwhile the parent has no position to wait for
        found = [(r.partition, r.offset) for r in [await consumer.getone() for _ in range(10)]]
    assert found == [(0, offset) for offset in range(10)]


@pytest.mark.parametrize("log_start", [0, 12])
async def test_a_gap_that_compaction_left_keeps_no_partition_waiting(log_start: int) -> None:
    """1 -> 2 -> 1: the wait passes a gap in the parent.

    The parent's held-back records wait for the child, and the child waits for the parent's removed records.
    """
    story, broker = Story(), Shrunk()
    log = broker.logs[PARENT]  # offsets 0 to 7 are of epoch 0, which ended at 10; offsets from 12 on are of epoch 2
    del log.batches[8:]
    for offset in (12, 13):
        batch = bytearray(build_batch([(b"k", b"%d" % offset, [], 0)]))
        set_base_offset(batch, offset, 2)
        log.batches.append(bytes(batch))
    log.end_offset = 14
    async with broker.client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(0)) >= 8)
        log.start_offset = log_start
        await story.read_until(consumer, lambda: len(story.records(0)) == 10)
    assert story.records(0) == [*range(8), 12, 13]
    assert story.records(1) == list(range(5)) and story.lines.index((1, 4)) < story.lines.index((0, 12))


async def test_hole_22_fetched_records_of_the_parent_precede_the_child_after_their_deletion() -> None:
    story, broker, asked = Story(), Resized(), 0

    def ends(body: Any) -> OffsetForLeaderEpochResponse:
        nonlocal asked
        asked += 1
        return broker.ends(body)

    broker.answers[ApiKey.OFFSET_FOR_LEADER_EPOCH] = ends
    async with broker.client(Consumer, heartbeat_interval_ms=20, **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(0)) == 3, max_records=1)
        consumer.pause(PARENT)
        broker.logs[PARENT].start_offset = 10
        enough = asked + 4
        await story.read_until(consumer, lambda: asked >= enough)  # changeable facts were requested again
        assert not story.records(1)
        consumer.resume(PARENT)
        await story.read_until(consumer, lambda: len(story.records(1)) == 5)
    assert story.records(0) == list(range(10))
    assert ("flush", [0]) in story.lines[story.lines.index((0, 9)) : story.lines.index((1, 0))]


async def test_hole_22_deleted_records_of_the_parent_keep_no_child_waiting() -> None:
    story = Story()
    broker = Resized()
    async with broker.client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(0)) == 3, max_records=1)
        broker.logs[PARENT].start_offset = 10
        consumer.seek(PARENT, 3)  # no record is buffered any more
        await story.read_until(consumer, lambda: len(story.records(1)) == 5)
    assert story.records(0) == [0, 1, 2]
    first = story.lines.index((1, 0))
    assert ("flush", [0]) in story.lines[3:first]


async def test_hole_18_a_seek_back_on_the_parent_blocks_the_child_at_once() -> None:
    story = Story()
    async with Resized().client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(1)) >= 1, max_records=1)
        consumer.seek(PARENT, 4)
        story.lines.clear()
        await story.read_until(consumer, lambda: len(story.records(1)) >= 4, max_records=1)
    assert story.records(0) == list(range(4, 10))
    assert story.lines[0] == ("flush", [1])
    assert story.lines.index((0, 9)) < story.lines.index(("load", [1]))
    assert story.lines.index(("load", [1])) < min(n for n, line in enumerate(story.lines) if line[0] == 1)


async def test_hole_21_a_parent_that_no_consumer_reads_is_never_passed_silently() -> None:
    async with Resized().running() as broker:
        async with Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([CHILD])
            with pytest.raises(UnassignedParentError, match="must wait for") as raised:
                await consumer.getone()
            assert (raised.value.partition, raised.value.parent) == (CHILD, PARENT)
        async with Consumer(
            bootstrap_servers=broker.address, ordered_delivery_unassigned_parent="ignore", **FAST
        ) as consumer:
            consumer.assign([CHILD])
            assert (await consumer.getone()).offset == 0


async def test_hole_21_a_log_start_past_the_awaited_offset_releases_the_child() -> None:
    broker = Resized()
    broker.logs[PARENT].start_offset = 10
    async with broker.client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD])
        assert (await consumer.getone()).offset == 0


async def test_kafka_12261_latest_is_earliest_for_a_partition_created_while_the_consumer_runs() -> None:
    broker = Resized()
    broker.topics["t"] = 1
    broker.announce("t", (1, 1, 0))
    async with broker.client(Consumer, auto_offset_reset="latest") as consumer:
        consumer.assign([PARENT])
        assert await consumer.position(PARENT) == 10
        broker.announce("t", (1, 2, 1))
        consumer.assign([PARENT, CHILD])
        assert await consumer.position(CHILD) == 0


async def test_the_start_offset_by_latest_in_a_resized_topic_is_kept_for_a_commit() -> None:
    """For a topic that was never resized, the client keeps no start offset and commits nothing by itself."""
    for layout, expected in (((1, 2, 1), [10, 10]), ((2, 2, 0), [None, None])):
        broker = Resized()
        broker.announce("t", layout)
        broker.logs[CHILD].end_offset = 10
        async with broker.client(Consumer, auto_offset_reset="latest") as consumer:
            consumer.assign([PARENT, CHILD])
            assert [await consumer.position(tp) for tp in (PARENT, CHILD)] == [10, 10]
            states = consumer._subscription.partitions
            assert [states[tp].uncommitted_start for tp in (PARENT, CHILD)] == expected


@pytest.mark.parametrize("ordered", [0, None])
async def test_without_ordered_delivery_no_lineage_is_requested_and_no_record_waits(ordered: int | None) -> None:
    """The cases are ``enable.ordered.delivery=false``, and a plain Kafka broker, whose metadata has no layout."""
    broker = Resized()

    def plain(response: MetadataResponse) -> None:
        for topic in response.topics:
            topic.ordered_delivery = 0
            if ordered is None:
                topic.initial_partition_count = topic.undeleted_partition_count = topic.layout_version = -1
                for p in topic.partitions:
                    p.incarnation = -1

    broker.metadata_hook = plain
    async with broker.client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD])
        assert (await consumer.getone()).offset == 0
        assert consumer.explain_blocked() == ()
    assert not broker.seen(ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS)


async def test_hole_28_a_refused_leader_epoch_is_retried_in_the_same_fetch_session() -> None:
    """The fetch does not depend on the layout, so a resize begins no new session."""
    broker, epochs = Resized(), []

    def grown(response: MetadataResponse) -> None:
        response.topics[0].partitions[0].leader_epoch = 2 if len(epochs) > 2 else 1

    def refuse(body: Any, response: FetchResponse) -> None:
        response.session_id = 7
        epochs.append(body.session_epoch)
        for asked, topic in zip(body.topics, response.responses, strict=True):
            for given, p in zip(asked.partitions, topic.partitions, strict=True):
                if given.current_leader_epoch < 2:
                    p.error_code, p.records = ErrorCode.FENCED_LEADER_EPOCH, b""

    broker.metadata_hook, broker.fetch_hook = grown, refuse
    async with broker.client(Consumer, **FAST) as consumer:
        consumer.assign([PARENT])
        assert (await consumer.getone()).offset == 0
    assert epochs == list(range(len(epochs)))
    assert len(broker.seen(ApiKey.METADATA)) >= 3


async def test_lineages_of_many_partitions_are_asked_for_in_several_requests() -> None:
    broker = Resized()
    asked = ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS
    config = {**FAST, "ordered_delivery_partitions_per_request": 1}
    async with broker.client(Consumer, **config) as consumer:
        consumer.assign([PARENT, CHILD])
        while not await consumer.getmany(timeout_ms=20):
            pass
    counts = [sum(len(topic.partitions) for topic in body.topics) for body in broker.seen(asked)]
    assert counts and set(counts) == {1}
    assert {topic.partitions[0].partition_index for body in broker.seen(asked) for topic in body.topics} == {0, 1}


def test_a_new_leader_is_asked_while_the_dead_leader_has_not_answered() -> None:
    """The next try to connect to the dead leader is ten seconds away when another broker leads the parent."""
    broker, dead_node, elected_s = Resized(), 2, 1.0

    async def read(env: Env) -> float:
        clock = env.clock

        def describe(response: MetadataResponse) -> None:
            response.brokers.append(MetadataResponseBroker(node_id=dead_node, host="127.0.0.1", port=broker.port + 1))
            for topic in response.topics:
                is_elected = clock.monotonic() >= elected_s
                topic.partitions[0].leader_id = 1 if is_elected else dead_node
                topic.partitions[0].leader_epoch = broker.lineage[0].as_of if is_elected else 1

        broker.metadata_hook = describe
        broker.lineage[0] = Lineage(2)
        story = Story()
        slow = {"reconnect_backoff_ms": 10_000, "reconnect_backoff_max_ms": 10_000, "metadata_max_age_ms": 50}
        async with (
            broker.running(env),
            SimulatedConsumer(bootstrap_servers=broker.address, env=env, **FAST, **slow) as consumer,
        ):
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            consumer.seek(PARENT, 0)
            await story.read_until(consumer, lambda: len(story.records(1)) == 5)
            return clock.monotonic()

    assert in_virtual_time(read) < elected_s + 0.5


async def test_without_the_lineage_api_records_of_a_resized_topic_wait_and_the_log_has_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = "anabranch.client.ordered_delivery.queries"

    def reasons() -> list[str]:
        """Other loggers warn too, for example of a slow connection."""
        return [record.getMessage() for record in caplog.records if record.name == name]

    with caplog.at_level(logging.WARNING, name):
        broker = Resized()
        broker.max_versions[ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS] = 0
        config = {**FAST, "layout_backoff_ms": 1, "layout_backoff_max_ms": 2}
        async with broker.client(Consumer, **config) as consumer:
            consumer.assign([PARENT])
            while not reasons():
                assert not await consumer.getmany(timeout_ms=20)
            assert not broker.seen(ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS)
    assert reasons()[0].startswith("records of t-0 wait until a broker answers with the lineage: UNSUPPORTED_VERSION")


def batch_of(offset: int, epoch: int) -> bytes:
    batch = bytearray(build_batch([(b"k", b"%d" % offset, [], 0)]))
    set_base_offset(batch, offset, epoch)
    return bytes(batch)


async def test_a_batch_held_back_behind_another_is_checked_when_the_other_was_delivered() -> None:
    """After 1 -> 2 -> 1, one fetch returns older records and records of epoch 2. The child blocks only epoch 2."""
    story, broker = Story(), Shrunk()
    broker.logs[PARENT].batches = [batch_of(n, 0 if n < 10 else 2) for n in range(12)]
    broker.logs[PARENT].end_offset = 12
    async with broker.client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(0)) == 12, max_records=1)
    assert story.records(0) == list(range(12))
    order = [story.lines.index(line) for line in ((0, 9), (1, 0), (1, 4), ("load", [0]), (0, 10))]
    assert order == sorted(order)


async def test_the_position_passes_offsets_below_the_log_start_without_a_record() -> None:
    """Amendment 2: a recreated log begins at the end of the previous log, and the group was at offset 0."""
    story, broker = Story(), Resized()
    broker.logs[PARENT].batches, broker.logs[PARENT].end_offset = [], 10

    def begin_at_ten(body: Any, response: FetchResponse) -> None:
        for topic in response.responses:
            for p in topic.partitions:
                if p.partition_index == 0:
                    p.log_start_offset, p.records = 10, b""

    broker.fetch_hook = begin_at_ten
    async with broker.client(Consumer, **FAST) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(1)) == 5)
        assert await consumer.position(PARENT) == 10


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("from_offset", [0, 1, 3])
def test_hole_24_tombstones_of_moved_keys_are_not_delivered(compression: CompressionType, from_offset: int) -> None:
    moved = (b"k", None, [("x", b""), (MOVED_HEADER, b"")], 0)
    data = build_batch(
        [(b"a", bytes(200), [], 0), moved, (b"b", None, [], 0), (b"c", b"3", [(MOVED_HEADER, b"")], 0), moved],
        compression=compression,
    )
    assert (MOVED_HEADER.encode() in data) == (compression is CompressionType.NONE)
    fetched = FetchedBatch(RecordBatch(data), from_offset, may_hold_moved=True)
    kept = [offset for offset in (0, 2, 3) if offset >= from_offset]
    taken, positions = [], []
    while fetched.left:
        batch, start, stop = fetched.take(1)
        taken += [record.offset for record in batch.decoded()[start:stop]]
        positions.append(fetched.position())
    assert taken == kept
    assert positions == [*kept[1:], 5]
    assert FetchedBatch(RecordBatch(data), 0).count == 5, "only where keys can have moved"


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
async def test_hole_24_tombstones_of_moved_keys_are_not_delivered_among_other_batches(
    compression: CompressionType,
) -> None:
    """Uncompressed batches are searched together, and compressed batches one by one."""
    story, broker = Story(), Resized()
    moved = [(b"k", None, [(MOVED_HEADER, b"")], 0), (b"l", bytes(200), [], 0)]
    batch = build_batch(moved, compression=compression)
    assert (MOVED_HEADER.encode() in batch) == (compression is CompressionType.NONE)
    broker.logs[PARENT].append(batch)
    broker.fill(PARENT, 3)
    async with broker.client(Consumer, **FAST) as consumer:
        consumer.assign([PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: 14 in story.records(0))
    assert story.records(0) == [*range(10), *range(11, 15)]


async def test_batches_without_tombstones_of_moved_keys_are_not_searched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(batch: FetchedBatch) -> bool:
        raise AssertionError(f"one of {batch.count} records")

    monkeypatch.setattr(FetchedBatch, "leave_out_moved", look)
    story = Story()
    async with Resized().client(Consumer, **FAST) as consumer:
        consumer.assign([PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(0)) == 10)
