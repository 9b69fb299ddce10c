"""Elections that no broker change causes: those of ElectLeaders and of ``auto.leader.rebalance.enable``."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from anabranch.controller import leader_selection
from anabranch.controller.effects import Effects
from anabranch.controller.events import FirstReplicasDue
from anabranch.controller.image import ClusterImage, Led
from anabranch.controller.state_writes import StateChange
from anabranch.controller.store import MAX_OPERATIONS
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.request_kinds import ElectionType
from anabranch.protocol.types import TopicPartition

logger = structlog.get_logger(__name__)
ELECTED_AT_ONCE = MAX_OPERATIONS - 1
"""Number of elections that are decided before other events are handled. One multi can write this many states."""


def chosen(image: ClusterImage, led: Led, election_type: ElectionType) -> StateChange:
    """The election of one partition.

    Raises ``KafkaError`` ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    tp, topic, _, state = led
    replicas, live, electable = topic.replicas(tp.partition), image.serving(tp), image.electable(tp)
    if election_type is ElectionType.PREFERRED:
        if state.leader == replicas[0] and state.leader in live:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica leads.")
        changed = leader_selection.preferred(state, replicas, electable, image.controller_epoch)
        unavailable = KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred replica {replicas[0]} is not in sync (ISR {state.isr}) or not available to lead.",
        )
    else:
        if state.leader in live:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The partition has a leader.")
        adding = topic.znode.adding_replicas.get(tp.partition, ())
        changed = leader_selection.after_broker_change(
            state, replicas, live, electable, image.controller_epoch, unclean=True, adding=adding
        )
        unavailable = KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"None of the replicas {replicas} is available to lead."
        )
    if changed is None or changed.leader not in electable:
        raise unavailable
    return StateChange(tp, changed)


def decide_rebalance(image: ClusterImage, percentage: int) -> Effects:
    """The effects of letting first replicas lead again, for each broker that leads too few partitions.

    Other brokers may lead ``percentage`` percent of the partitions that list a broker first.
    """
    due = imbalanced(image, percentage)
    if due:
        logger.info("leaders.rebalancing", partitions=len(due))
    return decide_first_replicas(image, due)


def imbalanced(image: ClusterImage, percentage: int) -> list[TopicPartition]:
    """The partitions whose first replica is to lead again.

    A broker counts if others lead more than ``percentage`` percent of the partitions whose first replica it has.
    Returns those of these partitions that the broker may lead now.
    """
    by_preferred: dict[int, list[Led]] = {}
    for led in image.led_partitions():
        by_preferred.setdefault(led[1].replicas(led[0].partition)[0], []).append(led)
    due: list[TopicPartition] = []
    for broker, partitions in sorted(by_preferred.items()):
        elsewhere = [led for led in partitions if led[3].leader != broker]
        if len(elsewhere) * 100 > len(partitions) * percentage:
            due += [led[0] for led in elsewhere if _led_by_first(image, led) is not None]
    return due


def decide_first_replicas(image: ClusterImage, tps: Sequence[TopicPartition]) -> Effects:
    """The effects of letting the first replica lead a limited number of partitions. An event follows for the others."""
    found = (image.led(tp) for tp in tps[:ELECTED_AT_ONCE])
    changes = (_led_by_first(image, led) for led in found if led is not None)
    left = tuple(tps[ELECTED_AT_ONCE:])
    return Effects(
        independent=[change for change in changes if change is not None],
        events=(FirstReplicasDue(left),) if left else (),
    )


def _led_by_first(image: ClusterImage, led: Led) -> StateChange | None:
    """The change that makes the first replica lead; None if this replica leads already or may not lead.

    The result is also None while the partition is being reassigned, as in Kafka.
    """
    tp, topic, _, state = led
    replicas = topic.replicas(tp.partition)
    if state.leader == replicas[0] or topic.reassigning(tp.partition):
        return None
    changed = leader_selection.preferred(state, replicas, image.electable(tp), image.controller_epoch)
    return None if changed is None else StateChange(tp, changed)
