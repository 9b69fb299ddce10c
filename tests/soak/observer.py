"""Observes a run: leaders, in-sync replicas, high watermarks and committed offsets."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from anabranch import Admin
from anabranch.client.errors import KafkaError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from anabranch.runtime.real_trio import TrioNetwork
from tests.history.events import OffsetFetched, WatermarkSeen
from tests.soak.cluster import SoakCluster
from tests.soak.network import HOST
from tests.soak.recorder import Recorder
from tests.soak.resizing import Resizer

LATEST_TIMESTAMP = -1
LOOK_EVERY_S = 0.5
REQUEST_TIMEOUT_S = 3.0
_CHECK_EVERY_S = 0.2


class Observer:
    """Sends requests to the brokers' own ports, so that it sees more than clients during a cut."""

    def __init__(self, cluster: SoakCluster, recorder: Recorder, resizer: Resizer) -> None:
        self._cluster, self._recorder, self._resizer = cluster, recorder, resizer
        self.deposed: set[str] = set()
        """Brokers that may not know that their session has ended."""

    def _admin(self) -> Admin:
        bootstrap = ",".join(f"{HOST}:{port}" for port in self._cluster.direct.values())
        return Admin(bootstrap_servers=bootstrap, client_id="onlooker", default_api_timeout_ms=5_000)

    async def watch_watermarks(self, broker: int) -> None:
        """Record each high watermark that this broker reports as a leader, until cancelled."""
        while True:
            try:
                async with Channel.open(
                    TrioNetwork(), HOST, self._cluster.direct[broker], "onlooker", timeout_s=REQUEST_TIMEOUT_S
                ) as channel:
                    while True:
                        await self._look(channel, broker)
                        await trio.sleep(LOOK_EVERY_S)  # polls: the next observation
            except (OSError, KafkaError):
                await trio.sleep(LOOK_EVERY_S)  # polls: until it serves again

    async def _look(self, channel: Channel, broker: int) -> None:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for tp in self._resizer.partitions:
            asked = ListOffsetsPartition(partition_index=tp.partition, timestamp=LATEST_TIMESTAMP)
            topics.setdefault(tp.topic, []).append(asked)
        asked_ms = self._recorder.now_ms()
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[ListOffsetsTopic(name=topic, partitions=found) for topic, found in topics.items()],
        )
        answer = await channel.request(request, timeout_s=REQUEST_TIMEOUT_S)
        now_ms = self._recorder.now_ms()
        self._recorder.record(
            *(
                WatermarkSeen(
                    now_ms,
                    TopicPartition(topic.name, found.partition_index),
                    broker,
                    found.leader_epoch,
                    found.offset,
                    asked_ms,
                )
                for topic in answer.topics
                for found in topic.partitions
                if found.error_code == ErrorCode.NONE
            )
        )

    async def watch_commits(self, groups: Iterable[str]) -> None:
        """Record the committed offsets that coordinators report, until cancelled."""
        async with self._admin() as admin:
            while True:
                for group in groups:
                    current = not self.deposed
                    asked_ms = self._recorder.now_ms()
                    partitions = self._resizer.partitions
                    try:
                        found = await admin.list_group_offsets(group, partitions)
                    except (OSError, KafkaError):
                        continue
                    now_ms = self._recorder.now_ms()
                    self._recorder.record(
                        *(
                            OffsetFetched(now_ms, group, tp, found[tp].offset, asked_ms, current)
                            for tp in partitions
                            # A partition's commits are deleted with the partition.
                            if tp in found and not self._resizer.may_vanish(tp)
                        )
                    )
                await trio.sleep(2 * LOOK_EVERY_S)  # polls: the next observation

    async def wait_until_in_sync(self, topics: list[str], replicas: int, limit_s: float) -> str:
        """Wait until every partition has a leader and its whole ISR. Returns "", or what is missing at the limit."""
        lacking = "no metadata response"
        with trio.move_on_after(limit_s):
            async with self._admin() as admin:
                while lacking:
                    try:
                        described = await admin.describe_topics(topics)
                    except (OSError, KafkaError) as error:
                        lacking = repr(error)
                    else:
                        lacking = ", ".join(
                            f"{topic}-{number} led by {partition.leader} has the ISR {list(partition.isr)}"
                            for topic, description in described.items()
                            for number, partition in enumerate(description.partitions)
                            if partition.leader < 0 or len(partition.isr) < replicas
                        )
                    await trio.sleep(_CHECK_EVERY_S)  # polls: until every ISR is whole
                return ""
        return lacking

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """The log end offsets of the existing partitions. A partition may be removed during the request."""
        async with self._admin() as admin:
            while True:
                asked = self._resizer.partitions
                try:
                    found = await admin.list_offsets(dict.fromkeys(asked, "latest"))
                except KafkaError:
                    if self._resizer.partitions == asked:
                        raise
                else:
                    return {tp: result.offset for tp, result in found.items()}
