"""Assigns replicas of new partitions to brokers, as Kafka's ``AdminUtils`` does. The random numbers are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assign_replicas(
    brokers: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    *,
    start_index: int,
    shift: int,
    first_partition: int = 0,
) -> dict[int, list[int]]:
    """``{partition: replicas}`` for ``partition_count`` partitions from ``first_partition`` on.

    ``brokers`` maps ids to racks. First replicas are assigned round robin from ``start_index``. The other replicas of a
    partition follow at a distance. The distance starts at ``shift`` and grows by one after each pass over the brokers.
    If every broker has a rack, the replicas of a partition are spread over as many racks as possible. Otherwise racks
    are ignored. Raises ``ValueError`` for counts that cannot be met.
    """
    if partition_count <= 0 or replication_factor <= 0:
        raise ValueError("the number of partitions and the replication factor must be above 0")
    if replication_factor > len(brokers):
        raise ValueError(f"replication factor {replication_factor} is above the {len(brokers)} live brokers")
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    if len(racks) == len(brokers):
        return _with_racks(racks, partition_count, replication_factor, start_index, shift, first_partition)
    ids = sorted(brokers)
    assignment = {}
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % len(ids) == 0:
            shift += 1
        first = (partition + start_index) % len(ids)
        further = [ids[_replica_index(first, shift, step, len(ids))] for step in range(replication_factor - 1)]
        assignment[partition] = [ids[first], *further]
    return assignment


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """Broker ids in an order that takes one of each rack in turn."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    columns = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(len(column) for column in columns)
    return [column[row] for row in range(longest) for column in columns if row < len(column)]


def _with_racks(
    racks: Mapping[int, str], count: int, factor: int, start_index: int, shift: int, first_partition: int
) -> dict[int, list[int]]:
    ids = alternate_racks(racks)
    rack_count = len(set(racks.values()))
    assignment = {}
    for partition in range(first_partition, first_partition + count):
        if partition > 0 and partition % len(ids) == 0:
            shift += 1
        first = (partition + start_index) % len(ids)
        replicas = [ids[first]]
        step = 0
        while len(replicas) < factor:
            broker = ids[_replica_index(first, shift * rack_count, step, len(ids))]
            step += 1
            if _fits(broker, replicas, racks, rack_count, len(ids)):
                replicas.append(broker)
        assignment[partition] = replicas
    return assignment


def _fits(broker: int, replicas: Sequence[int], racks: Mapping[int, str], rack_count: int, broker_count: int) -> bool:
    """Whether the broker may get the partition's next replica.

    Its rack has no replica yet, or every rack has one. The broker has no replica yet, or every broker has one.
    """
    used_racks = {racks[replica] for replica in replicas}
    rack_is_free = racks[broker] not in used_racks or len(used_racks) == rack_count
    broker_is_free = broker not in replicas or len(set(replicas)) == broker_count
    return rack_is_free and broker_is_free


def _replica_index(first: int, shift: int, step: int, broker_count: int) -> int:
    if broker_count == 1:
        return 0
    return (first + 1 + (shift + step) % (broker_count - 1)) % broker_count
