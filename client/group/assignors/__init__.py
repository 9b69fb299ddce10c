"""Assignors: pure functions by which a group's leader assigns partitions. Their results are those of Kafka's."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.client.arguments import shown
from anabranch.client.group.assignors.cooperative_sticky import CooperativeStickyAssignor
from anabranch.client.group.assignors.judged import JudgedAssignor
from anabranch.client.group.assignors.marked import PartitionSpan, spread
from anabranch.client.group.assignors.model import Assignor, Members, MemberSubscription, PartitionCounts
from anabranch.client.group.assignors.range import RangeAssignor
from anabranch.client.group.assignors.roundrobin import RoundRobinAssignor
from anabranch.zk_schemas.config_def import ConfigError

__all__ = [
    "Assignor",
    "CooperativeStickyAssignor",
    "MemberSubscription",
    "Members",
    "PartitionCounts",
    "PartitionSpan",
    "RangeAssignor",
    "RoundRobinAssignor",
    "resolve_assignors",
    "spread",
]

_BY_NAME: dict[str, type[Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def resolve_assignors(given: Sequence[object]) -> tuple[Assignor, ...]:
    """Assignors for the names, classes or instances in ``partition_assignment_strategy``, in order of preference."""
    found: list[Assignor] = []
    for item in given:
        if isinstance(item, str):
            known = _BY_NAME.get(item.strip())
            if known is None:
                raise ConfigError("partition_assignment_strategy", f"{shown(item)} is not one of {', '.join(_BY_NAME)}")
            found.append(known())
        else:
            instance = item() if isinstance(item, type) else item
            if not isinstance(instance, Assignor):
                raise ConfigError("partition_assignment_strategy", f"{shown(item)} is no assignor")
            found.append(JudgedAssignor(instance))
    return tuple(found)
