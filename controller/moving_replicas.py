"""A partition's replicas while they change (KIP-455): pure, after Kafka's ``ReplicaAssignment``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.zk_schemas.topic import TopicZnode


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """All of a partition's replicas, the preferred first. Some may be being added, and some removed."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]

    @classmethod
    def of(cls, znode: TopicZnode, partition: int) -> ReplicaAssignment:
        return cls(
            list(znode.partitions[partition]),
            list(znode.adding_replicas.get(partition, [])),
            list(znode.removing_replicas.get(partition, [])),
        )

    @property
    def target(self) -> list[int]:
        """The replicas once the reassignment is done."""
        return [replica for replica in self.replicas if replica not in self.removing]

    @property
    def origin(self) -> list[int]:
        """The replicas before the reassignment began."""
        return [replica for replica in self.replicas if replica not in self.adding]

    @property
    def in_progress(self) -> bool:
        return bool(self.adding or self.removing)

    def reassign_to(self, target: Sequence[int]) -> ReplicaAssignment:
        """The assignment during a move from the origin to ``target``. An earlier target is replaced."""
        origin = self.origin
        replicas = list(dict.fromkeys([*target, *origin]))
        return ReplicaAssignment(
            replicas,
            [replica for replica in replicas if replica not in origin],
            [replica for replica in replicas if replica not in target],
        )

    def done(self) -> ReplicaAssignment:
        return ReplicaAssignment(self.target, [], [])

    def complete(self, isr: Collection[int]) -> bool:
        """Whether all of the target is in sync."""
        return all(replica in isr for replica in self.target)

    def dropped(self, later: ReplicaAssignment) -> list[int]:
        """Replicas that ``later`` does not have any more."""
        return [replica for replica in self.replicas if replica not in later.replicas]


def check_target(assignment: ReplicaAssignment, target: Sequence[int], live: Collection[int]) -> None:
    """Raise ``KafkaError`` INVALID_REPLICA_ASSIGNMENT for an invalid target."""
    problem = None
    if not target:
        problem = "Empty replica list specified in partition reassignment."
    elif len(set(target)) != len(target):
        problem = f"Duplicate replica ids in partition reassignment replica list: {list(target)}"
    elif min(target) < 0:
        problem = f"Invalid broker id in replica list: {list(target)}"
    elif gone := [replica for replica in target if replica not in live and replica not in assignment.origin]:
        problem = f"Replica assignment has brokers that are not alive. Not alive: {gone}, live: {sorted(live)}"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def into(znode: TopicZnode, assignments: Mapping[int, ReplicaAssignment]) -> TopicZnode:
    """Return the topic with these assignments, given by partition."""
    return znode.replace(
        partitions=znode.partitions | {index: found.replicas for index, found in assignments.items()},
        adding_replicas=_with(znode.adding_replicas, {index: found.adding for index, found in assignments.items()}),
        removing_replicas=_with(
            znode.removing_replicas, {index: found.removing for index, found in assignments.items()}
        ),
    )


def _with(replicas: dict[int, list[int]], changed: dict[int, list[int]]) -> dict[int, list[int]]:
    return dict(sorted((index, some) for index, some in (replicas | changed).items() if some))
