"""The problems of a cluster, in words, with their remedies. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch import ClusterDescription, GroupDescription, TopicDescription
from anabranch.protocol.plurals import counted, named
from anabranch.view.amounts import duration

NAMED = 5
"""Of each kind of problem, at most this many partitions are named; further partitions are only counted."""


class ShownProblem(NamedTuple):
    """A problem; ``level`` is ``error`` if reads or writes fail or records are at risk, else ``warning``."""

    level: str
    text: str
    todo: str


LONG_MS = 10_000
"""A member that has not joined again for this time is reported as an error: healthy members join within seconds."""


def held_up(groups: Iterable[GroupDescription]) -> list[ShownProblem]:
    """The groups that get no records because a member has not joined a rebalance for a long time."""
    found = []
    for group in groups:
        awaited = [member for member in group.members if (member.awaited_ms or 0) >= LONG_MS]
        if awaited:
            names = ", ".join(f"{member.client_id} on {member.host.lstrip('/')}" for member in awaited[:NAMED])
            longest = duration(max(member.awaited_ms or 0 for member in awaited) / 1000)
            has = "has" if len(awaited) == 1 else "have"
            text = f"Group {group.group_id} gets no records: {names} {has} not joined its rebalance for {longest}."
            found.append(ShownProblem("error", text, f"Look at {names}. The page of the group says more."))
    return found


def find_problems(
    cluster: ClusterDescription,
    topics: Iterable[TopicDescription],
    lost_dirs: Mapping[int, Sequence[str]],
    rebalancing: Iterable[GroupDescription] = (),
) -> list[ShownProblem]:
    """The problems of a cluster.

    ``lost_dirs`` are the log directories that are out of use, by broker. ``rebalancing`` are groups in a rebalance.
    """
    live = {node.id for node in cluster.nodes}
    away: dict[int, int] = defaultdict(int)
    leaderless, under_replicated = [], []
    behind: set[int] = set()
    for topic in topics:
        for info in topic.partitions:
            name = f"{topic.name}-{info.partition}"
            if info.leader < 0:
                leaderless.append(name)
            elif len(info.isr) < len(info.replicas):
                under_replicated.append(name)
                behind |= {*info.replicas} - {*info.isr}
            for broker in info.replicas:
                if broker not in live:
                    away[broker] += 1
    found = []
    if cluster.active_controller_id < 0:
        found.append(
            ShownProblem(
                "error",
                "No controller is active: no topic can be created or resized, and no leader can be elected.",
                "Start a controller (anabranch controller), and check that ZooKeeper responds.",
            )
        )
    found += [
        ShownProblem(
            "error",
            f"Broker {broker} is down. It has {counted(count, 'replica', form=',')}.",
            f"Start broker {broker} again. Its log says why it ended.",
        )
        for broker, count in sorted(away.items())
    ]
    if leaderless:
        found.append(
            ShownProblem(
                "error",
                f"No client can read or write {_some(leaderless)}: no leader.",
                "Start the brokers that have their replicas. If they are lost: anabranch topics elect-leaders --unclean"
                " elects leaders among the remaining replicas, and may lose records.",
            )
        )
    if under_replicated:
        found.append(
            ShownProblem(
                "warning",
                f"Not all replicas are in sync: {_some(under_replicated)}. Behind: {named('broker', sorted(behind))}.",
                "After a restart this ends when the replicas have caught up. If it lasts: look at the disk and the log"
                " of their brokers.",
            )
        )
    found += [
        ShownProblem(
            "error",
            f"The log directory {path} of broker {broker} is offline.",
            "Look at the disk. The broker uses the directory again after a restart.",
        )
        for broker, paths in sorted(lost_dirs.items())
        for path in paths
    ]
    return [*found, *held_up(rebalancing)]


def _some(names: Sequence[str]) -> str:
    named = ", ".join(names[:NAMED])
    return named if len(names) <= NAMED else f"{named} and {len(names) - NAMED:,} more"
