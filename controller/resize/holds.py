"""What retention by time is to leave alone: topic key ``ordered.delivery.retention.waits`` (hole 22).

Records of a partition that another one waits for are held for every group that has committed offsets of the topic and
has yet to read them. Whatever cannot be learnt holds everything: which groups there are, what a group in the middle of
a rebalance reads, where the awaited records end. The leader is told in each round, and forgets what is not said again.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.context import Context
from controller.image import Hold
from controller.resize.groups import Group, Groups
from protocol.generated.update_metadata import HeldRecords
from protocol.types import TopicPartition

WAITS_KEY = "ordered.delivery.retention.waits"
MAX_KEY = "ordered.delivery.retention.waits.max.ms"
ROUNDS = 3
"""A leader keeps to what it was told for so many rounds: one may be late, and another controller in office."""
_EVERYTHING = 0


def held_from(groups: Groups, tp: TopicPartition, incarnation: int, awaited: range | None) -> tuple[int, str] | None:
    """The first offset that some group has yet to read, and the group that is furthest behind; None: nothing is held.

    ``awaited``: the offsets there are that other partitions wait for; None where nobody can tell.
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
    """Whether a group without commits of the topic may have some, or may be about to: its members commit first thing
    where they begin.
    """
    return not group.is_settled and group.may_read(topic) and not _has_committed(group, topic)


def tell(context: Context, holds: Iterable[Hold]) -> None:
    """Tell the leaders, but for those of other leader epochs: they hold everything until the next round."""
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
