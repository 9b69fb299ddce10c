"""The last known owners of partitions: a broker reports no assignment of a group that rebalances."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.console.watched import REBALANCES, Owner
from anabranch.view.groups import DescribedGroup

MOST_GROUPS = 2_000
"""The largest number of groups whose owners are kept."""


class Assignment(NamedTuple):
    seen_ms: int
    owners: dict[tuple[str, int], Owner]
    """By topic and partition."""


class LastOwners:
    """Keeps the partition owners of each group, as last seen outside a rebalance."""

    def __init__(self) -> None:
        self._seen: dict[str, Assignment] = {}

    def note(self, group: DescribedGroup, now_ms: int) -> Assignment | None:
        """Keep the owners of the group. During a rebalance, return the assignment before it, if it was seen."""
        if group.state in REBALANCES:
            return self._seen.get(group.group)
        self._seen.pop(group.group, None)  # the newest groups are at the end
        owners = {
            (row.topic, row.partition): Owner(row.client_id or row.member, host_of(row.host))
            for row in group.partitions
            if row.member
        }
        self._seen[group.group] = Assignment(now_ms, owners)
        while len(self._seen) > MOST_GROUPS:
            del self._seen[next(iter(self._seen))]
        return None


def host_of(host: str | None) -> str:
    """The host of a member: Kafka writes hosts with a slash."""
    return (host or "").removeprefix("/")
