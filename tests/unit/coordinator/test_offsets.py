"""Commits, fetches and deletions of offsets, and their expiry (KIP-211), on the pure core."""

from __future__ import annotations

from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.durable import GroupRecord, OffsetRecord
from anabranch.broker.coordinator.expiry import MAX_TOMBSTONES_PER_BATCH
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.types import TopicPartition
from tests.unit.coordinator.driver import GROUP, WALL_START_MS, Driver

RETENTION_MS = 1_000_000
SHORT = GroupConfig(offsets_retention_ms=RETENTION_MS)
LONG_SESSION = {"session_ms": 1_800_000, "rebalance_ms": 1_800_000}


def test_commit_metadata_above_offset_metadata_max_bytes_is_refused() -> None:
    driver = Driver(GroupConfig(offset_metadata_max_bytes=3))
    assert driver.commit_error(driver.commit({("t", 0): 1}, metadata="abc")) == ErrorCode.NONE
    too_long = driver.commit({("t", 0): 2}, metadata="abcd")
    assert driver.commit_error(too_long) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert driver.committed("t", 0) == 1


def test_null_metadata_is_stored_as_empty() -> None:
    driver = Driver()
    driver.commit({("t", 0): 1}, metadata=None)
    (partition,) = driver.fetched().topics[0].partitions
    assert partition.metadata == ""


def test_partitions_that_do_not_exist_are_refused_and_the_rest_committed() -> None:
    driver = Driver(missing_topics=frozenset({"gone"}))
    response = driver.replies[driver.commit({("gone", 0): 1, ("t", 0): 2})]
    errors = {topic.name: topic.partitions[0].error_code for topic in response.topics}
    assert errors == {"gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t": ErrorCode.NONE}
    assert (driver.committed("gone", 0), driver.committed("t", 0)) == (None, 2)


def test_a_commit_with_a_generation_needs_a_group() -> None:
    driver = Driver()
    assert driver.commit_error(driver.commit({("t", 0): 1}, "m", 5)) == ErrorCode.ILLEGAL_GENERATION
    assert driver.shard.groups == {}


def test_a_commit_keeps_the_session_alive() -> None:
    driver = Driver()
    (member_id,) = driver.stable_group("a")
    for _ in range(3):
        driver.advance(9_000)
        assert driver.commit_error(driver.commit({("t", 0): 1}, member_id, 1)) == ErrorCode.NONE


def test_a_fetch_with_null_topics_returns_all_offsets_sorted() -> None:
    driver = Driver()
    driver.commit({("b", 1): 4, ("a", 0): 1, ("b", 0): 3}, leader_epoch=9)
    topics = driver.fetched().topics
    found = [
        (t.name, p.partition_index, p.committed_offset, p.committed_leader_epoch) for t in topics for p in t.partitions
    ]
    assert found == [("a", 0, 1, 9), ("b", 0, 3, 9), ("b", 1, 4, 9)]
    assert driver.fetched("nobody").topics == []


# ---------------------------------------------------------------- delete


def test_offset_delete_keeps_offsets_of_subscribed_topics() -> None:
    driver = Driver()
    (member_id,) = driver.stable_group("a", topics=("used",))
    driver.commit({("used", 0): 1, ("unused", 0): 2}, member_id, 1)
    response = driver.delete_offsets(("used", 0), ("unused", 0), ("never", 0))
    errors = [topic.partitions[0].error_code for topic in response.topics]
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert (driver.committed("used", 0), driver.committed("unused", 0)) == (1, None)


def test_offset_delete_deletes_nothing_while_a_subscription_cannot_be_read() -> None:
    driver = Driver()
    (member_id,) = driver.stable_group("a", metadata=b"\x00\x01\x7f")
    driver.commit({("t", 0): 1}, member_id, 1)
    (topic,) = driver.delete_offsets(("t", 0)).topics
    assert topic.partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_offset_delete_with_another_protocol_type_needs_an_empty_group() -> None:
    driver = Driver()
    (member_id,) = driver.stable_group("a", protocol_type="connect")
    assert driver.delete_offsets(("t", 0)).error_code == ErrorCode.NON_EMPTY_GROUP
    driver.leave((member_id, None))
    assert driver.delete_offsets(("t", 0)).error_code == ErrorCode.NONE
    assert driver.delete_offsets(("t", 0), group="nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_deletion_of_a_group_also_deletes_its_pending_commit() -> None:
    driver = Driver(auto_commit=False)
    driver.commit({("t", 0): 1})
    driver.delete_group()
    driver.settle_all()
    assert driver.committed("t", 0) is None
    assert driver.shard.groups == {}


def test_a_deletion_whose_write_is_lost_restores_the_group() -> None:
    driver = Driver()
    driver.commit({("t", 0): 1})
    driver.auto_commit = False
    token = driver.delete_group()
    assert driver.state() == "Dead"
    driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driver.error(token) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (driver.state(), driver.committed("t", 0)) == ("Empty", 1)


# ---------------------------------------------------------------- expiry


def test_kip_211_a_simple_consumers_offset_expires_after_its_commit() -> None:
    driver = Driver(SHORT)
    driver.commit({("t", 0): 1})
    driver.advance(500)
    driver.commit({("t", 1): 1})
    driver.advance(RETENTION_MS - 501)
    driver.expire()
    assert driver.committed("t", 0) == 1
    driver.advance(1)
    driver.expire()
    assert (driver.committed("t", 0), driver.committed("t", 1)) == (None, 1)
    driver.advance(500)
    driver.expire()
    assert driver.shard.groups == {}
    assert not any(isinstance(record, GroupRecord) for record in driver.log)


def test_kip_211_retention_of_an_empty_group_runs_from_when_it_became_empty() -> None:
    driver = Driver(SHORT)
    (member_id,) = driver.stable_group("a", **LONG_SESSION)
    driver.commit({("t", 0): 1}, member_id, 1)
    driver.advance(900_000)
    driver.leave((member_id, None))
    driver.advance(RETENTION_MS - 1)
    driver.expire()
    assert driver.committed("t", 0) == 1
    driver.advance(1)
    driver.expire()
    assert driver.committed("t", 0) is None
    assert driver.log[-1] == GroupRecord(GROUP, None)
    assert driver.replayed() == driver.shard.durable == Driver().shard.durable


def test_kip_211_a_successor_remembers_when_the_group_became_empty() -> None:
    driver = Driver(SHORT)
    (member_id,) = driver.stable_group("a")
    driver.commit({("t", 0): 1}, member_id, 1)
    driver.leave((member_id, None))
    driver.advance(RETENTION_MS - 1)
    successor = driver.restarted()
    successor.expire()
    assert successor.committed("t", 0) == 1
    successor.advance(1)
    successor.expire()
    assert successor.committed("t", 0) is None


def test_kip_211_a_stable_group_loses_only_offsets_of_topics_without_a_subscriber() -> None:
    driver = Driver(SHORT)
    (member_id,) = driver.stable_group("a", topics=("used",), **LONG_SESSION)
    driver.commit({("used", 0): 1, ("unused", 0): 1}, member_id, 1)
    driver.advance(RETENTION_MS)
    driver.expire()
    assert (driver.committed("used", 0), driver.committed("unused", 0)) == (1, None)
    assert driver.state() == "Stable"


def test_a_commit_with_its_own_retention_expires_after_that_time() -> None:
    driver = Driver(SHORT)
    driver.commit({("t", 0): 1}, retention_ms=5_000, leader_epoch=7)
    stored = driver.shard.durable.offsets_of(GROUP)[TopicPartition("t", 0)]
    assert stored.expire_timestamp_ms == WALL_START_MS + 5_000
    assert driver.replayed() == driver.shard.durable
    driver.advance(4_999)
    driver.expire()
    assert driver.committed("t", 0) == 1
    driver.advance(1)
    driver.expire()
    assert driver.committed("t", 0) is None


def test_an_offset_with_a_pending_commit_does_not_expire() -> None:
    driver = Driver(SHORT)
    driver.commit({("t", 0): 1})
    driver.advance(RETENTION_MS)
    driver.auto_commit = False
    driver.commit({("t", 0): 2})
    driver.expire()
    driver.settle_all()
    assert driver.committed("t", 0) == 2


def test_an_empty_group_that_waits_for_a_member_is_not_removed() -> None:
    driver = Driver(SHORT)
    token = driver.join(v=4)
    driver.expire()
    member_id = driver.replies[token].member_id
    rejoined = driver.join(member_id, v=4)
    driver.advance(3_000)
    assert driver.error(rejoined) == ErrorCode.NONE


def test_tombstones_are_written_in_bounded_batches() -> None:
    driver = Driver(SHORT)
    driver.commit({("t", n): n for n in range(MAX_TOMBSTONES_PER_BATCH + 1)})
    driver.advance(RETENTION_MS)
    driver.auto_commit = False
    driver.expire()
    assert [len(write.records) for write in driver.in_flight] == [MAX_TOMBSTONES_PER_BATCH, 1]
    driver.settle_all()
    assert driver.shard.durable.offsets == {}
    assert driver.shard.groups == {}


def test_offsets_of_deleted_partitions_are_removed_even_when_pending() -> None:
    driver = Driver()
    driver.commit({("t", 0): 1, ("other", 0): 1})
    driver.auto_commit = False
    driver.commit({("t", 1): 1})
    driver.remove_partitions(("t", 0), ("t", 1))
    driver.settle_all()
    assert [driver.committed("t", 0), driver.committed("t", 1), driver.committed("other", 0)] == [None, None, 1]
    assert OffsetRecord(GROUP, TopicPartition("t", 1), None) in driver.log
