"""Who leads a partition: pure decisions from its state, its assignment and the brokers that may lead.

Every change raises the leader epoch by one and keeps the layout; only a resize changes that. ``replicas`` is the
assignment, preferred leader first. A result of None means: nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from anabranch.zk_schemas.partition_state import NO_LEADER, PartitionState


def first_state(replicas: Sequence[int], live: Collection[int], controller_epoch: int) -> PartitionState | None:
    """The state of a created topic's partition: its live replicas in sync, the first one leads. None: none is live."""
    in_sync = [replica for replica in replicas if replica in live]
    if not in_sync:
        return None
    return PartitionState(controller_epoch, in_sync[0], 0, in_sync)


def after_broker_change(
    state: PartitionState,
    replicas: Sequence[int],
    live: Collection[int],
    electable: Collection[int],
    controller_epoch: int,
    *,
    unclean: bool = False,
) -> PartitionState | None:
    """After brokers came or went (Kafka's ``OfflinePartitionLeaderElection``). ``live`` are those whose replica is
    served; ``electable`` those of them that are not shutting down.

    A leader that is gone is replaced by the first electable replica of the ISR. When there is none, the partition is
    offline and keeps its ISR, for whoever of it returns first has every committed record; unless ``unclean`` allows
    another replica to lead, which is then the whole ISR.
    """
    in_sync = [replica for replica in state.isr if replica in live]
    if state.leader in live:
        if in_sync == state.isr:
            return None
        return _changed(state, controller_epoch, leader=state.leader, isr=in_sync)
    leader = _first(replicas, in_sync, electable)
    if leader is not None:
        return _changed(state, controller_epoch, leader=leader, isr=in_sync)
    if unclean and (leader := _first(replicas, electable)) is not None:
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
    """After ``restarted`` left and came back while nobody looked: they leave the ISR, and lead only if nobody else can.

    A process that starts again may lack what it had not synced, so it must not go on in the epoch it led, nor count as
    in sync. When all of the ISR restarted, the first of it that is electable leads.
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
    """The first replica leads (``PreferredReplicaPartitionLeaderElection``). None: it is not in sync, or not there."""
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
    """The assignment is now ``replicas`` (``ReassignPartitionLeaderElection``): the ISR loses who is not in it, and the
    leader stays when it is. The leader epoch rises in any case, so that every replica takes over the new assignment
    (KAFKA-9212). None: nobody of it that is in sync could lead.
    """
    in_sync = [replica for replica in state.isr if replica in replicas]
    stays = state.leader in in_sync and state.leader in live
    leader = state.leader if stays else _first(replicas, in_sync, electable)
    return None if leader is None else _changed(state, controller_epoch, leader=leader, isr=in_sync)


def before_shutdown(
    state: PartitionState, replicas: Sequence[int], live: Collection[int], broker: int, controller_epoch: int
) -> PartitionState | None:
    """Before ``broker`` stops: its leadership and its place in the ISR go to others, where there are others.

    ``live`` does not contain ``broker``. A partition with one replica stays as it is until the broker is gone.
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
    """The leader wants to lead no more: its disk is full. The first electable replica of ``isr``, which is the ISR
    without the leader, takes over. None: there is none such.
    """
    leader = _first(replicas, isr, electable)
    return None if leader is None else _changed(state, controller_epoch, leader=leader, isr=list(isr))


def offline(state: PartitionState, controller_epoch: int) -> PartitionState:
    """Nobody leads; the ISR stays, and the leader epoch rises."""
    return _changed(state, controller_epoch, leader=NO_LEADER, isr=state.isr)


def _first(replicas: Sequence[int], *among: Collection[int]) -> int | None:
    """The first replica that is in all of ``among``."""
    return next((replica for replica in replicas if all(replica in some for some in among)), None)


def _changed(state: PartitionState, controller_epoch: int, leader: int, isr: list[int]) -> PartitionState:
    return state.replace(leader=leader, isr=isr, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)
