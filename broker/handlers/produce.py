"""Produce (0): append record batches.

acks 0, 1 and all are supported; with ``log.flush=ack`` a response waits for the disk. Versions 0-2 are advertised for
librdkafka 2.0 (KAFKA-18659) and refused with UNSUPPORTED_FOR_MESSAGE_FORMAT: only record batch v2 is stored. acks=0 has
no response; an error closes the connection, so that the client refreshes its metadata. DUPLICATE_SEQUENCE_NUMBER means
success without an offset: the batch is older than the batches that the partition remembers.

KIP-253: from version 9 on a producer names the layout by which it chose the partitions of the records;
``replication.layout_admission`` decides which batches are refused. With acks=all a permanent refusal is sent only when
no in-sync replica can have a copy of the batch from an earlier leader. After the refusal, the producer may write the
records again, in another partition or with other sequences.

A batch that the log has already is answered with its offset before the layout and the ISR are checked, also if its
producer has sent it again in a higher epoch (``log/repeated_batches``). With acks=all a batch that is committed on too
few replicas is not answered NOT_ENOUGH_REPLICAS_AFTER_APPEND, as Kafka does, but waits for the ISR until the timeout.

When an idempotent producer has to repeat a batch, its later batches may be in flight already. If the log does not know
the producer's next sequence, the later batches are refused as well (``order_with_idempotence``). Apache Kafka appends
them, and librdkafka then considers the first batch written.

Skipped: transactions. A transactional id is refused. A transactional batch without an id is refused too: its
transaction would never end, and the last stable offset would stay below it.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy as copy_of
from typing import NamedTuple

from anabranch.broker.delayed_produce import AwaitedAppend, AwaitedRefusal, DelayedProduce, Part, Place
from anabranch.broker.log.append_validation import ReadBatch
from anabranch.broker.log.log_state import AppendResult
from anabranch.broker.replication.layout_admission import (
    LayoutRefusedError,
    Placement,
    named_layout,
    refusal_of_absent,
)
from anabranch.broker.replication.partition import Partition
from anabranch.broker.request.context import Answer, CloseConnectionError, RequestContext
from anabranch.broker.request.large_batches import NONE
from anabranch.broker.request.unsupported import NO_TRANSACTIONS, NO_TRANSACTIONS_CODE
from anabranch.broker.stock.order_with_idempotence import SentBatch
from anabranch.broker.stock.parked_batch import ParkedBatch
from anabranch.broker.stock.producers import Park, Refuse, Write
from anabranch.protocol.batch_layout import CODEC_AT, CODEC_MASK, MAGIC, MAGIC_AT, TRANSACTIONAL_BIT
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.errors import ErrorCode, KafkaError, RefusedRecordsError
from anabranch.protocol.generated.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from anabranch.protocol.produced_batch import read_header, validate_produce_batch
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import ACKS_ALL, NO_OFFSET
from anabranch.protocol.topic_names import INTERNAL_TOPICS
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout

_ADMIN_CLIENT_ID = "__admin_client"
"""The only client id that may produce to internal topics (Kafka's ``AdminUtils``)."""
_FIRST_BATCH_V2_VERSION = 3
_FIRST_ZSTD_VERSION = 7


def handle(ctx: RequestContext, request: ProduceRequest) -> Answer:
    acks = request.acks
    if acks not in (ACKS_ALL, 0, 1):
        return _refuse(request, KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks} is not -1, 0 or 1"))
    if ctx.repeated:
        twice = "-".join(map(str, min(ctx.repeated, key=str)))
        refusal = KafkaError(ErrorCode.INVALID_REQUEST, f"{twice} is named more than once in one request")
        return _answer(request, _refuse(request, refusal))
    if request.transactional_id is not None:
        refusal = KafkaError(NO_TRANSACTIONS_CODE, NO_TRANSACTIONS)
        return _answer(request, _refuse(request, refusal))
    ctx.session.connection.requests += 1
    topics: list[TopicProduceResponse] = []
    waiting: list[Place] = []
    for topic in request.topic_data:
        layout = named_layout(topic)
        name = topic.name
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            part = _append(ctx, _sent_batch(ctx, TopicPartition(name, data.index), layout, data.records), acks)
            if not isinstance(part, PartitionProduceResponse):
                waiting.append(Place(answers, len(answers), part))
                part = part.answer
            answers.append(part)
        topics.append(TopicProduceResponse(name=name, partition_responses=answers))
    if ctx.session.retry_orders or ctx.session.awaited.first:
        _check_repeated(ctx)
    response = ProduceResponse(responses=topics)
    if not waiting:
        return _answer(request, response)
    deadline = ctx.node.env.clock.monotonic() + request.timeout_ms / 1000
    return DelayedProduce.park(ctx.node.purgatory, deadline, waiting, response)


def _check_repeated(ctx: RequestContext) -> None:
    most = ctx.node.config.values.max_retried_partitions_per_connection
    if ctx.session.repeated_count > most:
        raise CloseConnectionError(
            f"more than {most} partitions and producers of this connection have batches to repeat "
            "(max.retried.partitions.per.connection)"
        )


class _Batch(NamedTuple):
    """The batch that a request has for one partition."""

    key: TopicPartition
    layout: StoredLayout | None
    """The layout that the producer names."""
    records: object
    read: ReadBatch | None
    """Its header, and the records if they were read already; None if there is no header of a batch v2."""
    placement: Placement | None

    @property
    def size_bytes(self) -> int:
        return len(self.records) if isinstance(self.records, memoryview) else 0


def _sent_batch(ctx: RequestContext, key: TopicPartition, layout: StoredLayout | None, records: object) -> _Batch:
    large = ctx.large_batches.get(key)
    if large is not None:
        return _Batch(key, layout, records, large.read, large.placement)
    header = read_header(records)
    return _Batch(key, layout, records, None if header is None else ReadBatch(header), None)


def _append(ctx: RequestContext, batch: _Batch, acks: int) -> Part:
    session, stock = ctx.session, ctx.node.hosted.stock_producers
    try:
        partition = _leader(ctx, batch)
    except KafkaError as error:
        return _refused(ctx, batch, error)
    try:
        records = _usable_records(ctx, batch)
        if batch.layout is None:
            stock.note_write(session, batch.key, ctx.begun)
        examined = partition.examine(
            records, all_in_sync=acks == ACKS_ALL, connection=session.connection, read=batch.read
        )
        if examined.known is None or examined.is_renumbered:
            decision = stock.admit(session, partition, examined, batch.layout, batch.placement)
            if not isinstance(decision, Write):
                try:
                    return _kept_out(ctx, partition, batch, decision, acks)
                finally:
                    del decision  # a cycle with the traceback of its error, which holds the batch
        result = partition.write(examined)
        if not result.duplicate:
            count = result.last_offset + 1 - result.base_offset
            ctx.node.metrics.note_appended(batch.key.topic, len(records), count)
    except KafkaError as error:
        return _not_written(ctx, partition, batch, error, acks)
    return _written(ctx, partition, batch, result, acks)


def _kept_out(ctx: RequestContext, partition: Partition, batch: _Batch, decision: Park | Refuse, acks: int) -> Part:
    if isinstance(decision, Park) and acks != 0:
        return _park(ctx, partition, batch, acks, decision)
    return _not_written(ctx, partition, batch, decision.error, acks)


def _written(ctx: RequestContext, partition: Partition, batch: _Batch, result: AppendResult, acks: int) -> Part:
    """The answer for a batch that the log has; it may have to wait for other replicas or for the disk."""
    session, key, read = ctx.session, batch.key, batch.read
    response = PartitionProduceResponse(
        index=key.partition,
        error_code=ErrorCode.NONE if result.base_offset >= 0 else ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
    if session.awaited.first and (sent := _sent(ctx, batch)) is not None:
        sent.written()
    part: Part = response
    end_offset, all_in_sync = result.last_offset + 1, acks == ACKS_ALL
    if acks != 0 and not partition.keeps(end_offset, all_in_sync=all_in_sync):
        part = AwaitedAppend(partition, end_offset, response, _sent(ctx, batch), all_in_sync=all_in_sync)
    elif read is not None and read.batch.producer_id >= 0 and result.base_offset >= 0:
        session.acknowledged(partition.log.producers, read.batch.producer_id, result.last_offset)
    if session.retry_orders:
        session.written(key)
    return part


def _sent(ctx: RequestContext, batch: _Batch) -> SentBatch | None:
    return ctx.session.sent(batch.key, None if batch.read is None else batch.read.batch, ctx.node.env.clock)


def _not_written(ctx: RequestContext, partition: Partition, batch: _Batch, error: KafkaError, acks: int) -> Part:
    """The answer for a batch that the leader refuses, or the part that waits before it is refused."""
    response = _refused(ctx, batch, error)
    is_final = not error.code.retriable
    is_of_layout = isinstance(error, LayoutRefusedError)
    if batch.layout is None and is_final and not is_of_layout:
        ctx.session.stop_waiting(batch.key)
    if acks == ACKS_ALL and (is_final or is_of_layout):
        refusal = AwaitedRefusal(partition, response, _sent(ctx, batch))
        if refusal.settle():
            return refusal.answer
        refusal.park()
        return refusal
    return response


def _park(ctx: RequestContext, partition: Partition, batch: _Batch, acks: int, early: Park) -> ParkedBatch:
    """Park a copy of the batch until its turn. A copy is needed because the request's buffer is reused."""
    refusal = _refused(ctx, batch, early.error)
    assert batch.read is not None
    copy = RecordBatch(bytearray(batch.read.batch.buffer))
    copy.take_over(batch.read.batch)
    copied = batch._replace(records=copy.buffer, read=batch.read._replace(batch=copy))
    later = copy_of(ctx)
    later.large_batches = NONE  # the batches in the request's buffer, which may be much larger than this one
    park_ms = ctx.node.config.values.ordered_delivery_stock_producers_max_park_ms
    parked_until = ctx.node.env.clock.monotonic() + park_ms / 1000

    def append() -> Part:
        later.begun = later.node.env.clock.monotonic()  # not of ``ctx``, which holds the request's large batches
        return _append(later, copied, acks)

    parked = ParkedBatch(
        partition, refusal, early.order, parked_until, append, ctx.node.request_memory, batch.size_bytes
    )
    early.order.park(early.records, parked)
    return parked


def _refused(ctx: RequestContext, batch: _Batch, error: KafkaError) -> PartitionProduceResponse:
    key = batch.key
    if (sent := _sent(ctx, batch)) is not None:
        sent.refused(error.code)
    ctx.node.metrics.traffic(key.topic).bytes_rejected += batch.size_bytes
    if isinstance(error, LayoutRefusedError):
        ctx.node.hosted.layout_refusals.note(key, error, ctx.client_id)
    elif error.code is ErrorCode.INVALID_TIMESTAMP:
        ctx.node.hosted.timestamp_refusals.note(key, error, ctx.client_id)
    return _error(key.partition, error)


def _leader(ctx: RequestContext, batch: _Batch) -> Partition:
    key, layout = batch.key, batch.layout
    try:
        return ctx.node.replicas.leader(key)
    except KafkaError as error:
        if ctx.node.replicas.is_to_lead(key):
            if layout is None:
                _await(ctx, batch)
            raise KafkaError(ctx.session.repeat_code, f"{key} has no leader yet") from error
        # If another broker leads a marked partition, it may have the batch already: only the leader may refuse it.
        gone = ctx.node.metadata.merged_away(*key)
        refusal = refusal_of_absent(key, ctx.node.metadata.topics[key.topic].layout, layout) if gone else None
        if refusal is None:
            raise
        try:
            raise refusal from error
        finally:
            del refusal  # a cycle with its traceback, which holds the batch


def _await(ctx: RequestContext, batch: _Batch) -> None:
    """Note that a producer without idempotence has to repeat a batch before later batches."""
    with suppress(KafkaError):  # a batch with a fault is refused permanently when it is repeated
        usable = _usable_records(ctx, batch)
        valid = validate_produce_batch(usable, len(usable), None if batch.read is None else batch.read.batch)
        ctx.node.hosted.stock_producers.refused_before_leading(ctx.session, batch.key, valid)


def _usable_records(ctx: RequestContext, batch: _Batch) -> memoryview:
    """The records, after the checks that need no log: version, codec, transactions, internal topics."""
    topic, records = batch.key.topic, batch.records
    if ctx.api_version < _FIRST_BATCH_V2_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"only record batch v2 (Produce version 3 and up) is stored, the request has version {ctx.api_version}",
        )
    if not isinstance(records, memoryview) or len(records) <= CODEC_AT:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the partition's records do not contain a record batch")
    if ctx.api_version < _FIRST_ZSTD_VERSION and records[CODEC_AT] & CODEC_MASK == CompressionType.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version 7 or later, the request has version {ctx.api_version}",
        )
    if records[MAGIC_AT] == MAGIC and records[CODEC_AT] & TRANSACTIONAL_BIT:
        raise KafkaError(
            NO_TRANSACTIONS_CODE,
            f"a transactional batch in a request without a transactional id; {NO_TRANSACTIONS}",
        )
    if topic in INTERNAL_TOPICS and ctx.client_id != _ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"cannot append to internal topic {topic}")
    return records


def _error(index: int, error: KafkaError) -> PartitionProduceResponse:
    at_fault = error.records if isinstance(error, RefusedRecordsError) else ()
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=record.batch_index, batch_index_error_message=record.message)
            for record in at_fault
        ],
        error_message=error.message,
    )


def _refuse(request: ProduceRequest, error: KafkaError) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name, partition_responses=[_error(data.index, error) for data in topic.partition_data]
            )
            for topic in request.topic_data
        ]
    )


def _answer(request: ProduceRequest, response: ProduceResponse) -> Answer:
    """The response. With acks=0 it is None, and an error closes the connection."""
    if request.acks != 0:
        return response
    for topic in response.responses:
        for result in topic.partition_responses:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                raise CloseConnectionError(
                    f"a produce with acks=0 to {topic.name}-{result.index} failed with {result.error_message}"
                )
    return None
