"""Resets of the committed offsets of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch import Admin, ErrorCode, KafkaError, TopicPartition
from anabranch.command_error import CommandError


class Reset(NamedTuple):
    """The new committed offset of one partition, ``to``; ``from_`` is None when there was none."""

    topic: str
    partition: int
    from_: int | None
    to: int


class Where(NamedTuple):
    """The place from which a group continues. Exactly one field is set."""

    to_earliest: bool = False
    to_latest: bool = False
    to_offset: int | None = None
    to_ms: int | None = None
    """The first record at or after this time, ms since 1970."""
    shift_by: int | None = None


async def plan_reset(
    admin: Admin, group: str, topic: str, partitions: Sequence[int] | None, where: Where
) -> list[Reset]:
    """The reset of each partition's offset; of all partitions when none is named."""
    description = (await admin.describe_topics([topic]))[topic]
    existing = [info.partition for info in description.partitions]
    if absent := sorted(set(partitions or ()) - set(existing)):
        raise CommandError(f"topic {topic} has partitions {existing[0]} to {existing[-1]}, not {absent[0]}")
    numbers = sorted(partitions) if partitions else existing
    tps = [TopicPartition(topic, number) for number in numbers]
    first = await admin.list_offsets(dict.fromkeys(tps, "earliest"))
    end = await admin.list_offsets(dict.fromkeys(tps, "latest"))
    committed = await admin.list_group_offsets(group, tps)
    at_time = {}
    if where.to_ms is not None:
        at_time = await admin.list_offsets(dict.fromkeys(tps, where.to_ms))
    rows = []
    for tp in tps:
        old = committed[tp].offset if tp in committed else None
        if where.to_earliest:
            new = first[tp].offset
        elif where.to_ms is not None and at_time[tp].offset >= 0:
            new = at_time[tp].offset
        elif where.to_offset is not None:
            new = where.to_offset
        elif where.shift_by is not None and old is not None:
            new = old + where.shift_by
        else:
            new = end[tp].offset
        rows.append(Reset(topic, tp.partition, old, min(max(new, first[tp].offset), end[tp].offset)))
    return rows


async def apply_reset(admin: Admin, group: str, rows: Iterable[Reset]) -> None:
    """Set the offsets. Raises ``CommandError`` while the group has members."""
    try:
        await admin.alter_group_offsets(group, {TopicPartition(row.topic, row.partition): row.to for row in rows})
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
            raise
        raise CommandError(f"group {group} has members: its offsets can be set when all have left") from error
