"""Finds the readers of awaited partitions and the committed offsets there: information for people, not for decisions.

A member does not know the owners of other partitions: only the leader of a group does. So when a partition waits for
longer than a hand-over takes, this module asks the coordinator. It repeats the request until the wait is over.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from anabranch.client.errors import ClientClosedError, KafkaError
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.group.group_protocol import decode_assignment
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from anabranch.protocol.sentinels import NO_INCARNATION, NO_OFFSET
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.signal import Signal


class GroupView:
    """A recent view of the readers and committed offsets of some partitions; ``run`` is a task."""

    def __init__(self, link: CoordinatorLink, pause_ms: int, timeout_ms: int) -> None:
        self._link = link
        self._pause_ms = pause_ms
        self._timeout_ms = timeout_ms
        self._incarnations: Mapping[TopicPartition, int] = {}
        self._changed = Signal()
        self._owners: dict[TopicPartition, str] = {}
        self._committed: dict[TopicPartition, int] = {}

    def look_at(self, incarnations: Mapping[TopicPartition, int]) -> None:
        """Watch exactly these partitions, by incarnation. Facts about other partitions are forgotten."""
        if incarnations == self._incarnations:
            return
        same = [tp for tp, incarnation in incarnations.items() if self._incarnations.get(tp) == incarnation]
        self._incarnations = incarnations
        self._owners = {tp: self._owners[tp] for tp in same if tp in self._owners}
        self._committed = {tp: self._committed[tp] for tp in same if tp in self._committed}
        self._changed.set()

    def owner_of(self, tp: TopicPartition) -> str | None:
        """The member that reads a partition; None if not known."""
        return self._owners.get(tp)

    def committed(self, tp: TopicPartition) -> int:
        """The group's committed offset of a partition; -1 if there is none, or it is not known."""
        return self._committed.get(tp, NO_OFFSET)

    async def run(self) -> None:
        """Refresh the view until the client is closed."""
        while True:
            if not self._incarnations:
                await self._changed.wait()
                continue
            await anyio.sleep(self._pause_ms / 1000)
            try:
                await self._look()
            except KafkaError:
                continue  # the known facts stay
            except ClientClosedError:
                return

    async def _look(self) -> None:
        looked_at = self._incarnations
        if not looked_at:
            return
        offsets = await self._link.fetch_offsets(looked_at, self._timeout_ms)
        owners = _owners(await self._link.request(DescribeGroupsRequest(groups=[self._link.group_id])))
        if looked_at is not self._incarnations:
            return
        self._owners = {tp: owners[tp] for tp in looked_at if tp in owners}
        self._committed = {
            tp: found.offset for tp, found in offsets.items() if found.incarnation in (NO_INCARNATION, looked_at[tp])
        }


def _owners(response: DescribeGroupsResponse) -> dict[TopicPartition, str]:
    """The reader of each partition; empty if the members do not use the consumer protocol."""
    owners: dict[TopicPartition, str] = {}
    for group in response.groups:
        for member in group.members:
            try:
                assigned = decode_assignment(bytes(member.member_assignment))
            except ValueError:
                continue
            owners.update(dict.fromkeys(assigned, member.member_id))
    return owners
