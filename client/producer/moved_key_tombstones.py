"""Tombstones for keys of compacted topics that a resize moved to another partition (KIP-253, section 9).

Without tombstones, a key's last value would stay for ever in the key's previous partition. So once a record of the key
is acknowledged in a partition that a resize created, a tombstone goes to that partition's ancestor. The ancestor must
still be able to hold older records: its log start must be below the end of its recorded leader epoch. The KIP has this
condition the wrong way round. Also, a consumer would take the KIP's tombstone for a deletion that is newer than the
value. So this tombstone has the header ``MOVED_HEADER``, and consumers skip it. Each producer writes one tombstone for
each key and split.

A tombstone is sent only while the layout by which the key's record was placed is still in force. A topic may shrink and
grow again, and another producer may write a newer value to the ancestor meanwhile. A late tombstone would delete this
value.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from anabranch.client.config import ProducerConfig
from anabranch.client.errors import ClientClosedError, ErrorCode, KafkaError, error_for
from anabranch.client.net.connections import Connections, backoff_ms
from anabranch.client.net.metadata import Metadata
from anabranch.client.net.offsets import OffsetQueries, ask_lineages
from anabranch.client.producer.accumulator import Accumulator
from anabranch.client.producer.partitioner import cached_place
from anabranch.client.producer.placement_while_resized import TopicPlacement
from anabranch.client.producer.producer_batch import RecordHandle
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.lineage import leader_epochs_after_creation
from anabranch.protocol.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal
from anabranch.zk_schemas.partition_state import PartitionLayout

_log = logging.getLogger(__name__)

_TOPIC_RESOURCE = 2
_REMEMBERED_KEYS = 65_536


@dataclass(slots=True)
class _NewPartition:
    """A partition that a resize created, and the known origin of its keys."""

    topic: TopicPlacement
    partition: int
    incarnation: int
    layout: PartitionLayout
    """The layout by which the records of the pending keys were placed."""
    ancestor: int = -1
    """The previous partition of the keys; -1 until the partition is known for this layout."""
    origin: tuple[int, int] = (-1, -1)
    """The ancestor with the tombstones of ``tombstoned``, and its leader epoch that ended with the split."""
    needed: bool = True
    """Whether the ancestor may hold records from before the split."""
    asked_s: float = float("-inf")
    pending: dict[bytes, None] = field(default_factory=dict)
    tombstoned: dict[bytes, None] = field(default_factory=dict)


class MovedKeys:
    """Watches acknowledged records of compacted topics, and sends a tombstone to the previous partition of a key."""

    def __init__(
        self,
        env: Env,
        config: ProducerConfig,
        accumulator: Accumulator,
        metadata: Metadata,
        connections: Connections,
        queries: OffsetQueries,
    ) -> None:
        self._env = env
        self._config = config
        self._accumulator = accumulator
        self._metadata = metadata
        self._connections = connections
        self._queries = queries
        self._sent: dict[TopicPartition, deque[tuple[bytes, RecordHandle]]] = {}
        self._new_partitions: dict[TopicPartition, _NewPartition] = {}
        self._compacted: dict[str, tuple[bool, float]] = {}
        """Whether a topic is compacted, and the time (s) when a broker answered this."""
        self._wake = Signal()
        self._idle = anyio.Event()
        self.on_tombstones: Callable[[], None] = lambda: None

    # ------------------------------------------------------------ decisions

    def sent(self, topic: TopicPlacement, key: bytes, handle: RecordHandle) -> None:
        """Note a sent record with a key; only for topics with ``watches_keys``."""
        tp = TopicPartition(topic.name, handle.partition)
        waiting = self._sent.get(tp)
        if waiting is None:
            waiting = self._sent[tp] = deque()
        waiting.append((key, handle))
        if topic.name not in self._compacted:
            self._wake.set()

    def progress(self) -> None:
        """After batches were resolved: note the keys in partitions that a resize created, and send tombstones."""
        for tp, waiting in self._sent.items():
            while waiting and waiting[0][1].done():
                key, handle = waiting.popleft()
                self._acknowledged(self._accumulator.topics[tp.topic], key, handle)
        for new in self._new_partitions.values():
            self._leave_tombstones(new)

    def _acknowledged(self, topic: TopicPlacement, key: bytes, handle: RecordHandle) -> None:
        partition = handle.partition
        if not topic.watches_keys or handle.failed or partition < topic.info.initial_partition_count:
            return
        if handle.layout != topic.layout:
            return
        part = topic.info.partitions.get(partition)
        if part is None:
            return
        tp = TopicPartition(topic.name, partition)
        new = self._new_partitions.get(tp)
        if new is None or new.incarnation != part.incarnation:
            new = self._new_partitions[tp] = _NewPartition(topic, partition, part.incarnation, topic.layout)
        if new.layout != topic.layout:
            new.layout, new.ancestor = topic.layout, -1
            new.pending.clear()
        if key not in new.tombstoned or new.ancestor < 0:
            new.pending[key] = None
            self._wake.set()

    def _leave_tombstones(self, new: _NewPartition) -> None:
        if not new.pending or new.ancestor < 0:
            return
        pending, new.pending = new.pending, {}
        topic = new.topic
        if not new.needed or new.layout != topic.layout:
            return
        for key in pending:
            # A key sent with ``partition=`` may belong to another partition, even to the ancestor.
            if key in new.tombstoned or cached_place(key, *topic.info.layout) != new.partition:
                continue
            self.append_tombstone(topic.name, new.ancestor, key)
            new.tombstoned[key] = None
            if len(new.tombstoned) > _REMEMBERED_KEYS:
                del new.tombstoned[next(iter(new.tombstoned))]
        self.on_tombstones()

    def append_tombstone(self, topic: str, partition: int, key: bytes) -> None:
        headers = ((MOVED_HEADER, b""),)
        args = (topic, partition, key, None, headers, self._env.clock.now_ms())
        if self._accumulator.append(*args, pinned=True) is None:
            self._accumulator.append_to_new_batch(*args, self._env.clock.monotonic() * 1000, pinned=True)

    # ------------------------------------------------------------ questions

    async def run(self) -> None:
        """Ask for the facts that the decisions need, until the client is closed."""
        attempt = 0
        while True:
            try:
                await self._ask()
                attempt = 0
                self.progress()
                if not any(new.pending for new in self._new_partitions.values()):
                    self._idle.set()
                await self._wake.wait()
            except ClientClosedError:
                return
            except KafkaError:
                attempt += 1
                config = self._config
                pause = backoff_ms(
                    attempt, config.retry_backoff_ms, config.retry_backoff_max_ms, self._env.rng.random()
                )
                await anyio.sleep(pause / 1000)

    async def settled(self) -> None:
        """Return once the buffer has a tombstone for every acknowledged record that needs one."""
        self.progress()
        while any(new.pending for new in self._new_partitions.values()):
            if self._idle.is_set():
                self._idle = anyio.Event()
            self._wake.set()
            await self._idle.wait()

    async def _ask(self) -> None:
        for name in dict.fromkeys(tp.topic for tp in [*self._sent, *self._new_partitions]):
            topic = self._accumulator.topics[name]
            if self._is_old(self._compacted.get(name, (False, float("-inf")))[1]):
                compacted = await self._read_compacted(name)
                self._compacted[name] = (compacted, self._env.clock.monotonic())
                topic.watches_keys = compacted
                if not compacted:
                    self._forget(name)
        for new in [*self._new_partitions.values()]:
            if new.pending and (new.ancestor < 0 or (new.needed and self._is_old(new.asked_s))):
                await self._ask_about(new)

    def _is_old(self, asked_s: float) -> bool:
        return self._env.clock.monotonic() - asked_s > self._config.metadata_max_age_ms / 1000

    def _forget(self, name: str) -> None:
        for tp in [tp for tp in self._sent if tp.topic == name]:
            del self._sent[tp]
        for tp in [tp for tp in self._new_partitions if tp.topic == name]:
            del self._new_partitions[tp]

    async def _read_compacted(self, name: str) -> bool:
        resource = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=["cleanup.policy"]
        )
        try:
            response: DescribeConfigsResponse = await self._connections.request(
                self._metadata.any_node(), DescribeConfigsRequest(resources=[resource])
            )
            [result] = response.results
            if result.error_code:
                raise error_for(result.error_code, result.error_message)
        except KafkaError as error:
            if error.code.retriable:
                raise
            _log.warning(
                "keys of topic %s that a resize moves get no tombstone, because cleanup.policy cannot be read: %s",
                name,
                error,
            )
            return False  # not authorized, or a broker that does not serve this request
        return any("compact" in (config.value or "") for config in result.configs)

    async def _ask_about(self, new: _NewPartition) -> None:
        """Find the origin of the partition's keys, and whether older records may still be in the origin."""
        name = new.topic.name
        asked = [TopicPartition(name, new.partition)]
        response = await ask_lineages(self._connections, self._metadata, asked, lambda _: new.topic.info.incarnation)
        [answer] = response.topics[0].partitions
        if answer.error_code:
            why = error_for(answer.error_code, answer.error_message).message
            raise error_for(answer.error_code, f"{name}-{new.partition}: {why}")
        known = Lineage.of_answer(answer)
        origins = leader_epochs_after_creation(new.partition, known.entries if known is not None else ())
        if not origins:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"the origin of {name}-{new.partition} is not known yet")
        [(origin, epoch)] = origins.items()
        ancestor = TopicPartition(name, origin)
        timeout_ms = self._config.request_timeout_ms
        ends = await self._queries.epoch_ends({ancestor: epoch}, timeout_ms)
        starts = await self._queries.list_offsets({ancestor: EARLIEST_TIMESTAMP}, timeout_ms)
        end = ends[ancestor].end_offset
        start = starts[ancestor].offset if ancestor in starts else 0
        new.needed = end < 0 or start < end
        if (origin, epoch) != new.origin:
            new.origin = (origin, epoch)
            new.tombstoned.clear()
        new.ancestor = origin
        new.asked_s = self._env.clock.monotonic()
