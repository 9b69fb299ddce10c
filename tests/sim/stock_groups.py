"""Consumer groups of stock members in a simulated cluster. A stock member has no gate, and its position is its commit.

Each partition of a group has a member of its own, which commits its offsets to the group and is in no generation. This
is the worst case for order: only the partition leaders keep one member from overtaking another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.generated.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from anabranch.protocol.records import iter_batches
from anabranch.runtime.channel import Channel
from tests.sim.scenes import TOPIC, Scene
from tests.sim.sim_cluster import BROKER_PORT

EARLIEST, LATEST = -2, -1
_ASKS_AGAIN_S = 0.05


@dataclass
class Delivered:
    """A record that was delivered to a user."""

    key: str
    value: str
    partition: int
    offset: int


@dataclass
class StockGroup:
    """A group of stock members, one for each partition that was passed to ``read``."""

    scene: Scene
    tasks: trio.Nursery
    name: str
    reset: int = EARLIEST
    commits: bool = True
    delivered: list[Delivered] = field(default_factory=list)
    members: dict[int, trio.CancelScope] = field(default_factory=dict)
    busy: dict[int, trio.Event] = field(default_factory=dict)
    """By partition: until the event is set, the user still processes the partition's first uncommitted record."""
    begun: dict[int, int] = field(default_factory=dict)
    """The first position of each member."""
    has_committed: bool = False
    begins_again: bool = False
    """Whether a member that had begun has ended: uncommitted records may then be delivered twice."""

    def read(self, *partitions: int) -> None:
        """Start a member for each partition. A previous member of the partition ends without leaving the group."""
        for partition in partitions:
            self.begins_again |= self.begun.pop(partition, None) is not None
            self.stop(partition)
            self.members[partition] = trio.CancelScope()
            self.busy.setdefault(partition, trio.Event()).set()
            self.tasks.start_soon(self._run_member, partition, self.members[partition])

    def stop(self, *partitions: int) -> None:
        for partition in partitions:
            if partition in self.members:
                self.members.pop(partition).cancel()

    def make_busy(self, *partitions: int) -> None:
        """Make the users of these partitions busy with the next record until ``go_on``."""
        for partition in partitions:
            self.busy[partition] = trio.Event()

    def go_on(self, *partitions: int) -> None:
        for partition in partitions:
            self.busy[partition].set()

    @property
    def values(self) -> list[str]:
        return [record.value for record in self.delivered]

    def is_in_order(self) -> bool:
        """Whether the first deliveries of each key's records are in the order of writing."""
        seen: dict[str, list[int]] = {}
        for record in self.delivered:
            number = int(record.value.rpartition(":")[2])
            of_key = seen.setdefault(record.key, [])
            if number not in of_key:
                if of_key and number < of_key[-1]:
                    return False
                of_key.append(number)
        return True

    async def delete(self) -> None:
        """Stop the members, and delete the group."""
        self.stop(*list(self.members))
        self.delivered.clear()
        async with self.scene._admin() as admin:
            await admin.delete_groups([self.name])

    # ------------------------------------------------------------ a member

    async def _run_member(self, partition: int, scope: trio.CancelScope) -> None:
        with scope:
            position = await self._begin(partition)
            self.begun[partition] = position
            while True:
                for record in await self._fetch(partition, position):
                    await self.busy[partition].wait()
                    self.delivered.append(record)
                    position = record.offset + 1
                    if self.commits:
                        await self._commit(partition, position)

    async def _begin(self, partition: int) -> int:
        topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[partition])]
        request = OffsetFetchRequest(group_id=self.name, topics=topics)

        def offset(answer: Any) -> int | None:
            if answer.error_code or answer.topics[0].partitions[0].error_code:
                return None
            return int(answer.topics[0].partitions[0].committed_offset)

        committed = await self._until(self._coordinator, request, 7, offset)
        if committed >= 0:
            return committed
        asked = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=TOPIC, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=self.reset)]
                )
            ],
        )

        def found(answer: Any) -> int | None:
            answered = answer.topics[0].partitions[0]
            return None if answered.error_code else int(answered.offset)

        return await self._until(lambda: self._leader(partition), asked, 5, found)

    async def _fetch(self, partition: int, position: int) -> list[Delivered]:
        asked = FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=300, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[asked])]
        )  # without a session

        def records(answer: Any) -> list[Delivered] | None:
            answered = answer.responses[0].partitions[0]
            if answered.error_code:
                return None
            assert answered.high_watermark >= position, "the log seems to end below the reader"
            return [
                Delivered((record.key or b"").decode(), (record.value or b"").decode(), partition, record.offset)
                for batch in iter_batches(answered.records or b"")
                for record in batch.records()
                if record.offset >= position
            ]

        return await self._until(lambda: self._leader(partition), request, 11, records)

    async def _commit(self, partition: int, offset: int) -> None:
        partitions = [OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)]
        request = OffsetCommitRequest(
            group_id=self.name, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
        )

        def is_taken(answer: Any) -> bool | None:
            return None if answer.topics[0].partitions[0].error_code else True

        await self._until(self._coordinator, request, 7, is_taken)
        self.has_committed = True

    async def _leader(self, partition: int) -> str:
        return self.scene.leader_or_none(partition)

    async def _coordinator(self) -> str:
        for server in (name.partition(":")[0] for name in self.scene.cluster.bootstrap_servers.split(",")):
            with suppress(OSError, KafkaError):
                found = await self._ask(server, FindCoordinatorRequest(key=self.name), 3)
                if found.error_code == ErrorCode.NONE:
                    return f"broker{found.node_id}"
        return ""

    async def _until(self, server_of: Callable[[], Any], request: Any, version: int, read: Callable[[Any], Any]) -> Any:
        """Repeat a request until ``read`` returns a value for the response."""
        while True:
            server = await server_of()
            with suppress(OSError, KafkaError):
                found = read(await self._ask(server, request, version)) if server else None
                if found is not None:
                    return found
            await trio.sleep(_ASKS_AGAIN_S)  # polls: virtual time

    async def _ask(self, server: str, request: Any, version: int) -> Any:
        node = self.scene.cluster.fabric.node(self.name)
        async with Channel.open(node, server, BROKER_PORT, self.name, timeout_s=1.0) as channel:
            return await channel.request(request, version=version, timeout_s=20.0)
