"""The brokers of a cluster, their disks, and the health of its partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from anabranch import Admin, TopicDescription, TopicPartition


class UnhealthyPartition(NamedTuple):
    """A partition that has replicas out of sync, or no leader (None)."""

    topic: str
    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]


def unhealthy(topics: Iterable[TopicDescription]) -> list[UnhealthyPartition]:
    """The partitions that have replicas out of sync, or no leader."""
    return [
        UnhealthyPartition(
            topic.name,
            info.partition,
            info.leader if info.leader >= 0 else None,
            list(info.replicas),
            list(info.isr),
        )
        for topic in topics
        for info in topic.partitions
        if info.leader < 0 or len(info.isr) < len(info.replicas)
    ]


async def all_topics(admin: Admin) -> list[TopicDescription]:
    names = [listing.name for listing in await admin.list_topics()]
    return list((await admin.describe_topics(names)).values()) if names else []


class ClusterCounts(NamedTuple):
    """The ids of the servers of a cluster, and the numbers of its topics and partitions."""

    cluster_id: str | None
    controller: int | None
    """The active controller."""
    standby_controllers: list[int] | None
    """None if the brokers do not report them."""
    brokers: list[int]
    topics: int
    partitions: int
    without_leader: int
    under_replicated: int


async def cluster_counts(admin: Admin) -> ClusterCounts:
    described, topics = await admin.describe_cluster(), await all_topics(admin)
    bad, standby = unhealthy(topics), described.standby_controllers
    return ClusterCounts(
        cluster_id=described.cluster_id,
        controller=described.active_controller_id if described.active_controller_id >= 0 else None,
        standby_controllers=None if standby is None else [one.id for one in standby],
        brokers=[node.id for node in described.nodes],
        topics=len(topics),
        partitions=sum(len(topic.partitions) for topic in topics),
        without_leader=sum(row.leader is None for row in bad),
        under_replicated=sum(len(row.isr) < len(row.replicas) for row in bad),
    )


class BrokerCounts(NamedTuple):
    """A broker with the numbers of the partitions that it leads, has, and has in sync."""

    broker: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    leaders: int
    replicas: int
    in_sync: int


async def broker_counts(admin: Admin) -> list[BrokerCounts]:
    described, topics = await admin.describe_cluster(), await all_topics(admin)
    infos = [info for topic in topics for info in topic.partitions]
    return [
        BrokerCounts(
            broker=node.id,
            host=node.host,
            port=node.port,
            rack=node.rack,
            is_controller=not described.reports_controller and node.id == described.controller_id,
            leaders=sum(info.leader == node.id for info in infos),
            replicas=sum(node.id in info.replicas for info in infos),
            in_sync=sum(node.id in info.isr for info in infos),
        )
        for node in described.nodes
    ]


class LogDirUse(NamedTuple):
    """The replicas in a log directory, and its file system. ``error``: why it is out of use."""

    broker: int
    directory: str
    replicas: int
    size_bytes: int
    total_bytes: int | None
    usable_bytes: int | None
    error: str | None


async def log_dir_uses(admin: Admin, topics: Collection[str] = ()) -> list[LogDirUse]:
    """Every log directory, with the replicas of ``topics``, or of all topics."""
    chosen = None
    if topics:
        described = await admin.describe_topics(list(topics))
        chosen = [TopicPartition(name, p.partition) for name, topic in described.items() for p in topic.partitions]
    return [
        LogDirUse(
            broker=broker,
            directory=directory.path,
            replicas=len(directory.partitions),
            size_bytes=sum(replica.size_bytes for replica in directory.partitions.values()),
            total_bytes=directory.total_bytes,
            usable_bytes=directory.usable_bytes,
            error=None if directory.error is None else directory.error.code.name,
        )
        for broker, directories in sorted((await admin.describe_log_dirs(partitions=chosen)).items())
        for directory in directories
    ]
