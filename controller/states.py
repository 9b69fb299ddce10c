"""The state machines of partitions and replicas: each state and its possible previous states (Kafka's tables)."""

from __future__ import annotations

import enum

from anabranch.protocol.transitions import enter


class PartitionStatus(enum.Enum):
    """The status of a partition, from its creation to its deletion."""

    NONEXISTENT = "nonexistent"
    """Never created, or created and deleted."""
    NEW = "new"
    """Assigned to replicas; no state znode yet."""
    ONLINE = "online"
    """Has a leader."""
    OFFLINE = "offline"
    """Has a state znode and no leader."""

    def enter(self, target: PartitionStatus) -> PartitionStatus:
        """Check the transition and return ``target``. Raises ``IllegalTransitionError``."""
        return enter("a partition", self, target, VALID_PREVIOUS_PARTITION_STATUSES)


VALID_PREVIOUS_PARTITION_STATUSES = {
    PartitionStatus.NEW: {PartitionStatus.NONEXISTENT},
    PartitionStatus.ONLINE: {PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE},
    PartitionStatus.OFFLINE: {PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE},
    PartitionStatus.NONEXISTENT: {PartitionStatus.NEW, PartitionStatus.OFFLINE},
}


class ReplicaStatus(enum.Enum):
    """The status of a replica of a deleted topic. It begins as online or offline, by the broker's registration."""

    ONLINE = "online"
    OFFLINE = "offline"
    """The broker is gone, or the replica was ordered to stop."""
    DELETION_STARTED = "deletion started"
    """StopReplica with delete was sent, and has no response yet."""
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"
    """The broker is not registered or could not delete. The deletion is tried again when the broker registers."""
    NONEXISTENT = "nonexistent"

    def enter(self, target: ReplicaStatus) -> ReplicaStatus:
        """Check the transition and return ``target``. Raises ``IllegalTransitionError``."""
        return enter("a replica", self, target, VALID_PREVIOUS_REPLICA_STATUSES)


VALID_PREVIOUS_REPLICA_STATUSES = {
    ReplicaStatus.ONLINE: {ReplicaStatus.NONEXISTENT, ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE},
    ReplicaStatus.OFFLINE: {ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_INELIGIBLE},
    ReplicaStatus.DELETION_STARTED: {ReplicaStatus.OFFLINE},
    ReplicaStatus.DELETION_SUCCESSFUL: {ReplicaStatus.DELETION_STARTED},
    ReplicaStatus.DELETION_INELIGIBLE: {ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED},
    ReplicaStatus.NONEXISTENT: {ReplicaStatus.DELETION_SUCCESSFUL},
}
