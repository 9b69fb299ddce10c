"""Compares a log with what a request or a znode says of its partition (pure).

A leader epoch, a layout and an incarnation are in ZooKeeper before a broker gets them. The leader epochs of a topic's
name only grow, also when the topic is created again (ADR 55). So if a log has more than ZooKeeper, ZooKeeper's data
went back. A request with less proves nothing, because it may be late.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.protocol.sentinels import NO_LAYOUT_VERSION


class Standing(NamedTuple):
    """What a log, a request or a znode knows of a partition; -1 where it knows nothing."""

    incarnation: int
    leader_epoch: int
    layout_version: int


def standing_of(log: PartitionLog) -> Standing:
    """What a log knows: its incarnation, its last leader epoch, and its last layout version."""
    layouts = log.layouts.entries
    version = layouts[-1].layout_version if layouts else NO_LAYOUT_VERSION
    return Standing(log.identity.incarnation, log.leader_epoch_cache.latest_epoch, version)


def ahead(log: Standing, other: Standing) -> str:
    """How the log is newer than ``other``; empty if it is not newer.

    A later incarnation begins above all leader epochs of the earlier ones. Layout versions are comparable only within
    an incarnation. If an incarnation is not known, both count as the same.
    """
    are_known = log.incarnation >= 0 and other.incarnation >= 0
    if are_known and log.incarnation > other.incarnation:
        return f"incarnation {log.incarnation}, and ZooKeeper has {other.incarnation}"
    if are_known and log.incarnation < other.incarnation:
        if log.leader_epoch < other.leader_epoch:
            return ""
        return f"leader epoch {log.leader_epoch} of an earlier incarnation, and ZooKeeper has {other.leader_epoch}"
    if log.leader_epoch > other.leader_epoch:
        return f"leader epoch {log.leader_epoch}, and ZooKeeper has {other.leader_epoch}"
    if 0 <= other.layout_version < log.layout_version:
        return f"layout version {log.layout_version}, and ZooKeeper has {other.layout_version}"
    return ""
