"""Decides which keys a partition accepts, and which producers may write to the partition (KIP-253). Pure.

A layout belongs to one partition and one leader epoch. During a resize, two partitions of one topic may have different
layouts. A producer knows one layout for its topic. A partition is closed if its number is not below the undeleted count
in its own layout. A closed partition is marked for deletion, and accepts no records of clients until a later leader
epoch has a layout that includes the partition again. Readers need no layout.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from anabranch.broker.log.slices import Steps, at_once
from anabranch.ordered_resize.layout import Layout
from anabranch.protocol.errors import ErrorCode, RecordError, RefusedRecordsError
from anabranch.protocol.generated.produce import TopicProduceData
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import NO_COUNT, NO_LAYOUT_VERSION
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout

_CACHED_KEYS = 32_768
_CACHED_KEY_BYTES = 128
"""Longer keys are not cached, so that the cache stays below 10 MB."""

Admission: TypeAlias = Callable[[RecordBatch], None]
"""Checks a batch that its partition does not have yet. Raises ``KafkaError`` if the batch may not be appended."""


UNKNOWN = Layout(NO_COUNT, NO_LAYOUT_VERSION, NO_COUNT)
"""The layout if the controller sends no layout. Batches are not compared with it."""
KEY_BYTES_AT_ONCE = 64 * 1024
"""The hash of a key takes a quarter of a microsecond for each four bytes."""
MAX_NAMED_RECORDS = 1_000
"""The largest number of records with misplaced keys that one refusal names."""


class StockProducerRule(enum.Enum):
    """``ordered.delivery.stock.producers``: the treatment of producers that name no layout on a resized topic."""

    VERIFY = "verify"
    REJECT = "reject"
    ACCEPT = "accept"


class StockConsumerRule(enum.Enum):
    """``ordered.delivery.stock.consumers``: whether leaders withhold records from such consumers."""

    ACCEPT = "accept"
    WITHHOLD = "withhold"


class DeliveryRules(NamedTuple):
    """The part of a topic's configuration that this module needs."""

    ordered: bool = True
    stock_producers: StockProducerRule = StockProducerRule.VERIFY
    stock_consumers: StockConsumerRule = StockConsumerRule.ACCEPT


class LayoutRefusedError(RefusedRecordsError):
    """A request is refused because of its layout (25310), or because it names no layout (44)."""


class Placement:
    """The partitions of a batch's keys. ``wrong`` has the index and partition of each key that belongs elsewhere."""

    __slots__ = ("layout", "partition", "wrong")

    def __init__(self, partition: int, layout: Layout) -> None:
        self.partition = partition
        self.layout = layout
        self.wrong: list[tuple[int, int]] = []


def place_keys(placement: Placement, keys: Iterable[bytes | None], at_once: int) -> Steps[None]:
    """Fill ``placement``. Yields after each ``at_once`` keys, or earlier if the keys are long."""
    initial, undeleted = placement.layout.initial_partition_count, placement.layout.undeleted_partition_count
    count = size = 0
    for index, key in enumerate(keys):
        if key is not None:
            size += len(key)
            if (home := _home(key, initial, undeleted)) != placement.partition:
                placement.wrong.append((index, home))
        count += 1
        if count == at_once or size > KEY_BYTES_AT_ONCE:
            count = size = 0
            yield None


def named_layout(topic: TopicProduceData) -> StoredLayout | None:
    """The layout by which a producer chose partitions; None if it names no layout (tags 10253 and 10257)."""
    count = topic.undeleted_partition_count
    return StoredLayout(count, topic.layout_version) if count >= 0 else None


def verifies_keys(partition: int, layout: Layout, rules: DeliveryRules, client: StoredLayout | None) -> bool:
    """Whether ``produce_admission`` checks the key of each record."""
    return (
        client is None
        and rules.ordered
        and layout.layout_version > 0
        and rules.stock_producers is StockProducerRule.VERIFY
        and not layout.closes(partition)
    )


def produce_admission(
    key: TopicPartition,
    layout: Layout,
    rules: DeliveryRules,
    client: StoredLayout | None,
    placement: Placement | None = None,
) -> Admission | None:
    """The check of a client's batch before it is appended; None if no check is needed.

    The check runs after the search for an earlier append of the batch. So if a response was lost, the retry is answered
    with the old offset, whatever the layout is (hole 17). Transaction markers are not checked here (hole 25).
    ``client``: the layout by which the producer chose the partition of the batch, None if it names no layout.
    ``placement``: the known partitions of the batch's keys, used only if they were computed by the same layout. A
    closed partition accepts no batch, even without ordered delivery, because the batch would be removed unread.
    """
    if layout.closes(key.partition):
        return _refuse(_closed(key, layout) if client is None else _mismatch(key, layout, client))
    if not rules.ordered or layout.undeleted_partition_count < 0:
        return None
    if client is not None:
        return None if layout.takes(key.partition, client) else _refuse(_mismatch(key, layout, client))
    if layout.layout_version <= 0 or rules.stock_producers is StockProducerRule.ACCEPT:
        return None
    if rules.stock_producers is StockProducerRule.REJECT:
        return _refuse(_without_layout(key))
    return _verify_keys(key, layout, placement)


def refusal_of_absent(key: TopicPartition, topic: Layout, client: StoredLayout | None) -> LayoutRefusedError | None:
    """The refusal for a producer that names no layout, if the absent partition's number is not below the topic's count.

    Such a partition was merged away. The refusal is permanent: after a retriable error a stock producer would wait for
    the partition until its delivery timeout, and an idempotent producer would wait for ever.
    """
    if client is not None or topic.layout_version <= 0 or not topic.closes(key.partition):
        return None
    return _closed(key, topic)


# ---------------------------------------------------------------- refusals


def _refuse(refusal: LayoutRefusedError) -> Admission:
    def refuse(_batch: RecordBatch) -> None:
        raise refusal

    return refuse


def _mismatch(key: TopicPartition, layout: Layout, client: StoredLayout) -> LayoutRefusedError:
    return LayoutRefusedError(
        ErrorCode.INVALID_PARTITION_METADATA,
        f"{key}: layout version {layout.layout_version} of the topic has {layout.undeleted_partition_count} undeleted "
        f"partitions, but the client placed its records by {client.undeleted_partition_count} partitions in layout "
        f"version {client.layout_version}",
    )


def _closed(key: TopicPartition, layout: Layout) -> LayoutRefusedError:
    return LayoutRefusedError(
        ErrorCode.POLICY_VIOLATION,
        f"{key} is marked for deletion or removed, the topic has {layout.undeleted_partition_count} partitions now: "
        "refresh the producer's metadata (metadata.max.age.ms, topic.metadata.refresh.interval.ms) or restart it",
    )


def _without_layout(key: TopicPartition) -> LayoutRefusedError:
    return LayoutRefusedError(
        ErrorCode.POLICY_VIOLATION,
        f"{key}: since its partition count was changed, the topic takes records only from producers that name the "
        "layout by which they chose the partition (ordered.delivery.stock.producers=reject): use Anabranch's producer",
    )


def _home(key: bytes, initial: int, undeleted: int) -> int:
    return place(positive_hash(key), initial, undeleted)


_cached_home = lru_cache(_CACHED_KEYS)(_home)
"""The same keys occur often, and hashing a key in Python takes longer than the rest of its check."""


def _verify_keys(tp: TopicPartition, layout: Layout, placement: Placement | None) -> Admission:
    partition = tp.partition

    def verify(batch: RecordBatch) -> None:
        if placement is not None and (placement.partition, placement.layout) == (partition, layout):
            if placement.wrong:
                raise _misplaced(tp, layout, placement.wrong)
            return
        initial, undeleted = layout.initial_partition_count, layout.undeleted_partition_count
        keys = batch.keys()
        for key in keys:
            if key is None:
                continue
            home = (
                _cached_home(key, initial, undeleted)
                if len(key) <= _CACHED_KEY_BYTES
                else _home(key, initial, undeleted)
            )
            if home != partition:
                found = Placement(partition, layout)
                at_once(place_keys(found, keys, len(keys)))
                raise _misplaced(tp, layout, found.wrong)

    return verify


def _misplaced(key: TopicPartition, layout: Layout, wrong: Sequence[tuple[int, int]]) -> LayoutRefusedError:
    """The refusal of a batch. It names the records whose keys belong elsewhere (KIP-467)."""
    undeleted = layout.undeleted_partition_count
    index, home = wrong[0]
    return LayoutRefusedError(
        ErrorCode.POLICY_VIOLATION,
        f"{key}: record {index} of the batch belongs to partition {home}, not {key.partition}: the topic has "
        f"{undeleted} partitions now. Refresh the producer's metadata every few seconds "
        "(metadata.max.age.ms, topic.metadata.refresh.interval.ms), use a murmur2 partitioner, or use "
        "Anabranch's producer (ordered.delivery.stock.producers=verify)",
        [
            RecordError(at, f"the record belongs to partition {right}, not {key.partition}")
            for at, right in wrong[:MAX_NAMED_RECORDS]
        ],
    )
