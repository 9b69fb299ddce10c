"""Reads the records of batches with many records or bytes, in slices, before the request is served.

Most batches are checked by their header alone. A compacted topic needs each record's key. A resized topic needs the
partition of each key of a stock producer. For ``compression.type`` the whole batch may have to be compressed again. A
batch of 200,000 records would block the event loop for half a second, and a few kilobytes may decompress to 128 MiB.
Such a batch is read in steps, while its request waits in the connection. So the requests of a connection keep their
order, and the bytes of the batch stay unchanged. After that, the batch is accepted or refused in one step, from the
records that were read. Threads compress and decompress.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from anabranch.broker.log.append_validation import ReadBatch, codec_to_be, reads_records
from anabranch.broker.log.slices import TimeSlice, in_slices
from anabranch.broker.replication.layout_admission import Placement, named_layout, place_keys, verifies_keys
from anabranch.broker.replication.replica_manager import ReplicaManager
from anabranch.broker.stock.client_session import ClientSession
from anabranch.broker.stock.order_without_idempotence import can_be_awaited
from anabranch.protocol.batch_builder import RECORDS_AT_ONCE, recode_in_steps
from anabranch.protocol.batch_layout import (
    CODEC_AT,
    CODEC_MASK,
    COUNT_AT,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    SMALL_BODY_BYTES,
)
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock
from anabranch.runtime.turns import pause
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout

_COUNT = Struct(">i")
_LOOKED_AT_ONCE = 1_000
_HEADERS_KEPT = 1_000
"""So many headers of one request are kept. Further ones are read again, so that the headers need little memory."""


class LargeBatch(NamedTuple):
    """What was read of a batch, and the partitions of its keys under the layout at that time."""

    read: ReadBatch
    placement: Placement | None


LargeBatches = Mapping[TopicPartition, LargeBatch]
NONE: LargeBatches = MappingProxyType({})


async def find(request: Any) -> list[tuple[TopicPartition, StoredLayout | None, memoryview]]:
    """Find the batches of a ``ProduceRequest`` with more than ``RECORDS_AT_ONCE`` records, or perhaps many bytes."""
    found = []
    looked_at = 0
    for topic in request.topic_data:
        looked_at += 1
        for data in topic.partition_data:
            looked_at += 1
            if looked_at % _LOOKED_AT_ONCE == 0:
                await pause()
            if _is_large(data.records):
                found.append((TopicPartition(topic.name, data.index), named_layout(topic), data.records))
    return found


def only_small(request: Any) -> memoryview | None:
    """The records of a ``ProduceRequest`` of one partition, if they are not large. Otherwise None."""
    topics = request.topic_data
    if len(topics) == 1 and len(partitions := topics[0].partition_data) == 1:
        records = partitions[0].records
        return records if type(records) is memoryview and not _is_large(records) else None
    return None


def _is_large(records: object) -> bool:
    return (
        isinstance(records, memoryview)
        and len(records) > HEADER_BYTES
        and records[MAGIC_AT] == MAGIC
        and bool(
            records[CODEC_AT] & CODEC_MASK
            or len(records) > SMALL_BODY_BYTES
            or _COUNT.unpack_from(records, COUNT_AT)[0] > RECORDS_AT_ONCE
        )
    )


async def read(
    replicas: ReplicaManager,
    clock: Clock,
    session: ClientSession,
    found: list[tuple[TopicPartition, StoredLayout | None, memoryview]],
) -> LargeBatches:
    """Read the batches whose records must be checked one by one, and those that may be awaited.

    ``order_without_idempotence`` awaits batches. A fault in a batch is reported when the batch is appended.
    """
    batches: dict[TopicPartition, LargeBatch] = {}
    work = TimeSlice(clock)
    for key, client, records in found:
        batch = RecordBatch(records)
        if len(batches) < _HEADERS_KEPT:
            batches[key] = LargeBatch(ReadBatch(batch), None)
        try:
            partition = replicas.leader(key)
        except KafkaError:
            if client is None and session.repeats_until_led and can_be_awaited(batch) and replicas.is_to_lead(key):
                await in_slices(batch.read_in_steps(RECORDS_AT_ONCE), work)
                batches[key] = LargeBatch(ReadBatch(batch), None)
            continue
        is_verified = verifies_keys(key.partition, partition.layout, partition.delivery, client)
        config = partition.log.config
        is_compared = client is None and key in session.retry_orders
        is_read = is_verified or is_compared or reads_records(batch, config, clock.now_ms())
        if not is_read or batch.length > config.max_message_bytes:
            continue
        await in_slices(batch.read_in_steps(RECORDS_AT_ONCE), work)
        placement = codec = recoded = None
        if is_verified and batch.is_read:
            placement = Placement(key.partition, partition.layout)
            await in_slices(place_keys(placement, (record.key for record in batch), RECORDS_AT_ONCE), work)
        if batch.is_read and batch.count and (codec := codec_to_be(batch, config)) is not None:
            recoded = await in_slices(recode_in_steps(batch, codec), work)
        batches[key] = LargeBatch(ReadBatch(batch, codec, recoded), placement)
    return batches
