"""Checks that the owners of an emptied partition have processed it. Before that, the partition is not removed.

Retention may remove records that a member has received but not yet flushed. If the partition were removed at this
point, the reader of the surviving partition would already process the partition's keys. So if a live member can report
its position, the report counts, and an empty log is not enough. The removal waits neither for a group without live
members nor for a group whose members do not keep order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.controller import view
from anabranch.controller.context import Context
from anabranch.controller.events import PartitionProcessed
from anabranch.controller.image import ClusterImage, Leftover, TopicImage
from anabranch.controller.resize.groups import BrokerLink, Group, UnknownGroupsError, ask_position, read_groups
from anabranch.controller.resize.waits import DrainWait, Round
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.types import TopicPartition


async def confirm(current: Callable[[], Context], link: BrokerLink) -> Round:
    """Ask the groups about emptied partitions. A partition that all groups have processed is reported to the queue.

    Facts that are not available are asked for again in the next round.
    """
    waits, processed = dict[TopicPartition, DrainWait](), set[TopicPartition]()
    found = [emptied for topic in current().image.topics.values() for emptied in _emptied(topic)]
    if not found:
        return Round(waits, processed)
    groups = await read_groups(link, lambda: current().image, {emptied.tp.topic for emptied in found})
    for emptied in found:
        try:
            wait = await _wait(link, current().image, groups.require_all(), emptied)
        except (OSError, KafkaError, UnknownGroupsError) as error:
            wait = DrainWait(f"the groups' positions: {error}")
        if wait is None:
            processed.add(emptied.tp)
            current().events.put(PartitionProcessed(emptied))
        else:
            waits[emptied.tp] = wait
    return Round(waits, processed)


def _emptied(topic: TopicImage) -> list[Leftover]:
    found = []
    for index in view.drainable(topic):
        emptied = view.leftover(topic, index)
        if emptied is not None and view.is_empty(topic, index) and not view.is_processed(topic, index):
            found.append(emptied)
    return found


async def _wait(link: BrokerLink, image: ClusterImage, groups: Sequence[Group], emptied: Leftover) -> DrainWait | None:
    tp, end = emptied.tp, emptied.end_offset
    for group in groups:
        committed = group.committed(tp, emptied.incarnation)
        if not group.is_settled and group.may_read(tp.topic):
            return DrainWait(group.unknown or "the end of its rebalance", group.name, committed, end)
        if tp.topic in group.topics:
            found = await ask_position(link, image, group, tp, emptied.incarnation)
            if found.awaits_report and found.position < end:
                return DrainWait("its flush callback", group.name, found.position, end)
    return None
