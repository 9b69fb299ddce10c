"""Selects leaders: pure decisions from a partition's state, its assignment and the brokers that may lead.

Every change raises the leader epoch by one and keeps the layout, which only a resize changes. ``replicas`` is the
assignment, preferred leader first. The result None means that nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from anabranch.protocol.sentinels import NO_LEADER
from anabranch.zk_schemas.partition_state import PartitionState


def first_state(
    replicas: Sequence[int], live: Collection[int], controller_epoch: int, leader_epoch: int
) -> PartitionState | None:
    """The first state of a partition: its live replicas are in sync, and the first of them leads. None without any."""
    in_sync = [replica for replica in replicas if replica in live]
    if not in_sync:
        return None
    return PartitionState(controller_epoch, in_sync[0], leader_epoch, in_sync)


def after_broker_change(
    state: PartitionState,
    replicas: Sequence[int],
    live: Collection[int],
    electable: Collection[int],
    controller_epoch: int,
    *,
    unclean: bool = False,
    adding: Collection[int] = (),
) -> PartitionState | None:
    """The state after brokers registered or disappeared (Kafka's ``OfflinePartitionLeaderElection``).

    ``live`` are the brokers that serve their replica. ``electable`` are the live brokers that are not shutting down.

    The first electable replica of the ISR replaces a leader that is not live. If no replica of the ISR is electable,
    the partition is offline and keeps its ISR, because every member of the ISR has all committed records. With
    ``unclean``, another replica may lead instead, and is then the whole ISR. The replicas that a reassignment is adding
    (``adding``) come last then, because they have the fewest records.
    """
    in_sync = [replica for replica in state.isr if replica in live]
    if state.leader in live:
        if in_sync == state.isr:
            return None
        return _changed(state, controller_epoch, leader=state.leader, isr=in_sync)
    leader = _first(replicas, in_sync, electable)
    if leader is not None:
        return _changed(state, controller_epoch, leader=leader, isr=in_sync)
    if unclean and (leader := _first(_unclean_order(replicas, adding), electable)) is not None:
        return _changed(state, controller_epoch, leader=leader, isr=[leader])
    if state.leader == NO_LEADER:
        return None
    return offline(state, controller_epoch)


def after_unseen_restart(
    state: PartitionState,
    replicas: Sequence[int],
    restarted: Collection[int],
    live: Collection[int],
    electable: Collection[int],
    controller_epoch: int,
) -> PartitionState | None:
    """The state after brokers restarted unnoticed: they leave the ISR, and lead only if no other broker can.

    A restarted broker may lack records that it had not synced. So the broker must not go on as leader in its old epoch,
    and must not count as in sync. If all of the ISR restarted, the first electable member of the ISR leads.
    """
    left = after_broker_change(
        state,
        replicas,
        [broker for broker in live if broker not in restarted],
        [broker for broker in electable if broker not in restarted],
        controller_epoch,
    )
    if left is not None and left.leader != NO_LEADER:
        return left
    return after_broker_change(left or state, replicas, live, electable, controller_epoch) or left


def needs_unclean(
    state: PartitionState, replicas: Sequence[int], live: Collection[int], electable: Collection[int]
) -> bool:
    """Whether only an unclean election could give the partition a leader."""
    return (
        state.leader not in live
        and _first(replicas, state.isr, electable) is None
        and _first(replicas, electable) is not None
    )


def preferred(
    state: PartitionState, replicas: Sequence[int], electable: Collection[int], controller_epoch: int
) -> PartitionState | None:
    """The state with the first replica as leader (``PreferredReplicaPartitionLeaderElection``).

    None if the first replica is not in sync or not electable.
    """
    if replicas[0] not in state.isr or replicas[0] not in electable:
        return None
    return _changed(state, controller_epoch, leader=replicas[0], isr=state.isr)


def reassigned(
    state: PartitionState,
    replicas: Sequence[int],
    live: Collection[int],
    electable: Collection[int],
    controller_epoch: int,
) -> PartitionState | None:
    """The state with the new assignment ``replicas`` (``ReassignPartitionLeaderElection``).

    Replicas outside the assignment leave the ISR. The leader stays if it is in the assignment and live. The leader
    epoch rises in any case, so that every replica takes over the new assignment (KAFKA-9212). None if no in-sync
    replica of the assignment can lead.
    """
    in_sync = [replica for replica in state.isr if replica in replicas]
    stays = state.leader in in_sync and state.leader in live
    leader = state.leader if stays else _first(replicas, in_sync, electable)
    return None if leader is None else _changed(state, controller_epoch, leader=leader, isr=in_sync)


def before_shutdown(
    state: PartitionState, replicas: Sequence[int], live: Collection[int], broker: int, controller_epoch: int
) -> PartitionState | None:
    """The state before ``broker`` stops.

    If other replicas are in sync, one of them leads, and ``broker`` leaves the ISR. A partition with one replica stays
    as it is while the broker is registered.
    """
    if broker not in state.isr or len(replicas) == 1 or state.leader == NO_LEADER:
        return None
    in_sync = [replica for replica in state.isr if replica != broker]
    if state.leader != broker:
        return _changed(state, controller_epoch, leader=state.leader, isr=in_sync) if in_sync else None
    leader = _first(replicas, in_sync, live)
    return None if leader is None else _changed(state, controller_epoch, leader=leader, isr=in_sync)


def resigned(
    state: PartitionState,
    replicas: Sequence[int],
    electable: Collection[int],
    isr: Sequence[int],
    controller_epoch: int,
) -> PartitionState | None:
    """The state after the leader resigned because its disk is full.

    ``isr`` is the ISR without the leader. The first electable replica of ``isr`` leads. None if no replica of ``isr``
    is electable.
    """
    leader = _first(replicas, isr, electable)
    return None if leader is None else _changed(state, controller_epoch, leader=leader, isr=list(isr))


def offline(state: PartitionState, controller_epoch: int) -> PartitionState:
    """The state without a leader. The ISR stays, and the leader epoch rises."""
    return _changed(state, controller_epoch, leader=NO_LEADER, isr=state.isr)


def _unclean_order(replicas: Sequence[int], adding: Collection[int]) -> list[int]:
    return sorted(replicas, key=lambda replica: replica in adding)


def _first(replicas: Sequence[int], *among: Collection[int]) -> int | None:
    """The first replica that is in all of ``among``."""
    return next((replica for replica in replicas if all(replica in some for some in among)), None)


def _changed(state: PartitionState, controller_epoch: int, leader: int, isr: list[int]) -> PartitionState:
    return state.replace(leader=leader, isr=isr, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)
