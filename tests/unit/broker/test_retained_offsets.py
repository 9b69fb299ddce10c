"""How long a broker keeps the controller's orders on retention.

The tests also cover the broker's rules before the first order and after the last one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.retention import NOTHING_RETAINED
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.replication.partition import Partition
from anabranch.broker.retained_offsets import RetainedOffsets, retained_gauges
from anabranch.protocol.generated.update_metadata import (
    RetainedFrom,
    UpdateMetadataPartitionState,
    UpdateMetadataTopicState,
)
from tests.support.broker.replica_cluster import Services
from tests.support.log.log_fixture import LogFixture, batch

LEASE_S, BOUND_MS, RETENTION_MS = 180.0, 500, 1000
EVERYTHING = 0


class Broker:
    """The only replica of a partition: four segments with two records each, all older than ``retention.ms``."""

    def __init__(self, log_fixture: LogFixture, **config: Any) -> None:
        values = {
            "ordered_delivery_retention_waits": True,
            "ordered_delivery_retention_waits_max_ms": BOUND_MS,
            "retention_ms": RETENTION_MS,
            "segment_bytes": len(batch(b"a", b"b")),
        } | config
        self.clock = log_fixture.clock
        self.log = log_fixture.create(**values)
        for _ in range(4):
            self.log.append_as_leader(batch(b"a", b"b", timestamp=log_fixture.clock.ms), 0)
        self.log.advance_high_watermark(8)
        log_fixture.clock.ms += RETENTION_MS + 2  # the second record of a batch is 1 ms younger
        self.partition = Partition(self.log.partition, 1, self.log, 1, Services(self, flushes_on_ack=False))  # type: ignore[arg-type]
        self.hosted: Partition | None = self.partition
        self.metrics = BrokerMetrics()
        self.orders = RetainedOffsets(lambda _: self.hosted, self.clock, int(LEASE_S * 1000), self.metrics)
        self.live = {1}
        self.rng = random.Random(1)

    def lead(self, leader_epoch: int) -> None:
        self.partition.make_leader(leader_epoch, [1], [1])

    def send(self, offset: int, *, leader_epoch: int = 3, retained_ms: int = 60_000, group: str = "g") -> None:
        retained = RetainedFrom(offset=offset, retained_ms=retained_ms, group_id=group)
        key = self.log.partition
        state = UpdateMetadataPartitionState(
            partition_index=key.partition, leader_epoch=leader_epoch, retained=retained
        )
        self.orders.take_over([UpdateMetadataTopicState(topic_name=key.topic, partition_states=[state])])

    def retained_from(self) -> int:
        return self.orders.retained_from(self.log)

    def apply_retention(self) -> int:
        """Apply retention as the log manager does, and return the new log start offset."""
        while True:
            start = self.log.log_start_offset
            deleted = self.log.delete_old_segments(self.retained_from())
            if self.log.log_start_offset > start:
                self.orders.expired(self.log, start)
            if not deleted:
                return self.log.log_start_offset

    def later(self, seconds: float) -> None:
        self.clock.seconds += seconds


@pytest.fixture
def broker(log_fixture: LogFixture) -> Broker:
    return Broker(log_fixture)


@pytest.fixture
def leader(broker: Broker) -> Broker:
    broker.lead(3)
    return broker


def test_retention_removes_no_record_from_the_held_offset_on(leader: Broker) -> None:
    leader.send(4)
    assert leader.apply_retention() == 4
    leader.send(6)
    assert leader.apply_retention() == 6


def test_a_hold_that_is_not_repeated_expires(leader: Broker) -> None:
    leader.send(4, retained_ms=60_000)
    leader.later(59.9)
    assert leader.retained_from() == 4
    leader.later(0.2)
    assert leader.retained_from() == NOTHING_RETAINED and leader.apply_retention() == 8


def test_a_new_leader_holds_everything_for_a_lease(leader: Broker) -> None:
    """The controller may have sent the order to the previous leader."""
    assert leader.retained_from() == EVERYTHING
    leader.later(LEASE_S - 0.1)
    assert leader.retained_from() == EVERYTHING
    leader.later(0.2)
    assert leader.retained_from() == NOTHING_RETAINED


def test_a_new_epoch_of_the_same_leader_begins_with_a_lease(leader: Broker) -> None:
    """The resize that bumped the epoch may add waits. The controller sends orders for new waits in its next round."""
    leader.send(6)
    leader.lead(4)
    assert leader.retained_from() == EVERYTHING
    leader.send(4, leader_epoch=4)
    assert leader.retained_from() == 4


@pytest.mark.parametrize("leader_epoch", [2, 4])
def test_a_hold_for_another_leader_epoch_is_ignored(leader: Broker, leader_epoch: int) -> None:
    leader.send(6, leader_epoch=leader_epoch)
    assert leader.retained_from() == EVERYTHING
    leader.send(4)
    leader.send(8, leader_epoch=leader_epoch)
    assert leader.retained_from() == 4


def test_a_follower_removes_nothing_by_time_before_its_leader(broker: Broker) -> None:
    broker.partition.make_follower(2, 3, [1, 2], [1, 2])
    broker.send(6)
    broker.later(10 * LEASE_S)
    assert broker.apply_retention() == 0
    broker.log.advance_log_start(4)  # the leader's log begins at offset 4
    assert broker.apply_retention() == 4 and len(broker.log.segments) == 2


def test_nothing_is_removed_by_time_before_a_role_is_given(broker: Broker) -> None:
    broker.hosted = None
    assert broker.apply_retention() == 0


def test_records_past_the_bound_are_removed_even_before_a_role_is_given(broker: Broker) -> None:
    broker.clock.ms += BOUND_MS
    assert broker.apply_retention() == 8


def test_a_topic_whose_retention_does_not_wait_is_not_held(log_fixture: LogFixture) -> None:
    broker = Broker(log_fixture, ordered_delivery_retention_waits=False)
    broker.partition.make_follower(2, 3, [1, 2], [1, 2])
    assert broker.apply_retention() == 8


def test_a_topic_whose_retention_begins_to_wait_is_held_for_a_lease(log_fixture: LogFixture) -> None:
    """A topic gets a lease when its config makes retention wait.

    The lease begins even if an earlier order has ended. The controller sends a new order in its next round.
    """
    broker = Broker(log_fixture)
    broker.lead(3)
    broker.send(4, retained_ms=0)
    on = broker.log.config
    broker.log.update_config(LogConfig())
    assert broker.retained_from() == NOTHING_RETAINED
    broker.log.update_config(on)
    assert broker.retained_from() == EVERYTHING


def test_held_records_that_the_bound_removes_cause_a_warning_and_are_counted(leader: Broker) -> None:
    leader.send(3, group="slow")
    leader.clock.ms += BOUND_MS
    with capture_logs() as lines:
        assert leader.apply_retention() == 8
    (warning,) = [line for line in lines if line["event"] == "retention.removed_what_is_waited_for"]
    assert (warning["log_level"], warning["group"]) == ("warning", "slow")
    assert (warning["first_offset"], warning["end_offset"]) == (3, 8)
    assert leader.metrics.retained_records_removed.values == {("t", "slow"): 5}


def test_held_records_that_retention_by_size_removes_cause_a_warning_and_are_counted(log_fixture: LogFixture) -> None:
    leader = Broker(log_fixture, retention_ms=-1, retention_bytes=2 * len(batch(b"a", b"b")))
    leader.lead(3)
    leader.send(2, group="slow")
    assert leader.apply_retention() == 4
    assert leader.metrics.retained_records_removed.values == {("t", "slow"): 2}


@pytest.mark.parametrize("ends", [True, False], ids=["the order ended", "the order begins after them"])
def test_records_without_a_hold_are_removed_without_a_warning(leader: Broker, ends: bool) -> None:
    if ends:
        leader.retained_from()
        leader.later(LEASE_S)
    else:
        leader.send(8)
    assert leader.apply_retention() == 8
    assert leader.metrics.retained_records_removed.values == {}


def gauges(broker: Broker) -> dict[str, dict[tuple[str, ...], float]]:
    found = retained_gauges(broker.orders, lambda: [broker.log])
    return {gauge.row.name.removeprefix("anabranch_retained_"): dict(gauge.compute()) for gauge in found}


def test_gauges_show_the_held_records_of_each_group_and_the_start_of_the_hold(leader: Broker) -> None:
    leader.send(4, group="slow")
    since_s = (leader.clock.ms - 1) / 1000
    size = sum(segment.size_bytes for segment in leader.log.segments[2:])
    shown = {"records": {("t", "slow"): 4}, "bytes": {("t", "slow"): size}, "since_seconds": {("t", "slow"): since_s}}
    leader.apply_retention()
    assert gauges(leader) == shown
    leader.later(60)
    assert gauges(leader) == {name: {} for name in shown}


def test_gauges_of_a_follower_show_nothing(broker: Broker) -> None:
    broker.partition.make_follower(2, 3, [1, 2], [1, 2])
    assert not any(gauges(broker).values())


def test_gauges_show_nothing_when_the_disk_fails(leader: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    leader.send(4)

    def refuse(_segment: LogSegment) -> int:
        raise OSError("Input/output error")

    monkeypatch.setattr(LogSegment, "retention_timestamp", refuse)
    assert not any(gauges(leader).values())
