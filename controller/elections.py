"""Who leads a partition: pure decisions from its state, its assignment and the brokers that may lead.

Every change raises the leader epoch by one and keeps the layout; only a resize changes that. ``replicas`` is the
assignment, preferred leader first. A result of None means: nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zk_schemas.partition_state import NO_LEADER, PartitionState


def first_state(
    replicas: Sequence[int], live: Collection[int], controller_epoch: int, last_leader_epoch: int = -1
) -> PartitionState | None:
    """The state of a partition that never led: its live replicas in sync, the first one leads. None: none is live.

    ``last_leader_epoch``: that of a removed partition of the same number, which the new one continues.
    """
    in_sync = [replica for replica in replicas if replica in live]
    if not in_sync:
        return None
    return PartitionState(controller_epoch, in_sync[0], last_leader_epoch + 1, in_sync)


def after_broker_change(
    state: PartitionState,
    replicas: Sequence[int],
    live: Collection[int],
    electable: Collection[int],
    controller_epoch: int,
) -> PartitionState | None:
    """After brokers came or went. ``live`` are registered; ``electable`` those of them that are not shutting down.

    A leader that is gone is replaced by the first electable replica of the ISR. When there is none, the partition is
    offline and keeps its ISR, for whoever of it returns first has every committed record.
    """
    in_sync = [replica for replica in state.isr if replica in live]
    if state.leader in live:
        if in_sync == state.isr:
            return None
        return _changed(state, controller_epoch, leader=state.leader, isr=in_sync)
    candidates = [replica for replica in replicas if replica in in_sync and replica in electable]
    if candidates:
        return _changed(state, controller_epoch, leader=candidates[0], isr=in_sync)
    if state.leader == NO_LEADER:
        return None
    return _changed(state, controller_epoch, leader=NO_LEADER, isr=state.isr)


def before_shutdown(
    state: PartitionState, replicas: Sequence[int], live: Collection[int], broker: int, controller_epoch: int
) -> PartitionState | None:
    """Before ``broker`` stops: its leadership and its place in the ISR go to others, where there are others.

    ``live`` does not contain ``broker``. A partition with one replica stays as it is until the broker is gone.
    """
    if broker not in state.isr or len(replicas) == 1:
        return None
    in_sync = [replica for replica in state.isr if replica != broker]
    if state.leader != broker:
        return _changed(state, controller_epoch, leader=state.leader, isr=in_sync) if in_sync else None
    candidates = [replica for replica in replicas if replica in in_sync and replica in live]
    return _changed(state, controller_epoch, leader=candidates[0], isr=in_sync) if candidates else None


def after_log_dir_failure(state: PartitionState, broker: int, controller_epoch: int) -> PartitionState | None:
    """After ``broker`` answered that it cannot write its replica: as if it were gone, for this partition."""
    others = set(state.isr) - {broker}
    return after_broker_change(state, state.isr, others, others, controller_epoch)


def _changed(state: PartitionState, controller_epoch: int, leader: int, isr: list[int]) -> PartitionState:
    return state.replace(leader=leader, isr=isr, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)
