"""Cluster metadata, fetch sessions, fetched batches, transactions and membership, all without IO."""

from __future__ import annotations

import gc
import random
import uuid
from typing import Any

import pytest

from anabranch.client.cluster import Cluster
from anabranch.client.consumer.fetch_session import ConsumerFetchSession, FetchPosition
from anabranch.client.consumer.read_committed import visible_batches
from anabranch.client.errors import ErrorCode, RecordDeserializationError
from anabranch.client.group.group_member import GroupMember, MemberState, Reaction, react
from anabranch.client.net.connections import backoff_ms
from anabranch.client.producer.partitioner import StickyPartitioner
from anabranch.client.subscription.fetched_batch import Deserializers, FetchedBatch, Records
from anabranch.client.subscription.subscription import AssignedPartition, FetchState, Subscription
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH
from anabranch.protocol.batch_builder import build_batch, retain_records
from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT
from anabranch.protocol.generated.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.transitions import IllegalTransitionError
from anabranch.protocol.types import TopicPartition
from tests.support.log.batches import build_control_batch
from tests.support.protocol.messages import message

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
TOPIC_ID = uuid.UUID(int=1)


def metadata(epoch: int, *, leader: int = 1, topic_id: uuid.UUID = TOPIC_ID, error: int = 0) -> MetadataResponse:
    partition = {"partition_index": 0, "leader_id": leader, "leader_epoch": epoch}
    topic = {"name": "t", "topic_id": topic_id, "error_code": error, "partitions": [] if error else [partition]}
    brokers = [{"node_id": n, "host": "h", "port": n} for n in (1, 2)]
    return message(MetadataResponse, brokers=brokers, topics=[topic])


def test_metadata_never_goes_back_to_an_older_leader_epoch() -> None:
    cluster = Cluster().merge(metadata(5, leader=2), {"t"})
    assert cluster.merge(metadata(4), {"t"}).leader(T0) == 2
    assert cluster.merge(metadata(6), {"t"}).leader(T0) == 1
    assert cluster.merge(metadata(0, topic_id=uuid.UUID(int=2)), {"t"}).leader(T0) == 1, "a new topic starts again"


def test_metadata_leaves_out_a_topic_without_a_name() -> None:
    """The protocol allows such a topic, but a client that requests topics by name cannot use it."""
    response = metadata(1)
    response.topics.append(MetadataResponseTopic(name=None, topic_id=uuid.UUID(int=3)))
    assert set(Cluster().merge(response, None).topics) == {"t"}


def test_errors_in_metadata_keep_or_drop_the_known_leader() -> None:
    cluster = Cluster().merge(metadata(1), {"t"})
    assert cluster.merge(metadata(1, error=ErrorCode.LEADER_NOT_AVAILABLE), {"t"}).leader(T0) == 1
    assert cluster.merge(metadata(1, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), {"t"}).leader(T0) == -1
    assert cluster.merge(MetadataResponse(topics=[]), set()).topics == {}


def position(offset: int) -> FetchPosition:
    return FetchPosition(offset, 0, -1, 100)


def test_a_fetch_session_sends_added_moved_and_dropped_partitions() -> None:
    session = ConsumerFetchSession()
    first = session.next_request({T0: position(0), T1: position(0)})
    assert (first.session_id, first.epoch, set(first.send)) == (0, 0, {T0, T1})
    assert session.on_response(first, ErrorCode.NONE, 9)
    second = session.next_request({T0: position(5), T1: position(0)})
    assert (second.session_id, second.epoch, second.send, second.forget) == (9, 1, {T0: position(5)}, [])
    assert session.on_response(second, ErrorCode.NONE, 9)
    third = session.next_request({T1: position(0)})
    assert (third.epoch, third.send, third.forget) == (2, {}, [T0])


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_fetch_session_starts_again_after_an_error(error: ErrorCode) -> None:
    session = ConsumerFetchSession()
    session.on_response(session.next_request({T0: position(0)}), ErrorCode.NONE, 9)
    assert not session.on_response(session.next_request({T0: position(3)}), error, 9)
    again = session.next_request({T0: position(3)})
    assert (again.session_id, again.epoch, again.send) == (0, 0, {T0: position(3)})


def test_a_fetch_session_names_again_or_forgets_refused_partitions() -> None:
    """A refused partition that a request neither names nor forgets stays in the session, and is refused again."""
    session = ConsumerFetchSession()
    session.on_response(session.next_request({T0: position(0), T1: position(0)}), ErrorCode.NONE, 9)
    session.refused(T0)
    again = session.next_request({T0: position(0), T1: position(0)})
    assert (again.send, again.forget) == ({T0: position(0)}, [])
    session.refused(T0)
    without = session.next_request({T1: position(0)})
    assert (without.send, without.forget) == ({}, [T0])
    session.refused(T0)
    assert session.next_request({T1: position(0)}).forget == []


def test_a_broker_without_sessions_gets_full_fetches() -> None:
    session = ConsumerFetchSession()
    session.on_response(session.next_request({T0: position(0)}), ErrorCode.NONE, 0)
    assert session.next_request({T0: position(1)}).epoch == 0


def test_only_the_first_fetch_of_the_first_session_is_urgent() -> None:
    """The broker must not hold the first request. A request after a missing or lost session may be held."""
    session = ConsumerFetchSession()
    first = session.next_request({T0: position(0)})
    assert first.is_urgent and not session.takes_more
    session.on_response(first, ErrorCode.NONE, 9)
    assert session.takes_more and not session.next_request({T0: position(0)}).is_urgent
    session.on_response(session.next_request({T0: position(0)}), ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    again = session.next_request({T0: position(0)})
    assert not again.is_urgent
    session.on_response(again, ErrorCode.NONE, 0)
    assert not session.next_request({T0: position(0)}).is_urgent and not session.takes_more


def test_a_second_fetch_may_be_sent_before_the_first_is_answered() -> None:
    session = ConsumerFetchSession()
    session.on_response(session.next_request({T0: position(0)}), ErrorCode.NONE, 9)
    first = session.next_request({T0: position(0)})
    second = session.next_request({T0: position(0), T1: position(4)})
    assert [(r.session_id, r.epoch, r.send) for r in (first, second)] == [(9, 1, {}), (9, 2, {T1: position(4)})]
    assert session.on_response(first, ErrorCode.NONE, 9) and session.on_response(second, ErrorCode.NONE, 9)
    assert session.next_request({T1: position(4)}).epoch == 3


def test_a_response_of_an_earlier_fetch_session_does_not_change_the_next() -> None:
    session = ConsumerFetchSession()
    session.on_response(session.next_request({T0: position(0)}), ErrorCode.NONE, 9)
    old = session.next_request({T0: position(0)})
    session.reset()
    new = session.next_request({T0: position(0)})
    assert (new.session_id, new.epoch) == (0, 0)
    assert session.on_response(old, ErrorCode.NONE, 9)
    assert session.on_response(new, ErrorCode.NONE, 10)
    assert session.next_request({T0: position(0)}).session_id == 10
    assert not session.on_response(old, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0) and session.session_id == 10


def batch(first: int, count: int) -> RecordBatch:
    return RecordBatch(build_batch([(None, b"%d" % n, (), n) for n in range(first, first + count)], base_offset=first))


def test_reading_begins_inside_a_batch() -> None:
    fetched = FetchedBatch(batch(10, 5), 13)
    assert fetched.left == 2
    records = Records(T0, [fetched.take(9)], Deserializers())
    assert [r.offset for r in records] == [13, 14]
    assert fetched.position() == 15


def test_reading_a_compacted_batch_skips_by_offset() -> None:
    whole = batch(10, 6)
    kept = [r for r in whole if r.offset in (10, 12, 15)]
    compacted = RecordBatch(retain_records(whole, kept))
    fetched = FetchedBatch(compacted, 11)
    assert fetched.left == 2
    first = Records(T0, [fetched.take(1)], Deserializers())
    assert ([r.offset for r in first], fetched.position()) == ([12], 15)
    second = Records(T0, [fetched.take(1)], Deserializers())
    assert ([r.offset for r in second], fetched.position()) == ([15], 16)


def test_a_batch_with_prepared_rows_is_freed_without_the_garbage_collector() -> None:
    def kept() -> int:
        return sum(type(each) is FetchedBatch for each in gc.get_objects())

    before = kept()
    gc.disable()
    try:
        fetched = FetchedBatch(batch(0, 4), 0)
        fetched.take(1)
        fetched.prepare_rows(T0, Deserializers(), 9)
        assert next(fetched.rows).offset == 1 and kept() == before + 1
        del fetched
        assert kept() == before
    finally:
        gc.enable()


def test_records_is_a_sequence() -> None:
    records = Records(T0, [FetchedBatch(batch(0, 4), 0).take(4)], Deserializers())
    assert len(records) == 4
    assert records[-1].offset == 3
    assert [r.offset for r in records[1:3]] == [1, 2]
    assert [r.offset for r in records] == [0, 1, 2, 3]


def test_an_iterator_of_records_ends_at_the_error_of_a_deserializer() -> None:
    """Without the end, all later records would have the key of one record and the value of another."""

    def number(data: bytes | None) -> int:
        return 1 // (int(data or b"") - 2)

    raw = build_batch([(b"%d" % n, b"%d" % n, (), 0) for n in range(5)])
    for deserializers in (Deserializers(number), Deserializers(None, number)):
        records = iter(Records(T0, [FetchedBatch(RecordBatch(raw), 0).take(5)], deserializers))
        assert [next(records).offset for _ in range(2)] == [0, 1]
        with pytest.raises(RecordDeserializationError, match="offset 2") as raised:
            next(records)
        assert (raised.value.partition, raised.value.offset) == (T0, 2)
        assert list(records) == []


def test_a_position_passes_over_batches_without_records() -> None:
    state = AssignedPartition(T0)
    state.seek(0)
    state.add(FetchedBatch(batch(0, 2), 0))
    state.add(
        FetchedBatch(RecordBatch(build_control_batch(CONTROL_COMMIT, 1, 0, 0, 0, base_offset=2)), 2, visible=False)
    )
    state.add(FetchedBatch(batch(3, 2), 3))
    spans = state.take(10)
    assert [r.offset for r in Records(T0, spans, Deserializers())] == [0, 1, 3, 4]
    assert (state.position, state.buffered_bytes) == (5, 0)


def test_a_batch_without_records_is_passed_although_its_epoch_must_wait() -> None:
    """Amendment 2: a position passes a batch whose records no user gets, without a wait."""
    state = AssignedPartition(T0)
    state.seek(0)
    state.max_leader_epoch = BELOW_EVERY_EPOCH
    state.add(
        FetchedBatch(RecordBatch(build_control_batch(CONTROL_COMMIT, 1, 0, 0, 0, base_offset=0)), 0, visible=False)
    )
    state.add(FetchedBatch(batch(1, 2), 1))
    assert state.take(10) == []
    assert (state.position, state.is_blocked) == (1, True)


def test_the_position_moves_to_the_log_start_unless_records_are_buffered() -> None:
    state = AssignedPartition(T0)
    state.pass_start(10)
    assert state.position == -1, "the position is not known yet"
    state.seek(3, 2)
    state.pass_start(10)
    assert (state.position, state.fetch_offset, state.position_epoch) == (10, 10, -1)
    state.add(FetchedBatch(batch(10, 2), 10))
    state.pass_start(20)
    assert state.position == 10


def transactional(first: int, producer_id: int) -> RecordBatch:
    of: Any = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    return RecordBatch(build_batch([(None, b"v", (), 0)], base_offset=first, **of))


def marker(kind: int, offset: int, producer_id: int) -> RecordBatch:
    return RecordBatch(build_control_batch(kind, producer_id, 0, 0, 0, base_offset=offset))


def test_read_committed_leaves_out_aborted_transactions() -> None:
    log = [
        transactional(0, 1),
        transactional(1, 2),
        marker(CONTROL_ABORT, 2, 1),
        transactional(3, 1),
        marker(CONTROL_COMMIT, 4, 2),
        marker(CONTROL_COMMIT, 5, 1),
        batch(6, 1),
    ]
    committed = [b.base_offset for b, visible in visible_batches(log, [(1, 0)], read_committed=True) if visible]
    assert committed == [1, 3, 6]
    everything = [b.base_offset for b, visible in visible_batches(log, [], read_committed=False) if visible]
    assert everything == [0, 1, 3, 6]


def test_positions_are_validated_after_a_leader_change() -> None:
    subscription = Subscription()
    subscription.assign([T0])
    state = subscription.partitions[T0]
    state.seek(5)
    subscription.on_metadata(Cluster().merge(metadata(1), {"t"}))
    state.last_fetched_epoch = 1
    assert state.state is FetchState.FETCHING
    subscription.on_metadata(Cluster().merge(metadata(2), {"t"}))
    assert state.state is FetchState.AWAIT_VALIDATION
    state.validated()
    assert state.state is FetchState.FETCHING


def test_a_member_moves_only_along_its_table_of_states() -> None:
    member = GroupMember()
    with pytest.raises(IllegalTransitionError, match="a member cannot move from unjoined to"):
        member.become(MemberState.STABLE)
    member.become(MemberState.JOINING)
    member.joined(3, "m", "range", leader=False)
    member.synced()
    assert (member.state, member.generation_id, member.rejoin_needed) == (MemberState.STABLE, 3, False)
    member.forget()
    assert (member.member_id, member.generation_id, member.rejoin_needed) == ("", -1, True)


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, Reaction.REJOIN),
        (ErrorCode.MEMBER_ID_REQUIRED, Reaction.REJOIN),
        (ErrorCode.UNKNOWN_MEMBER_ID, Reaction.REJOIN_AS_NEW),
        (ErrorCode.ILLEGAL_GENERATION, Reaction.REJOIN_WITHOUT_PARTITIONS),
        (ErrorCode.NOT_COORDINATOR, Reaction.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Reaction.RETRY),
        (ErrorCode.FENCED_INSTANCE_ID, Reaction.FAIL),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Reaction.FAIL),
    ],
)
def test_the_error_of_a_group_request_decides_the_members_reaction(error: ErrorCode, reaction: Reaction) -> None:
    assert react(error) is reaction


def test_keys_are_placed_by_the_layout_only_with_ordered_delivery() -> None:
    response = metadata(0)
    response.topics[0].partitions = [MetadataResponsePartition(partition_index=p, leader_id=1) for p in range(6)]
    partitioner = StickyPartitioner(random.Random(1))
    plain = Cluster().merge(response, {"t"}).topics["t"]
    response.topics[0].initial_partition_count = 4
    response.topics[0].undeleted_partition_count = 6
    unordered = Cluster().merge(response, {"t"}).topics["t"]
    response.topics[0].ordered_delivery = 1
    resized = Cluster().merge(response, {"t"}).topics["t"]
    for number in range(200):
        key = b"%d" % number
        assert partitioner.place(plain, key) == positive_hash(key) % 6
        assert partitioner.place(unordered, key) == positive_hash(key) % 6, "enable.ordered.delivery=false"
        assert partitioner.place(resized, key) == place(positive_hash(key), 4, 6)


def test_backoff_doubles_up_to_its_limit() -> None:
    assert [backoff_ms(attempt, 100, 1000, 0.5) for attempt in (1, 2, 3, 4, 5, 99)] == [100, 200, 400, 800, 1000, 1000]
    assert backoff_ms(1, 100, 1000, 0.0) == pytest.approx(80)
    assert backoff_ms(1, 100, 1000, 1.0) == pytest.approx(120)
