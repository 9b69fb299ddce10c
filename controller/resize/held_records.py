"""Holds make retention by time keep records: topic key ``ordered.delivery.retention.waits`` (hole 22).

Records for which another partition waits are held until every group with committed offsets of the topic has read them.
All records are held if a fact is missing: the list of groups, the end of the awaited records, or whether a group
without such commits reads the topic. The controller sends holds in each round. A hold that is not sent again ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.controller.context import Context
from anabranch.controller.image import Hold
from anabranch.controller.resize.groups import Group, KnownGroups
from anabranch.protocol.generated.update_metadata import HeldRecords
from anabranch.protocol.types import TopicPartition

WAITS_KEY = "ordered.delivery.retention.waits"
MAX_KEY = "ordered.delivery.retention.waits.max.ms"
ROUNDS = 3
"""A hold lasts for this many rounds, because one round may be late and another controller may take office."""
_EVERYTHING = 0


def held_from(
    groups: KnownGroups, tp: TopicPartition, incarnation: int, awaited: range | None
) -> tuple[int, str] | None:
    """The lowest awaited offset that some group has not read, and this group; None: nothing is held.

    ``awaited``: the existing offsets that another partition waits for; None: not known.
    """
    readers = [group for group in groups.known if _has_committed(group, tp.topic)]
    is_unknown = bool(groups.unknown) or any(_may_commit(group, tp.topic) for group in groups.known)
    if is_unknown or (awaited is None and readers):
        return _EVERYTHING, ""
    behind = [(max(group.committed(tp, incarnation), awaited.start), group.name) for group in readers if awaited]
    return min((found for found in behind if awaited and found[0] in awaited), default=None)


def _has_committed(group: Group, topic: str) -> bool:
    return any(tp.topic == topic for tp in group.offsets)


def _may_commit(group: Group, topic: str) -> bool:
    """Whether a group without known commits of the topic may have unknown commits, or may commit soon.

    Members first commit the position where they begin.
    """
    return not group.is_settled and group.may_read(topic) and not _has_committed(group, topic)


def send(context: Context, holds: Iterable[Hold]) -> None:
    """Send each hold to the leader of the hold's epoch. A leader of a new epoch first keeps all records for a lease."""
    for_ms = ROUNDS * context.config.retention_warning_interval_ms
    for hold in holds:
        found = context.image.led(hold.tp)
        if (
            found is not None
            and found[3].leader_epoch == hold.leader_epoch
            and found[3].leader in context.image.brokers
        ):
            held = HeldRecords(offset=hold.offset, held_ms=for_ms, group_id=hold.group)
            context.batch.hold(found[3].leader, hold.tp, held)
