"""On a resized topic, a consumer with a group commits and reports, and some steps wait for commits and reports."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from anabranch.client.client_metrics import CONSUMER_GROUP
from anabranch.client.errors import CommitFailedError, ErrorCode
from anabranch.client.ordered_delivery.reports import ProcessedUpTo
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.generated.consumer_group_position import ConsumerGroupPositionResponse
from anabranch.protocol.generated.heartbeat import HeartbeatResponse
from anabranch.protocol.generated.offset_commit import OffsetCommitResponse
from anabranch.protocol.types import TopicPartition
from tests.support.protocol.messages import answered, by_partition
from tests.unit.client.resized_broker import CHILD, PARENT, Coordinated, Grouped, Story, member_of


async def test_hole_21_the_groups_committed_offset_releases_the_child() -> None:
    broker = Coordinated()
    broker.committed[0] = (9, 1000)
    async with broker.running(), member_of(broker, retry_backoff_max_ms=5) as consumer:
        consumer.assign([CHILD])
        while not broker.seen(ApiKey.CONSUMER_GROUP_POSITION):
            assert not await consumer.getmany(timeout_ms=20)
        broker.committed[0] = (10, 1000)
        assert (await consumer.getone()).offset == 0


@pytest.mark.parametrize("is_member", [True, False])
async def test_a_position_in_the_partition_of_a_deleted_topic_releases_nothing(is_member: bool) -> None:
    """The topic was created again while the answer was in flight. The present parent has the incarnation 1000."""
    broker = Grouped([CHILD]) if is_member else Coordinated()
    incarnation = 999
    asked = 0

    def answer(body: Any) -> ConsumerGroupPositionResponse:
        nonlocal asked
        asked += 1
        return by_partition(ConsumerGroupPositionResponse, {"t": {0: {"incarnation": incarnation, "position": 10}}})

    broker.answers[ApiKey.CONSUMER_GROUP_POSITION] = answer
    async with broker.running(), member_of(broker, retry_backoff_max_ms=5) as consumer:
        if is_member:
            consumer.subscribe(["t"])
        else:
            consumer.assign([CHILD])
        while asked < 5:
            assert not await consumer.getmany(timeout_ms=20)
        assert not await consumer.getmany(timeout_ms=20)
        incarnation = 1000
        assert (await consumer.getone()).offset == 0


async def test_hole_18_the_parents_offset_is_committed_before_the_child_continues() -> None:
    story, broker = Story(), Coordinated()
    async with broker.running(), member_of(broker) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: ("load", [1]) in story.lines)
        assert broker.committed[0] == (10, 1000)


async def test_an_offset_that_was_fetched_is_committed_before_it_is_reported() -> None:
    """A member commits a fetched offset again before it reports the offset.

    The next owner may have committed the offset before its flush. Only a successful commit shows that this member
    still owns the parent.
    """
    story, broker = Story(), Grouped([PARENT, CHILD])
    broker.committed[0] = (10, 1000)
    refused = 0

    def refuse(body: Any) -> OffsetCommitResponse:
        nonlocal refused
        refused += 1
        return by_partition(OffsetCommitResponse, {"t": {0: {"error_code": ErrorCode.UNKNOWN_MEMBER_ID}}})

    broker.answers[ApiKey.OFFSET_COMMIT] = refuse
    async with broker.running(), member_of(broker) as consumer:
        consumer.subscribe(["t"], partition_key_listener=story)
        while refused < 3:
            assert not await consumer.getmany(timeout_ms=20)
    assert ("load", [1]) not in story.lines


async def test_without_a_commit_a_member_continues_only_after_its_report_is_accepted() -> None:
    """Without a commit before the report, only the coordinator's answer shows that the member is still in the group.

    The config is ``ordered_delivery_commit_before_report=False``.
    """
    story, broker = Story(), Grouped([PARENT, CHILD])
    polled, refused = broker.poll, 0

    async def refuse(body: Any) -> ConsumerGroupPositionResponse:
        nonlocal refused
        if any(p.position >= 0 for topic in body.topics for p in topic.partitions):
            refused += 1
            return ConsumerGroupPositionResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return await polled(body)

    broker.answers[ApiKey.CONSUMER_GROUP_POSITION] = refuse
    async with broker.running(), member_of(broker, ordered_delivery_commit_before_report=False) as consumer:
        consumer.subscribe(["t"], partition_key_listener=story)
        await story.read_until(consumer, lambda: refused >= 3)
    assert ("load", [1]) not in story.lines


@pytest.mark.parametrize("before", [[CHILD], [CHILD, PARENT]], ids=["assigned", "revoked"])
async def test_after_a_new_assignment_the_parents_position_comes_from_its_present_owner(
    before: list[TopicPartition],
) -> None:
    """The source of the parent's position depends on the assignment: this consumer, or the group."""
    story, broker = Story(), Coordinated()
    broker.committed[0] = (3, 1000)
    async with broker.running(), member_of(broker, retry_backoff_max_ms=5) as consumer:
        consumer.assign(before, partition_key_listener=story)
        while not consumer.explain_blocked():
            await consumer.getmany(CHILD, timeout_ms=20)
        if PARENT in before:
            consumer.assign([CHILD], partition_key_listener=story)
            broker.committed[0] = (10, 1000)
        else:
            consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: len(story.records(1)) == 5)


async def test_a_seek_back_in_the_flush_callback_leaves_no_report_above_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reports never exceed commits. Otherwise, after a crash, the parent would be read again after its child."""
    broker = Grouped([PARENT])

    class GoesBack(Story):
        def on_partition_key_maybe_revoked(self, partitions: list[TopicPartition]) -> None:
            if not self.lines and consumer._subscription.state(PARENT).position == 10:
                consumer.seek(PARENT, 4)
                super().on_partition_key_maybe_revoked(partitions)

    async with broker.running(), member_of(broker) as consumer:
        story, reports, ahead = GoesBack(), consumer._ordered._reports, []
        note_reported = reports.reported

        def reported(tp: TopicPartition, progress: ProcessedUpTo) -> None:
            if progress.position > broker.committed[tp.partition][0]:
                ahead.append(progress)
            note_reported(tp, progress)

        monkeypatch.setattr(reports, "reported", reported)
        consumer.subscribe(["t"], partition_key_listener=story)
        while not story.lines:
            await consumer.getmany(timeout_ms=20)
        while broker.reports.get(0) != 10:
            await consumer.getmany(timeout_ms=20)
        assert not ahead
        assert broker.committed[0] == (10, 1000)


async def test_a_position_is_reported_with_its_commit() -> None:
    """One request is enough if the coordinator's response says that the commit was taken as a report."""
    story, broker = Story(), Grouped([PARENT])
    commit, polls = broker.offset_commit, broker.poll
    polled: list[int] = []

    def taken(_topic: str, partition: int, p: Any) -> dict[str, Any]:
        if p.is_processed:
            assert story.lines and ("flush", [partition]) in story.lines
            broker.reports[partition] = p.committed_offset
        return {"is_reported": p.is_processed}

    def take(body: Any) -> OffsetCommitResponse:
        commit(body)
        return answered(OffsetCommitResponse, body, taken)

    async def poll(body: Any) -> ConsumerGroupPositionResponse:
        polled.extend(p.position for topic in body.topics for p in topic.partitions if p.position >= 0)
        return await polls(body)

    broker.answers |= {ApiKey.OFFSET_COMMIT: take, ApiKey.CONSUMER_GROUP_POSITION: poll}
    async with broker.running(), member_of(broker) as consumer:
        consumer.subscribe(["t"], partition_key_listener=story)
        await story.read_until(consumer, lambda: broker.reports.get(0) == 10, max_records=10)
        await consumer.getmany()
        assert consumer.metrics()[CONSUMER_GROUP]["position-report-total"]
    assert not polled


async def test_a_seek_back_after_a_cancelled_commit_is_reported() -> None:
    """The coordinator may have taken the cancelled commit as a report, so the rewind is reported."""
    broker = Grouped([PARENT])
    commit, taken, given_up = broker.offset_commit, anyio.Event(), anyio.Event()
    known = -1

    async def take(body: Any) -> OffsetCommitResponse:
        nonlocal known
        commit(body)
        known = broker.committed[0][0]
        if known == 10 and not taken.is_set():
            taken.set()
            await given_up.wait()
        return answered(OffsetCommitResponse, body, lambda _, partition, p: {"is_reported": p.is_processed})

    async def poll(body: Any) -> ConsumerGroupPositionResponse:
        nonlocal known
        known = max([known, *(p.position for topic in body.topics for p in topic.partitions)])
        response = await polls(body)
        for topic in response.topics:
            for p in topic.partitions:
                p.need_position, p.position = True, known
        return response

    polls = broker.poll
    broker.answers |= {ApiKey.OFFSET_COMMIT: take, ApiKey.CONSUMER_GROUP_POSITION: poll}
    async with broker.running(), member_of(broker) as consumer:
        consumer.subscribe(["t"])
        while known < 1:
            await consumer.getmany(timeout_ms=20, max_records=1)
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                while True:
                    await consumer.getmany(timeout_ms=20)

            tasks.start_soon(read)
            await taken.wait()
            tasks.cancel_scope.cancel()
        given_up.set()
        consumer.seek(PARENT, 5)
        await consumer.getmany(timeout_ms=20, max_records=1)
        assert await consumer.position(PARENT) <= 6
        assert known == 5


async def test_a_refused_commit_blocks_the_child() -> None:
    """After a refusal another member may own the parent, and read it again from the committed offset."""
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
    async with broker.running(), member_of(broker) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: ("load", [1]) in story.lines)
        assert not refusals


async def test_partitions_lost_during_a_callback_are_given_up_before_the_next_delivery() -> None:
    """The group need not wait for a callback: another member may already be past the buffered records."""
    broker = Grouped([PARENT, CHILD])
    broker.fill(PARENT, 500)
    has_read, answer = anyio.Event(), broker.poll
    is_thrown_out = False

    async def poll(body: Any) -> ConsumerGroupPositionResponse:
        if not body.max_wait_ms:
            return ConsumerGroupPositionResponse()
        await has_read.wait()
        body.max_wait_ms = 0
        return await answer(body)

    def heartbeat(body: Any) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID if is_thrown_out else ErrorCode.NONE)

    broker.answers |= {ApiKey.HEARTBEAT: heartbeat, ApiKey.CONSUMER_GROUP_POSITION: poll}

    class Slow(Story):
        async def on_partition_key_maybe_revoked(self, partitions: list[TopicPartition]) -> None:
            nonlocal is_thrown_out
            super().on_partition_key_maybe_revoked(partitions)
            is_thrown_out = True
            try:
                while is_thrown_out:
                    await consumer.commit()
            except CommitFailedError:
                is_thrown_out = False

        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            self.lines.append(("lost", [tp.partition for tp in partitions]))

    story = Slow()
    async with broker.running(), member_of(broker, heartbeat_interval_ms=5) as consumer:
        consumer.subscribe(["t"], listener=story, partition_key_listener=story)
        await story.read_until(consumer, lambda: (0, 0) in story.lines, max_records=1)
        has_read.set()
        await story.read_until(consumer, lambda: ("lost", [0, 1]) in story.lines, max_records=1)
    assert len(story.records(0)) < 510
    assert story.lines.index(("lost", [0, 1])) == story.lines.index(("flush", [0])) + 1


async def test_a_parent_that_was_rewound_and_read_again_is_reported_again() -> None:
    """The child was not assigned for a while, so the parent's earlier report is not valid any more."""
    story, broker = Story(), Coordinated()
    async with broker.running(), member_of(broker) as consumer:
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


async def test_a_rewind_counts_although_no_partition_waits_any_more() -> None:
    """The consumer remembers reports of the partitions that it owns, and a later merge must not use an old report."""
    broker = Grouped([PARENT])
    async with broker.running(), member_of(broker) as consumer:
        consumer.subscribe(["t"])
        while broker.reports.get(0) != 10:
            await consumer.getmany(timeout_ms=20)
        gates = consumer._ordered._gates
        assert gates.position(PARENT) == 10
        consumer.seek(PARENT, 4)
        await consumer.getmany(max_records=1)
        assert gates.position(PARENT) == 4


async def test_committing_before_reporting_can_be_turned_off() -> None:
    story, broker = Story(), Coordinated()
    async with broker.running(), member_of(broker, ordered_delivery_commit_before_report=False) as consumer:
        consumer.assign([CHILD, PARENT], partition_key_listener=story)
        await story.read_until(consumer, lambda: ("load", [1]) in story.lines)
        assert not broker.committed
        await consumer.commit({PARENT: 7})
        assert broker.committed == {0: (7, 1000)}


async def test_an_offset_of_an_earlier_incarnation_is_dropped() -> None:
    """Hole 20: the offset counts records of an earlier partition, and all records of the present one are new."""
    broker = Coordinated()
    broker.committed = {0: (3, 1000), 1: (4, 7)}
    async with broker.running(), member_of(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([PARENT, CHILD])
        assert await consumer.position(PARENT) == 3
        assert await consumer.position(CHILD) == 0


@pytest.mark.parametrize(("committed", "start"), [({0: (10, 1000)}, 0), ({}, 5)])
async def test_kafka_12261_latest_is_earliest_for_a_partition_created_after_the_group_began(
    committed: dict[int, tuple[int, int]], start: int
) -> None:
    """A group that has read the parent reads the child from its start; a new group starts at the end."""
    broker = Coordinated()
    broker.committed = dict(committed)
    async with broker.running(), member_of(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([PARENT, CHILD])
        assert await consumer.position(CHILD) == start
