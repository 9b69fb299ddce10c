"""The groups that are furthest behind, for the cluster page. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

NO_MEMBERS = "Empty"
"""The state of a group without members."""


class Behind(NamedTuple):
    """A group, and its lag in records over all topics. ``topics`` are the topics with a lag, the largest lag first."""

    group: str
    lag: int
    topics: list[str]
    has_members: bool


def furthest_behind(
    lags: Mapping[str, Mapping[str, int]], states: Mapping[str, str], committing: Collection[str], least: int
) -> list[Behind]:
    """The groups with a lag of at least ``least`` records, the most important first.

    Groups that have members or are in ``committing`` come before unused groups. ``lags`` are by group and topic.
    """
    found = [
        Behind(
            group,
            sum(of_topic.values()),
            sorted((topic for topic, lag in of_topic.items() if lag > 0), key=lambda topic: -of_topic[topic]),
            states.get(group) != NO_MEMBERS,
        )
        for group, of_topic in lags.items()
        if sum(of_topic.values()) >= least
    ]
    return sorted(found, key=lambda one: (not one.has_members and one.group not in committing, -one.lag, one.group))
