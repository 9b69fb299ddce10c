"""``anabranch groups``: the members of groups, their positions and lags, and resets of committed offsets."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import App, Parameter

from anabranch import Admin, ErrorCode, KafkaError, TopicDescription, TopicPartition
from anabranch.cli.admin import each, with_admin
from anabranch.cli.errors import report_deleted, report_some
from anabranch.cli.group_lag import add_lag_seconds
from anabranch.cli.group_view import FIELDS, print_group
from anabranch.cli.held import MAX_KEY, WAITS_KEY, waits
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Int, JsonFlag, Natural, Offset, TsvFlag
from anabranch.cli.output import print_json, print_rows, print_tsv
from anabranch.cli.times import milliseconds
from anabranch.cli.topic_view import (
    ANSWER_WITHIN_MS,
    HOLD_KEY,
    consumer_hold_lines,
    consumer_hold_rows,
    is_resized,
    known_offsets,
    lineages,
)
from anabranch.cli.unread import unread
from anabranch.cli.waits import BlockedBy, GroupOnTopic
from anabranch.client.admin.types import MemberDescription
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.client.net.offsets import one_epoch_each
from anabranch.command_error import CommandError, UsageError
from anabranch.ordered_resize.explain import Wait
from anabranch.protocol.sentinels import NO_OFFSET

EXPIRING_WITHIN_MS = 600_000
"""A wait is shown as expiring if retention removes awaited records within this time.

Controllers warn by ``retention.warning.ms``, which has the same default.
"""

app = App(name="groups", help="List, describe, reset, delete consumer groups.")


@app.command(name="list")
def list_(*, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False, tsv: TsvFlag = False) -> int:
    """List groups and their states."""
    groups = with_admin(bootstrap_server, lambda admin: admin.list_groups())
    print_rows(
        [{"group": g.group_id, "protocol_type": g.protocol_type, "state": g.state} for g in groups],
        ["group", "protocol_type", "state"],
        as_json=json_,
        as_tsv=tsv,
    )
    return 0


@app.command
def describe(
    *groups: str, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False, tsv: TsvFlag = False
) -> int:
    """Show each partition of the topics that a group reads: offset, lag, member; and the waits of a resize.

    A partition without a commit and a member is left out if it has no records.
    The lag counts records that can still be read. "expired unread" counts records that were removed before the group
    committed them. "behind" is the age of the first readable record that is not committed. A topic's total shows the
    highest age. A wait is expiring if retention removes unread records of the awaited partition within ten minutes.

    Parameters
    ----------
    groups
        Their ids.
    """
    if not groups:
        raise UsageError("name a group: anabranch groups describe GROUP")
    described, absent = with_admin(bootstrap_server, lambda admin: describe_groups(admin, list(groups)))
    add_lag_seconds(bootstrap_server, described)
    status = report_some(absent_group(group) for group in absent)
    if json_:
        print_json(described)
        return status
    if tsv:
        rows = [[group["group"], *(row[name] for name in FIELDS)] for group in described for row in group["partitions"]]
        print_tsv(["group", *FIELDS], rows)
        return status
    for group in described:
        print_group(group)
        if group["held_consumers"]:
            print("partitions held for stock consumers because of this group:")
            for row in group["held_consumers"]:
                print(f"  {row['topic']}: {consumer_hold_lines([row])[0]}")
        if group["waits"]:
            print("partitions that wait for others across a resize:")
            for line in wait_sentences(group["waits"]):
                print(f"  {line}")
    return status


def absent_group(group: str) -> CommandError:
    return CommandError(f"group {group} does not exist; anabranch groups list shows those that do")


async def describe_groups(admin: Admin, group_ids: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The groups that exist, and the names of those that do not."""
    described: list[dict[str, Any]] = []
    absent = []
    for group_id, group in (await admin.describe_groups(group_ids)).items():
        committed = await admin.list_group_offsets(group_id)
        if group.state == "Dead" and not committed:
            absent.append(group_id)
            continue
        owners = {tp: member for member in group.members for tp in member.partitions}
        named = {*committed, *owners}
        existing = {topic.name for topic in await admin.list_topics()}
        topics = await admin.describe_topics(sorted({tp.topic for tp in named} & existing))
        in_topics = {TopicPartition(t.name, info.partition) for t in topics.values() for info in t.partitions}
        partitions = sorted(named | in_topics)
        starts = await _offsets(admin, partitions, topics, "earliest")
        ends = await _offsets(admin, list(starts), topics, "latest")  # not again from a silent leader
        rows = []
        for tp in partitions:
            offset = committed[tp].offset if tp in committed else None
            start, end = starts.get(tp), ends.get(tp)
            left = unread(offset, start, end)
            if tp not in named and not left.uncommitted:
                continue
            member = owners.get(tp)
            rows.append(
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "committed_offset": offset,
                    "high_watermark": end,
                    "lag": left.lag,
                    "member": member.member_id if member else None,
                    "client_id": member.client_id if member else None,
                    "host": member.host if member else None,
                    "log_start_offset": start,
                    "expired": left.expired,
                    "uncommitted": left.uncommitted,
                }
            )
        held = await _holds(admin, group_id, topics)
        described.append(
            {
                "group": group_id,
                "state": group.state,
                "assignor": group.protocol,
                "coordinator": group.coordinator.id,
                "members": len(group.members),
                "awaited_members": [
                    {
                        "member": member.member_id,
                        "client_id": member.client_id,
                        "host": member.host,
                        "awaited_ms": member.awaited_ms,
                        "wait_left_ms": member.wait_left_ms,
                    }
                    for member in group.members
                    if member.awaited_ms is not None
                ],
                "partitions": rows,
                "held_consumers": held,
                "waits": [
                    row
                    for name, topic in sorted(topics.items())
                    for row in await _waits(
                        admin,
                        group_id,
                        topic,
                        owners,
                        _of_topic(name, committed),
                        {row["partition"] for row in held if row["topic"] == name},
                    )
                ],
            }
        )
    return described, absent


def _of_topic(name: str, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[int, int]:
    """The committed offsets of one topic, by partition."""
    return {tp.partition: offset.offset for tp, offset in committed.items() if tp.topic == name}


async def _offsets(
    admin: Admin, partitions: list[TopicPartition], topics: Mapping[str, TopicDescription], spec: str
) -> dict[TopicPartition, int]:
    """The offsets for ``spec`` of the partitions that exist and have leaders."""
    led = {TopicPartition(t.name, info.partition) for t in topics.values() for info in t.partitions if info.leader >= 0}
    return await known_offsets(admin, [tp for tp in partitions if tp in led], spec)


async def _holds(admin: Admin, group_id: str, topics: Mapping[str, TopicDescription]) -> list[dict[str, Any]]:
    """The partitions in which leaders hold stock consumers until this group has read.

    The held consumers may belong to other groups.
    """
    resized = [name for name, topic in sorted(topics.items()) if is_resized(topic)]
    configs = await admin.describe_configs(topics=resized, keys=[HOLD_KEY]) if resized else {}
    return [
        {"topic": name, **row}
        for name in resized
        for row in await consumer_hold_rows(admin, topics[name], configs[name])
        if row["group"] == group_id
    ]


def wait_sentences(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        until, position, committed = (
            -1 if row[name] is None else row[name] for name in ("until", "position", "committed")
        )
        numbers = (row["partition"], row["from_epoch"], row["waits_for"], row["epoch"], until, position)
        state = ", ".join(name for name in ("blocked", "expiring") if row[name])
        ahead = f" ({committed} committed)" if committed > position else ""
        yield f"{row['topic']}: {Wait(*numbers, row['member'])}{ahead}" + (f" ({state})" if state else "")


def left_of_wait(row: Mapping[str, Any]) -> int | None:
    """The records that the group has to process before the wait is over; None while the end or position is unknown.

    A member reports its position only now and then, so its commit may be ahead of the reported position.
    """
    known = [row[name] for name in ("position", "committed") if row[name] is not None]
    return None if row["until"] is None or not known else max(0, row["until"] - max(known))


async def _waits(
    admin: Admin,
    group_id: str,
    topic: TopicDescription,
    owners: Mapping[TopicPartition, MemberDescription],
    committed: Mapping[int, int],
    held: Collection[int],
) -> list[dict[str, Any]]:
    """The waits between partitions of one topic; empty when the topic was never resized.

    ``committed``: the group's offsets, by partition. ``held``: partitions in which leaders hold stock consumers.
    """
    if not is_resized(topic):
        return []
    name = topic.name
    led = {info.partition for info in topic.partitions if info.leader >= 0}
    starts = await known_offsets(admin, [TopicPartition(name, p) for p in sorted(led)], "earliest")
    found_waits = await _found_waits(admin, group_id, topic, starts, owners, committed, held)
    kept_from = await _kept_from(
        admin, name, {TopicPartition(name, w.wait.on) for w in found_waits if w.wait.on in led}
    )
    rows = []
    for wait, is_blocked in found_waits:
        on = TopicPartition(name, wait.on)
        position, member = max(wait.position, committed.get(wait.on, 0), starts.get(on, 0)), owners.get(on)
        rows.append(
            {
                "topic": name,
                "partition": wait.partition,
                "from_epoch": wait.from_epoch,
                "waits_for": wait.on,
                "epoch": wait.epoch,
                "position": wait.position if wait.position >= 0 else None,
                "committed": committed.get(wait.on),
                "until": wait.offset if wait.offset >= 0 else None,
                "member": wait.owner,
                "client_id": member.client_id if member else None,
                "blocked": is_blocked,
                "expiring": position < min(kept_from.get(wait.on, 0), wait.offset if wait.offset > 0 else sys.maxsize),
            }
        )
    return rows


async def _found_waits(
    admin: Admin,
    group_id: str,
    topic: TopicDescription,
    starts: Mapping[TopicPartition, int],
    owners: Mapping[TopicPartition, MemberDescription],
    committed: Mapping[int, int],
    held: Collection[int],
) -> list[BlockedBy]:
    """The waits in one topic. ``starts``: the log start offsets of the partitions whose leaders respond.

    The commit of an owner that reports no position is its position: a stock client processes what it commits. Such an
    owner waits for nothing, unless the leader holds the partition.
    """
    name = topic.name
    try:
        positions = await admin.group_positions(group_id, [TopicPartition(name, p.partition) for p in topic.partitions])
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        positions = {}  # unknown below level 2 of group_coordinator; waits for a position are then shown
    numbers = [info.partition for info in topic.partitions]
    stock = {tp.partition for tp, found in positions.items() if found.owner_reports is False}
    group = GroupOnTopic(
        await lineages(admin, name, numbers),
        {
            tp.partition: committed.get(tp.partition, NO_OFFSET) if tp.partition in stock else found.position
            for tp, found in positions.items()
        },
        {tp.partition: start for tp, start in starts.items()},
        {tp.partition: member.member_id for tp, member in owners.items() if tp.topic == name},
        stock - set(held),
    )
    if removed := group.unknown(numbers):
        for p, answer in (await lineages(admin, name, removed)).items():
            group.on_lineage(p, answer)
    asked: set[tuple[int, int]] = set()
    epochs = {info.partition: info.leader_epoch for info in topic.partitions}
    while found := group.ends_to_ask(asked):
        asked.update(found)
        over = [(TopicPartition(name, p), epoch) for p, epoch in found if (name, p) in starts and epochs[p] > epoch]
        for chosen in one_epoch_each(over):
            for tp, end in (await admin.epoch_ends(chosen, within_ms=ANSWER_WITHIN_MS)).items():
                if end.end_offset >= 0:
                    group.on_end(tp.partition, chosen[tp], end.end_offset)
    return group.waits()


async def _kept_from(admin: Admin, topic: str, partitions: set[TopicPartition]) -> dict[int, int]:
    """By partition, the first offset that retention keeps for longer than ``EXPIRING_WITHIN_MS``."""
    if not partitions:
        return {}
    keys = ["cleanup.policy", "retention.ms", WAITS_KEY, MAX_KEY]
    entries = (await admin.describe_configs(topics=[topic], keys=keys))[topic]
    retention_ms = int(entries["retention.ms"].value or -1)
    if "delete" not in (entries["cleanup.policy"].value or "") or retention_ms < 0:
        return {}
    if waits(entries):
        retention_ms += int(entries[MAX_KEY].value or 0)
    ends = await known_offsets(admin, sorted(partitions), "latest")
    when = max(0, int(time.time() * 1000) - retention_ms + EXPIRING_WITHIN_MS)
    kept = await admin.list_offsets(dict.fromkeys(ends, when), within_ms=ANSWER_WITHIN_MS)
    return {tp.partition: kept[tp].offset if kept[tp].offset >= 0 else end for tp, end in ends.items()}


class Reset(NamedTuple):
    """The new committed offset of one partition; ``old`` is None when there was none."""

    topic: str
    partition: int
    old: int | None
    new: int


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
        await admin.alter_group_offsets(group, {TopicPartition(row.topic, row.partition): row.new for row in rows})
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
            raise
        raise CommandError(f"group {group} has members: its offsets can be set when all have left") from error


@app.command(name="reset-offsets")
def reset_offsets(
    group: str,
    *,
    topic: str,
    partition: Annotated[list[Natural] | None, Parameter(negative=(), consume_multiple=False)] = None,
    to_earliest: Annotated[bool, Parameter(negative=())] = False,
    to_latest: Annotated[bool, Parameter(negative=())] = False,
    to_offset: Offset | None = None,
    to_datetime: str | None = None,
    shift_by: Int | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
    tsv: TsvFlag = False,
) -> int:
    """Set the committed offsets of a group without members. Give exactly one of the --to options or --shift-by.

    Parameters
    ----------
    group
        Its id.
    topic
        The topic to reset.
    partition
        Only this partition; may be given many times; all by default.
    to_earliest
        The log start offset of each partition.
    to_latest
        The end of each partition.
    to_offset
        This offset, or the nearest one in the log of the partition.
    to_datetime
        The first record at or after this time: 2026-01-31T12:00:00Z (local time when it has no zone), or milliseconds
        since 1970.
    shift_by
        This many offsets forward, or back if the number is negative.
    dry_run
        Set nothing; show the new offsets.
    """
    choices = [to_earliest or None, to_latest or None, to_offset, to_datetime, shift_by]
    if sum(choice is not None for choice in choices) != 1:
        raise UsageError("give exactly one of --to-earliest --to-latest --to-offset --to-datetime --shift-by")
    to_ms = None if to_datetime is None else milliseconds("--to-datetime", to_datetime)

    where = Where(to_earliest, to_latest, to_offset, to_ms, shift_by)

    async def work(admin: Admin) -> list[Reset]:
        rows = await plan_reset(admin, group, topic, partition, where)
        if not dry_run:
            await apply_reset(admin, group, rows)
        return rows

    rows = with_admin(bootstrap_server, work)
    print_rows(
        [{"topic": r.topic, "partition": r.partition, "from": r.old, "to": r.new} for r in rows],
        ["topic", "partition", "from", "to"],
        as_json=json_,
        as_tsv=tsv,
    )
    return 0


@app.command
def delete(*groups: str, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False) -> int:
    """Delete groups that have no members, with their committed offsets.

    Parameters
    ----------
    groups
        Their ids.
    """
    if not groups:
        raise UsageError("name a group: anabranch groups delete GROUP")
    refused = with_admin(bootstrap_server, lambda admin: each(groups, lambda group: admin.delete_groups([group])))
    return report_deleted(groups, refused, as_json=json_)
