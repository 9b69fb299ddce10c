"""The consumer on a topic that was resized: what it delivers, asks, says and tells, against a broker by script."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import anyio
import pytest

from client import Consumer
from client.client_metrics import CONSUMER_GROUP
from client.errors import ErrorCode, UnassignedParentError
from client.fetched import FetchedBatch
from client.group_protocol import encode_assignment
from client.ordered_delivery.reports import Progress
from protocol.api_keys import ApiKey
from protocol.batch_builder import build_batch
from protocol.compression import CompressionType
from protocol.generated.consumer_group_position import (
    ConsumerGroupPositionResponse,
    ConsumerGroupPositionResponsePartition,
    ConsumerGroupPositionResponseTopic,
)
from protocol.generated.fetch import FetchResponse
from protocol.generated.find_coordinator import FindCoordinatorResponse
from protocol.generated.heartbeat import HeartbeatResponse
from protocol.generated.join_group import JoinGroupResponse
from protocol.generated.leave_group import LeaveGroupResponse
from protocol.generated.metadata import MetadataResponse
from protocol.generated.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from protocol.generated.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from protocol.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponse,
    PartitionLeaderEpochsForPartitionsResponsePartition,
    PartitionLeaderEpochsForPartitionsResponseTopic,
)
from protocol.generated.sync_group import SyncGroupResponse
from protocol.key_placement import MOVED_HEADER
from protocol.records import RecordBatch, set_base_offset
from protocol.types import TopicPartition
from tests.unit.client.conftest import Run
from tests.unit.client.fake_broker import FakeBroker

PARENT, CHILD = TopicPartition("t", 0), TopicPartition("t", 1)
NO_SECOND_TRY = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000}
"""Whatever waits for this pause waits longer than a test."""
FAST = {"retry_backoff_ms": 5, "auto_offset_reset": "earliest"}


class Resized(FakeBroker):
    """A topic grown from 1 to 2: ten records in the parent before it, five in the child after it."""

    def __init__(self) -> None:
        super().__init__({"t": 2})
        self.announce("t", (1, 2, 1))
        self.metadata_hook = self.set_epochs
        self.answers = {
            ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS: self.maps,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.ends,
        }
        self.fill(PARENT, 10)
        self.fill(CHILD, 5)

    def fill(self, tp: TopicPartition, count: int) -> None:
        for number in range(count):
            self.logs[tp].append(build_batch([(b"k", b"%d" % number, [], 0)]))

    def set_epochs(self, response: MetadataResponse) -> None:
        for topic in response.topics:
            topic.partitions[0].leader_epoch = 1

    def maps(self, body: Any) -> PartitionLeaderEpochsForPartitionsResponse:
        return PartitionLeaderEpochsForPartitionsResponse(
            topics=[
                PartitionLeaderEpochsForPartitionsResponseTopic(
                    name=topic.name,
                    partitions=[
                        PartitionLeaderEpochsForPartitionsResponsePartition(
                            partition_index=p.partition_index,
                            incarnation=p.incarnation,
                            created_from=0,
                            leader_epoch_after_creation=0,
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )

    def ends(self, body: Any) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        EpochEndOffset(partition=p.partition, leader_epoch=p.leader_epoch, end_offset=10)
                        for p in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )


class Coordinated(Resized):
    """The same with a coordinator: offsets by partition, and positions for who asks without being a member."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: dict[int, tuple[int, int]] = {}
        """(offset, incarnation) by partition."""
        self.answers |= {
            ApiKey.FIND_COORDINATOR: lambda body: FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.port),
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.CONSUMER_GROUP_POSITION: self.position,
        }

    def offset_fetch(self, body: Any) -> OffsetFetchResponse:
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=p,
                            committed_offset=self.committed.get(p, (-1, -1))[0],
                            metadata="",
                            incarnation=self.committed.get(p, (-1, -1))[1],
                        )
                        for p in topic.partition_indexes
                    ],
                )
                for topic in body.topics
            ]
        )

    def offset_commit(self, body: Any) -> OffsetCommitResponse:
        for topic in body.topics:
            for p in topic.partitions:
                self.committed[p.partition_index] = (p.committed_offset, p.incarnation)
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=p.partition_index) for p in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )

    def position(self, body: Any) -> ConsumerGroupPositionResponse:
        assert (body.generation_id, body.member_id) == (-1, "")
        return ConsumerGroupPositionResponse(
            topics=[
                ConsumerGroupPositionResponseTopic(
                    name=topic.name,
                    partitions=[
                        ConsumerGroupPositionResponsePartition(
                            partition_index=p.partition_index,
                            incarnation=p.incarnation,
                            position=self.committed.get(p.partition_index, (-1, -1))[0],
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )


class Grouped(Coordinated):
    """A group of one that reads ``partitions``. Its coordinator asks until the parent is read, and its answers lag."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        super().__init__()
        self.partitions = list(partitions)
        self.reports: dict[int, int] = {}
        self.answers |= {
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: lambda body: SyncGroupResponse(assignment=encode_assignment(self.partitions)),
            ApiKey.HEARTBEAT: lambda body: HeartbeatResponse(),
            ApiKey.LEAVE_GROUP: lambda body: LeaveGroupResponse(),
            ApiKey.CONSUMER_GROUP_POSITION: self.poll,
        }

    def join(self, body: Any) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=1, protocol_name=body.protocols[0].name, leader="another", member_id="member"
        )

    async def poll(self, body: Any) -> ConsumerGroupPositionResponse:
        asked = [p for topic in body.topics for p in topic.partitions]
        self.reports |= {p.partition_index: p.position for p in asked if p.position >= 0}
        if body.max_wait_ms:
            await anyio.sleep_forever()
        wanted = {0: 1000} | {p.partition_index: p.incarnation for p in asked if p.need_position}
        partitions = [
            ConsumerGroupPositionResponsePartition(
                partition_index=p,
                incarnation=incarnation,
                need_position=p == 0 and self.reports.get(0) != 10,
                position=3 if p == 0 and self.reports else -1,
            )
            for p, incarnation in sorted(wanted.items())
        ]
        return ConsumerGroupPositionResponse(
            topics=[ConsumerGroupPositionResponseTopic(name="t", partitions=partitions)]
        )


class Story:
    """Callbacks and deliveries in the order in which they come."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def on_partition_key_maybe_revoked(self, partitions: list[TopicPartition]) -> None:
        self.lines.append(("flush", [tp.partition for tp in partitions]))

    async def on_partition_key_assigned(self, partitions: list[TopicPartition]) -> None:
        await anyio.lowlevel.checkpoint()
        self.lines.append(("load", [tp.partition for tp in partitions]))

    async def read_until(self, consumer: Consumer, holds: Callable[[], bool], **arguments: Any) -> None:
        while not holds():
            found = await consumer.getmany(timeout_ms=1000, **arguments)
            self.lines += [(tp.partition, record.offset) for tp, records in found.items() for record in records]

    def records(self, partition: int) -> list[int]:
        return [line[1] for line in self.lines if line[0] == partition]


def test_a_child_follows_its_parent_with_flush_and_load_between(run: Run) -> None:
    async def check() -> None:
        story = Story()
        async with Resized().running() as broker, Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            await story.read_until(consumer, lambda: len(story.records(1)) == 5, max_records=3)
        assert story.records(0) == list(range(10)) and story.records(1) == list(range(5))
        flush = len(story.lines) - 1 - story.lines[::-1].index(("flush", [0]))
        load = story.lines.index(("load", [1]))
        assert story.lines.index((0, 9)) < flush < load < story.lines.index((1, 0))

    run(check)


def test_hole_25_under_read_committed_the_last_stable_offset_is_the_end(run: Run) -> None:
    """A transaction is open from 8 on: nothing behind it is processed, so the child waits for its end."""

    async def check() -> None:
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
        async with (
            broker.running(),
            Consumer(
                bootstrap_servers=broker.address, isolation_level="read_committed", fetch_max_wait_ms=10, **FAST
            ) as consumer,
        ):
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            await story.read_until(consumer, lambda: len(story.records(0)) == 8)
            await story.read_until(consumer, lambda: consumer.explain_blocked()[0].waits_for[0].position == 8)
            assert not story.records(1)
            stable = 10
            await story.read_until(consumer, lambda: len(story.records(1)) == 5)
            assert story.records(0) == list(range(10))

    run(check)


def test_getone_waits_for_the_parent_as_well(run: Run) -> None:
    async def check() -> None:
        async with Resized().running() as broker, Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([CHILD, PARENT])
            found = [(r.partition, r.offset) for r in [await consumer.getone() for _ in range(15)]]
        assert found == [(0, n) for n in range(10)] + [(1, n) for n in range(5)]

    run(check)


def test_a_hand_over_between_partitions_assigned_by_hand_waits_for_no_other_round(run: Run) -> None:
    """What was reported is known at once; nobody sends a message that would wake ``getmany``."""

    async def check() -> None:
        never_ms = 600_000
        async with (
            Resized().running() as broker,
            Consumer(
                bootstrap_servers=broker.address,
                session_timeout_ms=never_ms + 1,
                heartbeat_interval_ms=never_ms,
                **FAST,
            ) as consumer,
        ):
            consumer.assign([CHILD, PARENT])
            read = 0
            while read < 15:
                read += sum(map(len, (await consumer.getmany(timeout_ms=never_ms)).values()))

    run(check)


def test_explain_blocked_says_what_is_waited_for_and_how_far_it_is(run: Run) -> None:
    async def check() -> None:
        async with Resized().running() as broker, Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([CHILD, PARENT])
            story = Story()
            await story.read_until(consumer, lambda: len(story.records(0)) >= 4, max_records=2)
            while True:
                (blocked,) = consumer.explain_blocked()
                if blocked.waits_for[0].position >= 0:
                    break
                await consumer.getmany(PARENT, timeout_ms=100, max_records=1)
            (wait,) = blocked.waits_for
            assert (blocked.partition, wait.on, wait.partition, wait.threshold) == (CHILD, PARENT, 1, 10)
            assert 0 <= wait.position < 10
            assert str(blocked) == (
                f"t-1 is blocked, waiting for the split that made partition 1: t-0 at {wait.position} of 10"
            )

    run(check)


def test_metrics_tell_how_long_the_hand_over_took(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with Resized().running() as broker, Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([CHILD, PARENT], partition_key_listener=Story())
            story = Story()
            await story.read_until(consumer, lambda: len(story.records(0)) == 10, max_records=2)
            (names,) = consumer.metrics().values()
            assert (names["blocked-partitions"], names["blocked-total"], names["hand-over-total"]) == (1, 1, 0)
            await story.read_until(consumer, lambda: len(story.records(1)) == 5, max_records=2)
            (names,) = consumer.metrics().values()
        assert (names["blocked-partitions"], names["blocked-total"], names["hand-over-total"]) == (0, 1, 1)
        assert 0 < names["hand-over-time-max-ms"] <= names["blocked-time-max-ms"]
        assert names["partition-key-maybe-revoked-total"] >= 1
        assert names["partition-key-assigned-total"] == 1

    with caplog.at_level(logging.INFO, "client.ordered_delivery.hand_overs"):
        run(check)
    said, released = caplog.messages
    assert said.startswith('blocked: partition=t-1 max_leader_epoch=-2 waits_for="the split that made partition 1: t-0')
    assert released.startswith("released: partition=t-1 after_ms=") and released.endswith(" waited_for=t-0")


def test_a_fetch_refused_for_its_layout_is_counted(run: Run) -> None:
    async def check() -> None:
        broker = Resized()
        refused = 0

        def refuse(body: Any, response: FetchResponse) -> None:
            nonlocal refused
            for topic in response.responses:
                for p in topic.partitions:
                    if refused < 3:
                        refused += 1
                        p.error_code, p.records = ErrorCode.INVALID_PARTITION_METADATA, b""

        broker.fetch_hook = refuse
        async with broker.running(), Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([PARENT])
            assert (await consumer.getone()).offset == 0
            (names,) = consumer.metrics().values()
            assert names["layout-refusals-total"] == 3

    run(check)


def test_metadata_found_too_old_by_a_question_is_not_waited_for_twice(run: Run) -> None:
    """The questions have pauses of their own: that after the last refresh would be a second one on top."""

    async def check() -> None:
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
        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest", **NO_SECOND_TRY) as consumer,
        ):
            consumer.assign([CHILD, PARENT])
            assert [(await consumer.getone()).partition for _ in range(15)] == [0] * 10 + [1] * 5

    run(check)


def test_hole_18_a_seek_back_on_the_parent_blocks_the_child_at_once(run: Run) -> None:
    async def check() -> None:
        story = Story()
        async with Resized().running() as broker, Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            await story.read_until(consumer, lambda: len(story.records(1)) >= 1, max_records=1)
            consumer.seek(PARENT, 4)
            story.lines.clear()
            await story.read_until(consumer, lambda: len(story.records(1)) >= 4, max_records=1)
        assert story.records(0) == list(range(4, 10))
        assert story.lines[0] == ("flush", [1])
        assert story.lines.index((0, 9)) < story.lines.index(("load", [1]))
        assert story.lines.index(("load", [1])) < min(n for n, line in enumerate(story.lines) if line[0] == 1)

    run(check)


def test_hole_21_a_parent_that_nobody_reads_is_never_silently_passed(run: Run) -> None:
    async def check() -> None:
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

    run(check)


def test_hole_21_a_log_start_past_the_threshold_frees(run: Run) -> None:
    async def check() -> None:
        broker = Resized()
        broker.logs[PARENT].start_offset = 10
        async with broker.running(), Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([CHILD])
            assert (await consumer.getone()).offset == 0

    run(check)


def test_hole_21_the_groups_committed_offset_frees(run: Run) -> None:
    async def check() -> None:
        broker = Coordinated()
        broker.committed[0] = (9, 1000)
        async with (
            broker.running(),
            Consumer(
                bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, retry_backoff_max_ms=5, **FAST
            ) as consumer,
        ):
            consumer.assign([CHILD])
            while not broker.seen(ApiKey.CONSUMER_GROUP_POSITION):
                assert not await consumer.getmany(timeout_ms=20)
            broker.committed[0] = (10, 1000)
            assert (await consumer.getone()).offset == 0

    run(check)


def test_hole_18_the_commit_comes_before_the_child_goes_on(run: Run) -> None:
    async def check() -> None:
        story, broker = Story(), Coordinated()
        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, **FAST) as consumer,
        ):
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            await story.read_until(consumer, lambda: ("load", [1]) in story.lines)
            assert broker.committed[0] == (10, 1000)

    run(check)


def test_an_offset_that_was_fetched_is_committed_before_it_is_reported(run: Run) -> None:
    """It may be the next owner's, committed ahead of its flush: only a commit taken tells whose parent it is."""

    async def check() -> None:
        story, broker = Story(), Grouped([PARENT, CHILD])
        broker.committed[0] = (10, 1000)
        refused = 0

        def refuse(body: Any) -> OffsetCommitResponse:
            nonlocal refused
            refused += 1
            return OffsetCommitResponse(
                topics=[
                    OffsetCommitResponseTopic(
                        name="t",
                        partitions=[
                            OffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode.UNKNOWN_MEMBER_ID)
                        ],
                    )
                ]
            )

        broker.answers[ApiKey.OFFSET_COMMIT] = refuse
        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, **FAST) as consumer,
        ):
            consumer.subscribe(["t"], partition_key_listener=story)
            while refused < 3:
                assert not await consumer.getmany(timeout_ms=20)
        assert ("load", [1]) not in story.lines

    run(check)


def test_without_a_commit_a_member_goes_on_when_its_coordinator_has_answered(run: Run) -> None:
    """``ordered_delivery_commit_before_report=False``: nothing else tells that it was not thrown out."""

    async def check() -> None:
        story, broker = Story(), Grouped([PARENT, CHILD])
        polled, refused = broker.poll, 0

        async def refuse(body: Any) -> ConsumerGroupPositionResponse:
            nonlocal refused
            if any(p.position >= 0 for topic in body.topics for p in topic.partitions):
                refused += 1
                return ConsumerGroupPositionResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            return await polled(body)

        broker.answers[ApiKey.CONSUMER_GROUP_POSITION] = refuse
        async with (
            broker.running(),
            Consumer(
                bootstrap_servers=broker.address,
                group_id="g",
                enable_auto_commit=False,
                ordered_delivery_commit_before_report=False,
                **FAST,
            ) as consumer,
        ):
            consumer.subscribe(["t"], partition_key_listener=story)
            await story.read_until(consumer, lambda: refused >= 3)
        assert ("load", [1]) not in story.lines

    run(check)


@pytest.mark.parametrize("before", [[CHILD], [CHILD, PARENT]], ids=["given", "taken away"])
def test_a_parent_that_is_assigned_anew_is_waited_for_where_it_is_now(run: Run, before: list[TopicPartition]) -> None:
    """Its child has to know whom to ask: this consumer, or the group."""

    async def check() -> None:
        story, broker = Story(), Coordinated()
        broker.committed[0] = (3, 1000)
        async with (
            broker.running(),
            Consumer(
                bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, retry_backoff_max_ms=5, **FAST
            ) as consumer,
        ):
            consumer.assign(before, partition_key_listener=story)
            while not consumer.explain_blocked():
                await consumer.getmany(CHILD, timeout_ms=20)
            if PARENT in before:
                consumer.assign([CHILD], partition_key_listener=story)
                broker.committed[0] = (10, 1000)
            else:
                consumer.assign([CHILD, PARENT], partition_key_listener=story)
            await story.read_until(consumer, lambda: len(story.records(1)) == 5)

    run(check)


def test_who_goes_back_in_the_flush_callback_reports_nothing_before_that(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported is what was committed: a crash would read the parent again behind its child."""

    async def check() -> None:
        broker = Grouped([PARENT])

        class GoesBack(Story):
            def on_partition_key_maybe_revoked(self, partitions: list[TopicPartition]) -> None:
                if not self.lines and consumer._subscription.state(PARENT).position == 10:
                    consumer.seek(PARENT, 4)
                    super().on_partition_key_maybe_revoked(partitions)

        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, **FAST) as consumer,
        ):
            story, reports, ahead = GoesBack(), consumer._ordered._reports, []
            say = reports.said

            def said(tp: TopicPartition, progress: Progress) -> None:
                if progress.position > broker.committed[tp.partition][0]:
                    ahead.append(progress)
                say(tp, progress)

            monkeypatch.setattr(reports, "said", said)
            consumer.subscribe(["t"], partition_key_listener=story)
            while not story.lines:
                await consumer.getmany(timeout_ms=20)
            while broker.reports.get(0) != 10:
                await consumer.getmany(timeout_ms=20)
            assert not ahead
            assert broker.committed[0] == (10, 1000)

    run(check)


def test_behind_a_commit_that_was_refused_nothing_goes_on(run: Run) -> None:
    """Another one owns the parent now, and will read it again from where it was committed."""

    async def check() -> None:
        story, broker = Story(), Coordinated()
        taken, refusals = broker.offset_commit, 3

        def refuse(body: Any) -> OffsetCommitResponse:
            nonlocal refusals
            response = taken(body)
            if refusals:
                assert ("load", [1]) not in story.lines
                refusals -= 1
                for topic in response.topics:
                    for p in topic.partitions:
                        p.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return response

        broker.answers[ApiKey.OFFSET_COMMIT] = refuse
        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, **FAST) as consumer,
        ):
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            await story.read_until(consumer, lambda: ("load", [1]) in story.lines)
            assert not refusals

    run(check)


def test_a_member_follows_its_own_partition_whatever_its_coordinator_knows(run: Run) -> None:
    async def check() -> None:
        story, broker = Story(), Grouped([PARENT, CHILD])
        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, **FAST) as consumer,
        ):
            consumer.subscribe(["t"], partition_key_listener=story)
            await story.read_until(consumer, lambda: len(story.records(1)) == 5)
            while not consumer.metrics()[CONSUMER_GROUP]["position-report-total"]:
                await consumer.getmany(timeout_ms=20)
            await consumer.getmany()
        assert story.lines.index(("flush", [0])) < story.lines.index(("load", [1]))
        assert ("flush", [1]) not in story.lines
        assert broker.committed[0] == (10, 1000)

    run(check)


def test_what_was_rewound_and_read_again_is_reported_again(run: Run) -> None:
    """Nobody waited for the parent meanwhile: what was said of it before does not hold."""

    async def check() -> None:
        story, broker = Story(), Coordinated()
        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, **FAST) as consumer,
        ):
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            await story.read_until(consumer, lambda: len(story.records(1)) == 5)
            consumer.assign([PARENT], partition_key_listener=story)
            consumer.seek(PARENT, 4)
            while await consumer.position(PARENT) < 10:
                await consumer.getmany(timeout_ms=20)
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            consumer.seek(CHILD, 0)
            story.lines.clear()
            await story.read_until(consumer, lambda: len(story.records(1)) == 5)

    run(check)


def test_a_rewind_counts_though_nobody_waits_any_more(run: Run) -> None:
    """What was reported of a partition read here is remembered: a merge that comes later must not take it for true."""

    async def check() -> None:
        broker = Grouped([PARENT])
        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, **FAST) as consumer,
        ):
            consumer.subscribe(["t"])
            while broker.reports.get(0) != 10:
                await consumer.getmany(timeout_ms=20)
            gate = consumer._ordered._gate
            assert gate.position(PARENT) == 10
            consumer.seek(PARENT, 4)
            await consumer.getmany(max_records=1)
            assert gate.position(PARENT) == 4

    run(check)


def test_committing_before_reporting_can_be_turned_off(run: Run) -> None:
    async def check() -> None:
        story, broker = Story(), Coordinated()
        async with (
            broker.running(),
            Consumer(
                bootstrap_servers=broker.address,
                group_id="g",
                enable_auto_commit=False,
                ordered_delivery_commit_before_report=False,
                **FAST,
            ) as consumer,
        ):
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
            await story.read_until(consumer, lambda: ("load", [1]) in story.lines)
            assert not broker.committed
            await consumer.commit({PARENT: 7})
            assert broker.committed == {0: (7, 1000)}

    run(check)


def test_an_offset_of_an_earlier_incarnation_is_dropped(run: Run) -> None:
    """Hole 20: it counts records of another partition; what is there now is all new."""

    async def check() -> None:
        broker = Coordinated()
        broker.committed = {0: (3, 1000), 1: (4, 7)}
        async with (
            broker.running(),
            Consumer(
                bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, auto_offset_reset="latest"
            ) as consumer,
        ):
            consumer.assign([PARENT, CHILD])
            assert await consumer.position(PARENT) == 3
            assert await consumer.position(CHILD) == 0

    run(check)


@pytest.mark.parametrize(("committed", "start"), [({0: (10, 1000)}, 0), ({}, 5)])
def test_kafka_12261_latest_is_earliest_for_a_partition_born_after_the_group_began(
    run: Run, committed: dict[int, tuple[int, int]], start: int
) -> None:
    """A group that has read the parent finds the child new; one that begins now wants what comes from now on."""

    async def check() -> None:
        broker = Coordinated()
        broker.committed = dict(committed)
        async with (
            broker.running(),
            Consumer(
                bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, auto_offset_reset="latest"
            ) as consumer,
        ):
            consumer.assign([PARENT, CHILD])
            assert await consumer.position(CHILD) == start

    run(check)


def test_kafka_12261_latest_is_earliest_for_a_partition_this_consumer_saw_being_born(run: Run) -> None:
    async def check() -> None:
        broker = Resized()
        broker.topics["t"] = 1
        broker.announce("t", (1, 1, 0))
        async with (
            broker.running(),
            Consumer(bootstrap_servers=broker.address, auto_offset_reset="latest") as consumer,
        ):
            consumer.assign([PARENT])
            assert await consumer.position(PARENT) == 10
            broker.announce("t", (1, 2, 1))
            consumer.assign([PARENT, CHILD])
            assert await consumer.position(CHILD) == 0

    run(check)


@pytest.mark.parametrize("ordered", [0, None])
def test_without_ordered_delivery_nothing_is_asked_and_nothing_waits(run: Run, ordered: int | None) -> None:
    """``enable.ordered.delivery=false``, and a plain Kafka broker, whose metadata has no layout at all."""

    async def check() -> None:
        broker = Resized()

        def plain(response: MetadataResponse) -> None:
            for topic in response.topics:
                topic.ordered_delivery = 0
                if ordered is None:
                    topic.initial_partition_count = topic.undeleted_partition_count = topic.layout_version = -1
                    for p in topic.partitions:
                        p.incarnation = -1

        broker.metadata_hook = plain
        async with broker.running(), Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([CHILD])
            assert (await consumer.getone()).offset == 0
            assert consumer.explain_blocked() == ()
        assert not broker.seen(ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS)
        tags = {(t.undeleted_partition_count, t.layout_version) for f in broker.seen(ApiKey.FETCH) for t in f.topics}
        assert tags == {(-1, -1)}

    run(check)


def test_hole_28_a_refused_layout_is_asked_about_and_begins_a_new_session(run: Run) -> None:
    async def check() -> None:
        broker = Resized()
        broker.topics["t"] = 1
        broker.announce("t", (1, 1, 0))
        fetches: list[tuple[int, list[tuple[int, int]]]] = []
        refusals = 0

        def refuse(body: Any, response: FetchResponse) -> None:
            nonlocal refusals
            response.session_id = 7
            tags = [(t.undeleted_partition_count, t.layout_version) for t in body.topics]
            fetches.append((body.session_epoch, tags))
            for topic in response.responses:
                for p in topic.partitions:
                    if refusals < 4 or tags == [(1, 0)]:
                        refusals += 1
                        p.error_code, p.records = ErrorCode.INVALID_PARTITION_METADATA, b""
                        if refusals == 3:
                            broker.announce("t", (1, 2, 1))

        broker.fetch_hook = refuse
        async with broker.running(), Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([PARENT])
            assert (await consumer.getone()).offset == 0
        assert fetches[0] == (0, [(1, 0)])
        first = next(fetch for fetch in fetches if fetch[1] == [(2, 1)])
        assert first[0] == 0, "a new session"
        assert len(broker.seen(ApiKey.METADATA)) >= 3
        assert not broker.seen(ApiKey.JOIN_GROUP)

    run(check)


def test_a_batch_newer_than_the_metadata_waits_for_it(run: Run) -> None:
    async def check() -> None:
        broker = Resized()
        epoch = 1

        def grown(response: MetadataResponse) -> None:
            response.topics[0].partitions[0].leader_epoch = epoch

        def newer(body: Any, response: FetchResponse) -> None:
            for topic in response.responses:
                for p in topic.partitions:
                    if p.records:
                        batch = bytearray(p.records)
                        set_base_offset(batch, 0, 2)
                        p.records = bytes(batch)

        broker.logs[PARENT].batches = broker.logs[PARENT].batches[:1]
        broker.logs[PARENT].end_offset = 1
        broker.metadata_hook, broker.fetch_hook = grown, newer
        async with broker.running(), Consumer(bootstrap_servers=broker.address, **FAST) as consumer:
            consumer.assign([PARENT])
            while not broker.seen(ApiKey.FETCH):
                assert not await consumer.getmany(timeout_ms=20)
            for _ in range(5):
                assert not await consumer.getmany(timeout_ms=20)
            epoch = 2
            assert (await consumer.getone()).leader_epoch == 2

    run(check)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("from_offset", [0, 1, 3])
def test_hole_24_tombstones_of_moved_keys_are_not_shown(compression: CompressionType, from_offset: int) -> None:
    moved = (b"k", None, [("x", b""), (MOVED_HEADER, b"")], 0)
    data = build_batch(
        [(b"a", b"0", [], 0), moved, (b"b", None, [], 0), (b"c", b"3", [(MOVED_HEADER, b"")], 0), moved],
        compression=compression,
    )
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
