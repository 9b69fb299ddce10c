"""The answer to a fetch of a partition that cannot be read."""

from __future__ import annotations

from typing import Any

from broker.fetch_session import FetchTarget
from broker.handlers.fetch_read import FetchRead, ReadLimits
from broker.replication.purgatory import Purgatory
from broker.replication.throttle import ReplicationQuota
from protocol.errors import ErrorCode, KafkaError
from protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.types import TopicPartition
from tests.log_world import ManualClock


class NoReplicas:
    """A broker that leads nothing."""

    def leader(self, key: TopicPartition, current_leader_epoch: int) -> Any:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def hosted(self, key: TopicPartition) -> None:
        return None


def test_an_error_comes_with_empty_records_never_null_ones() -> None:
    """KAFKA-18646: librdkafka takes null records for a broken response and asks again at once, for ever."""
    clock = ManualClock()
    target = FetchTarget(Purgatory(clock))
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    target.add(FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)]))
    limits = ReadLimits(-1, -1, 1000, read_committed=False, full=True, reports_divergence=True)
    replicas: Any = NoReplicas()
    read = FetchRead(replicas, ReplicationQuota(1, clock, lambda: 0, lambda topic: []), target, limits)
    read.run()
    (topic,) = read.response().responses
    (partition,) = topic.partitions
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.records == b""
