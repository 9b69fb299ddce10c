"""The states of a group and the moves between them, as a table (Kafka ``GroupState``)."""

from __future__ import annotations

import enum


class GroupState(enum.Enum):
    """The state of a group; the value is the name that Kafka's tools show."""

    EMPTY = "Empty"
    """No members; offsets or a past generation may remain. The first join leads to PREPARING_REBALANCE."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are asked to rejoin: JoinGroup waits, a heartbeat is answered with REBALANCE_IN_PROGRESS."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Every member has the new generation id; SyncGroup waits until the leader's assignment is committed."""
    STABLE = "Stable"
    """The assignment of this generation is committed: SyncGroup is answered with it."""
    DEAD = "Dead"
    """The group is deleted, or another broker coordinates it. Every request is refused. This is the last state."""


VALID_PREVIOUS_STATES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
