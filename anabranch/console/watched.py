"""A group as its page shows it: its description, with rates, lags in seconds, and the owners before a rebalance."""

from __future__ import annotations

from typing import NamedTuple

from anabranch import TopicPartition
from anabranch.view.groups import AwaitedMember, GroupWait

REBALANCES = ("PreparingRebalance", "CompletingRebalance")


class Owner(NamedTuple):
    name: str
    """The client id; the member id if the client id is empty."""
    host: str


class WatchedPartition(NamedTuple):
    """A partition that a group reads. Numbers are None where they are not known; rates are in records a second."""

    topic: str
    partition: int
    committed_offset: int | None = None
    high_watermark: int | None = None
    lag: int | None = None
    """The readable records after the commit; None without a commit."""
    lag_s: float | None = None
    """The age of the first readable record after the commit."""
    at_most: int | None = None
    """The records of a partition without a commit; None for a partition with one."""
    expired: int | None = None
    member: str | None = None
    client_id: str | None = None
    host: str = ""
    written_rate: float | None = None
    read_rate: float | None = None
    was: Owner | None = None
    """The owner before the present rebalance."""


class WatchedGroup(NamedTuple):
    """A group. ``members`` is their number."""

    group: str
    state: str
    members: int
    awaited_members: list[AwaitedMember]
    partitions: list[WatchedPartition]
    waits: list[GroupWait]
    uncommitted: dict[TopicPartition, int | None]
    """The records in each partition of its topics without a commit; None where they are unknown."""
    owners_seen_ms: int | None = None
    """During a rebalance, the time at which the owners before it were seen."""
