"""The plan of a resize, its request, and the waits until it is done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import anyio

from anabranch import Admin, ErrorCode, KafkaError, KafkaTimeoutError, TopicDescription
from anabranch.command_error import CommandError
from anabranch.ordered_resize.delete_when_drained import DRAIN_KEY, LOSS_KEY, Marked, is_compacted, of_compacted
from anabranch.ordered_resize.lineage import has_keys, last_merges
from anabranch.protocol.plurals import counted, one_or_many
from anabranch.view.moves import KeyMove, moves, unordered_share
from anabranch.view.topics import (
    Committed,
    committed_offsets,
    existing,
    lineages,
    marked_partitions,
    offsets,
    remaining,
    unfinished_resize,
)
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS

Report: TypeAlias = Callable[[str], object]
CHECK_EVERY_S = 0.1
LOOK_S = 2
"""The time for the answers to one look at a topic. A broker that hangs answers nothing until its request times out."""
REPORTED_MS = 10_000
"""Twice the longest wait for the brokers' reports of stock producers. Those of a broker that hangs are not known."""
REFUSALS = frozenset(
    {
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
    }
)
"""Errors by which the controller refuses a resize; any other error means that the request failed."""

NEVER = (ErrorCode.INVALID_PARTITIONS.name, ErrorCode.INVALID_REQUEST.name)
"""The errors for an impossible count and for an internal topic. Any other refusal may be temporary."""


_DRAINS = frozenset({DRAIN_KEY, LOSS_KEY, "cleanup.policy", "retention.ms"})
"""The configs that decide whether marked partitions are ever drained. The controller checks them last."""
LOSS_FLAG = "--delete-latest-values-when-drained"


async def check_resize(
    admin: Admin, name: str, count: int, changes: Mapping[str, str | None], *, force: bool = False
) -> None:
    """Raise ``CommandError`` when the resize is refused, unless the reason is a config that ``changes`` sets.

    Without ``force`` it is also refused if recent stock producers cannot follow the count.
    """
    refused, _ = await _judgement(admin, name, count, force=force)
    if refused is not None and not await _depends_on(admin, name, count, refused, changes):
        raise CommandError(refused)


async def check_loss(admin: Admin, name: str, count: int) -> None:
    """Raise ``CommandError`` when the user accepted the loss of values, but the resize marks no partition."""
    topic = (await admin.describe_topics([name]))[name]
    refused, advice = await _judgement(admin, name, count, force=True)
    values = await _values(admin, name, {})
    # If a shrink of a compacted topic marks partitions, the response names the key. A shrink that only cancels a grow
    # marks none.
    is_taken_back = refused is None and is_compacted(values) and not any(LOSS_KEY in line for line in advice)
    if count >= topic.partition_count or is_taken_back:
        raise CommandError(
            f"{LOSS_FLAG}: the resize of {name} to {counted(count, 'partition')} marks no partition for deletion;"
            f" for partitions that are marked already, set --config {LOSS_KEY}=true"
        )


async def _values(admin: Admin, name: str, changes: Mapping[str, str | None]) -> dict[str, Any]:
    """The topic keys that decide how long marked partitions are kept, parsed."""
    entries = (await admin.describe_configs(topics=[name], keys=sorted(_DRAINS)))[name]
    given = {key: entry.value for key, entry in entries.items()} | dict(changes)
    known = {key: value for key, value in given.items() if key in _DRAINS and value is not None}
    return {key: TOPIC_CONFIGS[key].default for key in _DRAINS} | TOPIC_CONFIGS.parse_given(known)


async def _depends_on(admin: Admin, name: str, count: int, refused: str, changes: Mapping[str, str | None]) -> bool:
    if DRAIN_KEY not in refused or _DRAINS.isdisjoint(changes):
        return False
    return count < (await admin.describe_topics([name]))[name].partition_count


class PlannedMove(NamedTuple):
    """The keys that one partition loses to another, as their share of all keys, with the leaders of both."""

    from_: int
    into: int
    share: float
    from_leader: int | None
    into_leader: int | None


class ResizePlan(NamedTuple):
    """The effect of a resize from ``partitions`` to ``partitions_after``."""

    topic: str
    partitions: int
    partitions_after: int
    initial_partition_count: int
    layout_version: int
    ordered_delivery: bool
    moved_share: float
    """The share of all keys that move."""
    moves: list[PlannedMove]
    refused: str | None
    """Why the controller would refuse the resize."""
    notes: list[str]


async def plan_resize(
    admin: Admin, name: str, count: int, changes: Mapping[str, str | None], *, force: bool = False
) -> ResizePlan:
    """The effect of a resize of the topic ``name`` to ``count`` after ``changes`` of its configs.

    Without ``force`` it is refused if recent stock producers cannot follow the count.
    """
    topic = (await admin.describe_topics([name]))[name]
    before = topic.partition_count
    initial = topic.initial_partition_count if topic.initial_partition_count > 0 else before
    refused, advice = await _judgement(admin, name, count, force=force)
    is_possible = not (refused or "").startswith(NEVER)
    only_drain = refused is not None and count < before and changes.get(DRAIN_KEY) == "true" and DRAIN_KEY in refused
    planned = moves(initial, before, count) if topic.ordered_delivery and is_possible else []
    share = sum((move.share for move in planned), Fraction(0))
    if not topic.ordered_delivery and is_possible:
        share = unordered_share(before, count)
    leaders = {p.partition: p.leader for p in topic.partitions}
    notes = await _notes(admin, topic, count, changes, planned) if is_possible else []
    return ResizePlan(
        topic=name,
        partitions=before,
        partitions_after=count,
        initial_partition_count=initial,
        layout_version=topic.layout_version,
        ordered_delivery=topic.ordered_delivery,
        moved_share=float(share),
        moves=[
            PlannedMove(m.source, m.target, float(m.share), leaders.get(m.source), leaders.get(m.target))
            for m in planned
        ],
        # The controller checks the present config, without ``changes``. Its last check is the one of the drain.
        refused=None if only_drain else refused,
        # The controller's advice on marked partitions is for the present config, too.
        notes=[line for line in advice if LOSS_KEY not in line] + notes,
    )


async def _judgement(admin: Admin, name: str, count: int, *, force: bool) -> tuple[str | None, list[str]]:
    """The reason why the resize is refused, or None; and the controller's warnings about it."""
    try:
        advice = await admin.create_partitions(
            {name: count}, timeout_ms=REPORTED_MS, validate_only=True, spares_stock_producers=not force
        )
    except KafkaError as error:
        if error.code not in REFUSALS:
            raise
        return f"{error.code.name}: {error.message}", []
    return None, [f"warning: {line}" for advised in advice.values() for line in advised.splitlines()]


async def _notes(
    admin: Admin, topic: TopicDescription, count: int, changes: Mapping[str, str | None], planned: Iterable[KeyMove]
) -> list[str]:
    """Notes about a resize that is possible, now or later."""
    before = topic.partition_count
    notes = _order_notes(topic)
    sources = set(range(count, before)) or {move.source for move in planned}
    committed = await committed_offsets(admin, topic.name) if sources else {}
    if count < before:
        notes += await _drain_notes(admin, topic, sources, changes, committed)
    else:
        notes += _replica_notes(topic, before, count)
    return notes + await _lag_notes(admin, topic, sources, committed)


def _order_notes(topic: TopicDescription) -> list[str]:
    if topic.ordered_delivery:
        return []
    return ["enable.ordered.delivery=false: a key's partition is its hash modulo the count; keys that move lose order"]


def _replica_notes(topic: TopicDescription, before: int, count: int) -> list[str]:
    there = {p.partition for p in topic.partitions}
    revived, created = (
        [p for p in range(before, count) if p in there],
        [p for p in range(before, count) if p not in there],
    )
    notes = []
    if revived:
        takes = one_or_many(len(revived), "takes", "take")
        notes.append(f"{named_partitions(revived, 'drains', 'drain')}, and {takes} records again")
    if created:
        when = one_or_many(len(created), "when it is created", "when they are created")
        notes.append(f"the controller chooses brokers for {named_partitions(created)} {when}")
    return notes


async def _lag_notes(
    admin: Admin, topic: TopicDescription, sources: Collection[int], committed: Committed
) -> list[str]:
    """Notes on the number of records that each group has yet to read in the partitions that lose keys."""
    if not sources:
        return []
    ends = await offsets(admin, topic)
    until = " before it gets newer records of their keys" if topic.ordered_delivery else ""
    notes = []
    unknown = [p for p in sources if p not in ends]
    if unknown:
        ends_of = one_or_many(len(unknown), "the end offset of", "the end offsets of")
        notes.append(f"{ends_of} {named_partitions(unknown, 'is', 'are')} not known now: their records are not counted")
    for group, of_topic in sorted(committed.items()):
        left = _left(of_topic, ends, sources)
        if left:
            notes.append(f"group {group} has {counted(left, 'record')} of {named_partitions(sources)} to read{until}")
    return notes


async def _drain_notes(
    admin: Admin,
    topic: TopicDescription,
    sources: Collection[int],
    changes: Mapping[str, str | None],
    committed: Committed,
) -> list[str]:
    """Notes about the time when the partitions that are merged away are deleted."""
    values = await _values(admin, topic.name, changes)
    notes = _when_deleted(sources, values)
    if Marked.of(values) is Marked.DRAINED and not committed:
        notes.append(
            "no group has committed offsets of the topic: until a group has, partitions are deleted only by expiry"
        )
    marked = marked_partitions(topic)
    if marked:
        notes.append(f"{named_partitions(marked, 'is', 'are')} marked for deletion already")
    return notes


def _when_deleted(partitions: Collection[int], values: Mapping[str, Any]) -> list[str]:
    """When marked partitions are deleted, by the configs of their topic."""
    kept, retention_ms = Marked.of(values), values["retention.ms"]
    numbers, are = named_partitions(partitions), one_or_many(len(partitions), "is", "are")
    them = one_or_many(len(partitions), "it", "them")
    if is_compacted(values):
        return [of_compacted(sorted(partitions), kept)]
    if kept is Marked.DRAINED:
        return [f"{numbers} {are} deleted when every group has read {them} ({DRAIN_KEY}=true)"]
    its, days = one_or_many(len(partitions), "its", "their"), retention_ms / 86_400_000
    when = f"when {its} last record has expired (retention.ms={retention_ms}, {days:g} days)"
    never = f"{numbers} {are} never deleted: {its} records do not expire"
    return [
        f"{numbers} {are} deleted {when}" if kept is Marked.EXPIRED else never,
        f"with --delete-records-when-drained: deleted when every group has read {them}",
    ]


def named_partitions(partitions: Collection[int], singular: str = "", plural: str = "") -> str:
    """The numbers of partitions as text, followed by a verb in singular or plural."""
    verb = one_or_many(len(partitions), singular, plural)
    numbers = ", ".join(map(str, sorted(partitions)))
    return f"{one_or_many(len(partitions), 'partition', 'partitions')} {numbers}" + (f" {verb}" if verb else "")


async def begin_resize(admin: Admin, name: str, count: int, changed: Collection[str], *, waits: bool) -> list[str]:
    """Request a resize to ``count`` after the configs ``changed``. Returns the controller's warnings, in lines.

    Raises ``CommandError``. A timeout of the request is no error when the command ``waits`` until the resize is done.
    """
    done = f" (the new values of {', '.join(changed)} stay)" if changed else ""
    try:
        advice = await admin.create_partitions({name: count})
        return [f"warning: {line}" for advised in advice.values() for line in advised.splitlines()]
    except KafkaTimeoutError as error:
        if not waits:
            raise CommandError(
                f"{error.message}; a resize that has begun continues: anabranch topics describe {name} shows it{done}"
            ) from error
    except KafkaError as error:
        is_waited_for_again = waits and error.code is ErrorCode.INVALID_PARTITIONS
        if not (is_waited_for_again and (await admin.describe_topics([name]))[name].partition_count == count):
            raise CommandError(f"{error.code.name}: {error.message}{done}") from error
    return []


async def wait_until_resized(
    admin: Admin, name: str, count: int, timeout_ms: int, report: Report = lambda _: None
) -> list[int]:
    """Wait until a resize to ``count`` is done. Returns the marked partitions.

    ``report`` is called with each reason for the wait. Raises ``CommandError`` on timeout, and as soon as the
    controller has another goal.
    """
    missing = "no broker has described the topic yet"
    with anyio.move_on_after(timeout_ms / 1000):
        while True:
            topic = None
            with anyio.move_on_after(LOOK_S):  # another broker is asked next, if this one is silent
                topic = (await admin.describe_topics([name]))[name]
                await _check_goal(admin, topic, count)
            if topic is None:
                continue
            missing = await _missing(admin, topic, count)
            if not missing:
                return marked_partitions(topic)
            report(f"{name}: {missing}")
            await anyio.sleep(CHECK_EVERY_S)
    raise CommandError(
        f"{name} is not resized after {timeout_ms} ms: {missing}; "
        f"the resize continues: anabranch topics describe {name}"
        " shows it"
    )


async def _check_goal(admin: Admin, topic: TopicDescription, count: int) -> None:
    """Raise ``CommandError`` if the topic will not have ``count`` partitions."""
    if topic.partition_count == count:
        return
    try:
        goal = await admin.resize_goal(topic.name)
    except KafkaError:  # Kafka, or no controller now
        return
    if count not in goal:
        last = goal.partitions if goal.queued is None else goal.queued
        raise CommandError(
            f"another request replaced the resize of {topic.name} to {counted(count, 'partition')}, or the controller"
            f" dropped it: the topic's goal is {counted(last, 'partition')}"
        )


async def wait_until_drained(admin: Admin, name: str, timeout_ms: int, report: Report = lambda _: None) -> list[int]:
    """Wait until no partition is marked for deletion. Returns an empty list; raises ``CommandError`` on timeout.

    ``report`` is called with each reason for the wait.
    """
    marked: list[int] = []
    why = ""
    with anyio.move_on_after(timeout_ms / 1000):
        while True:
            topic = (await admin.describe_topics([name]))[name]
            marked = marked_partitions(topic)
            if not marked:
                return []
            ends, committed = await offsets(admin, topic), await committed_offsets(admin, name)
            left = {group: _left(of_topic, ends, marked) for group, of_topic in committed.items()}
            behind = [f"{group} has {counted(count, 'record')}" for group, count in sorted(left.items()) if count]
            draining = f"{name}: {named_partitions(marked, 'drains', 'drain')}"
            if not committed:
                why = "no group has committed offsets of the topic, so the partitions are deleted only by expiry"
            elif behind:
                why = f"{', '.join(behind)} to read"
            else:
                why = "; ".join(_when_deleted(marked, await _values(admin, name, {})))
                if unfinished := await unfinished_resize(admin, topic):
                    why = f"{unfinished}; {why}"
            report(f"{draining}; {why}")
            await anyio.sleep(CHECK_EVERY_S)
    because = f": {why}" if why else ""
    raise CommandError(
        f"{name} still has {named_partitions(marked)} after {timeout_ms} ms{because}; the same command waits again"
    )


def _left(of_topic: Mapping[int, int], ends: Mapping[int, tuple[int, int]], partitions: Iterable[int]) -> int:
    return sum(remaining(ends[p][1], ends[p][0], of_topic.get(p)) or 0 for p in partitions if p in ends)


async def _missing(admin: Admin, topic: TopicDescription, count: int) -> str:
    """The condition that a resize to ``count`` still misses; empty when the resize is done."""
    if topic.partition_count != count:
        are = "is" if topic.partition_count == 1 else "are"
        return f"{counted(topic.partition_count, 'partition')} {are} in use, not {count}"
    without_leader = [p.partition for p in topic.partitions if p.leader < 0]
    if without_leader:
        return f"{named_partitions(without_leader, 'has', 'have')} no leader"
    if topic.layout_version < 0:  # a cluster without layouts, such as Kafka's, splits no partitions
        return ""
    known = existing(await lineages(admin, topic.name, (p.partition for p in topic.partitions)))
    merges = last_merges(known)
    for p in marked_partitions(topic):
        if p not in known or p not in merges or has_keys(known[p], merges[p]):
            return f"the keys of partition {p} are not merged yet"
    behind = [
        p
        for p in range(topic.initial_partition_count, count)
        if p not in known or not has_keys(known[p], merges.get(p))
    ]
    return f"{named_partitions(behind, 'is', 'are')} not split off yet" if behind else ""
