"""The waits of partitions marked for deletion. They are logged when they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anabranch.controller.step_log import shown
from anabranch.ordered_resize.explain import Wait
from anabranch.protocol.types import TopicPartition


class Round(NamedTuple):
    """The results of one round of questions about marked partitions."""

    waits: dict[TopicPartition, Wait]
    processed: set[TopicPartition]
    """The partitions that every group has processed."""


def changed_waits(before: Mapping[TopicPartition, Wait], now: Mapping[TopicPartition, Wait]) -> list[dict[str, str]]:
    """The log fields of each wait that has begun, one entry per topic, reason and group.

    The progress of a group does not count as a change.
    """
    begun: dict[tuple[str, str, str], list[TopicPartition]] = {}
    for tp in sorted(now):
        was, wait = before.get(tp), now[tp]
        if was is None or (was.why, was.group) != (wait.why, wait.group):
            begun.setdefault((tp.topic, wait.why, wait.group), []).append(tp)
    return [_fields(why, group, tps, now) for (_, why, group), tps in begun.items()]


def _fields(why: str, group: str, tps: list[TopicPartition], now: Mapping[TopicPartition, Wait]) -> dict[str, str]:
    fields = {"topic": tps[0].topic, "partitions": shown([tp.partition for tp in tps])}
    if group:
        fields["group"] = group
        fields["read"] = ",".join(str(now[tp].position) for tp in tps)
        fields["end"] = ",".join(str(now[tp].offset) for tp in tps)
    return {**fields, "waits_for": why}
