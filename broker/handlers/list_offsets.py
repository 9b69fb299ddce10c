"""ListOffsets (2): the offset for a timestamp.

Timestamp -1 means the end (high watermark; with read_committed the last stable offset), -2 the log start, -3 (version
7, KIP-734) the record with the largest timestamp. -4 (version 8, KIP-405) is the log start too, and -5 (version 9,
KIP-1005) has no offset, because there is no tiered storage. Another negative timestamp gets UNSUPPORTED_VERSION, as in
Kafka. If no record has the timestamp or a later one, the offset is -1.
While the watermark of a new leader is below the start of its epoch, the end is not known: the error is
OFFSET_NOT_AVAILABLE (from version 5 on, KIP-207) or LEADER_NOT_AVAILABLE (before). For the end of a closed partition
the error is the same until each in-sync replica has exactly the leader's records.

A follower whose log dir is full asks for the log start, and says that it has no room (tag 10304).

A search by timestamp may read a whole segment. Then the response is sent later, and other requests are served
meanwhile.
"""

from __future__ import annotations

from typing import TypeAlias

from anabranch.broker.log.time_search import STEPS_AT_ONCE, TimeSearch
from anabranch.broker.replication.partition import Partition
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from anabranch.protocol.schema import LATEST
from anabranch.protocol.sentinels import (
    CONSUMER_REPLICA_ID,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    READ_COMMITTED,
)
from anabranch.protocol.types import TopicPartition

_FIRST_VERSIONS = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}
"""The first version of each special timestamp."""
_STARTS = (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP)
_FIRST_LEADER_EPOCH_VERSION = 4
_FIRST_OFFSET_NOT_AVAILABLE_VERSION = 5

Searches: TypeAlias = dict[tuple[TopicPartition, int], TimeSearch | KafkaError]
"""The searches by time, or their errors, by partition and timestamp."""


def handle(ctx: RequestContext, request: ListOffsetsRequest) -> Answer:
    searches: Searches = {}
    for topic in request.topics:
        for asked in topic.partitions:
            _begin_search(ctx, request, topic.name, asked, searches)
    unfinished = [search for search in searches.values() if isinstance(search, TimeSearch) and not search.is_done]
    if not unfinished:
        return _respond(ctx, request, searches)

    async def finish() -> ListOffsetsResponse:
        for key, search in searches.items():
            try:
                if isinstance(search, TimeSearch):
                    await search.finish(ctx.node.env.clock)
            except (KafkaError, OSError) as error:
                searches[key] = _as_kafka_error(error)
        return _respond(ctx, request, searches)

    return ctx.node.later(finish, lambda error: _refusal(request, error), may_stop=True)


def _respond(ctx: RequestContext, request: ListOffsetsRequest, searches: Searches) -> ListOffsetsResponse:
    """Answer for each partition as it is now, because the searches may have taken a while."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[_find(ctx, request, topic.name, asked, searches) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _refusal(request: ListOffsetsRequest, error: KafkaError) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error.code)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _begin_search(
    ctx: RequestContext, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition, searches: Searches
) -> None:
    """Begin a search by time, and finish it if that is quick. If the search fails, ``_find`` answers with the error."""
    key = TopicPartition(topic, asked.partition_index), asked.timestamp
    if (asked.timestamp < 0 and asked.timestamp != MAX_TIMESTAMP) or key in searches:
        return
    try:
        log = ctx.node.replicas.leader(key[0], asked.current_leader_epoch).log
        search = searches[key] = TimeSearch(log, None if asked.timestamp == MAX_TIMESTAMP else asked.timestamp)
        spent = sum(STEPS_AT_ONCE for known in searches.values() if isinstance(known, TimeSearch) and not known.is_done)
        if spent <= STEPS_AT_ONCE:
            search.advance(STEPS_AT_ONCE)
    except (KafkaError, OSError) as error:
        searches[key] = _as_kafka_error(error)


def _as_kafka_error(error: KafkaError | OSError) -> KafkaError:
    """The error to keep, without the traceback: its frames hold the request and the searches."""
    found = error if isinstance(error, KafkaError) else KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    return found.with_traceback(None)


def _find(
    ctx: RequestContext, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition, searches: Searches
) -> ListOffsetsPartitionResponse:
    index = asked.partition_index
    try:
        if (topic, index) in ctx.repeated:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{topic}-{index} is named more than once")
        partition = ctx.node.replicas.leader(TopicPartition(topic, index), asked.current_leader_epoch)
        if asked.timestamp < 0 and ctx.api_version < _FIRST_VERSIONS.get(asked.timestamp, LATEST):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"timestamp {asked.timestamp} is none of version {ctx.api_version}"
            )
        timestamp, offset, epoch = _lookup(partition, request, asked.timestamp, searches)
        if request.has_no_room:
            partition.follower_has_no_room(request.replica_id)
        is_consumer = request.replica_id == CONSUMER_REPLICA_ID
        if (
            is_consumer
            and asked.timestamp not in _STARTS
            and asked.timestamp != LATEST_TIERED_TIMESTAMP
            and _end_is_unknown(partition, asked.timestamp, offset)
        ):
            newer = ctx.api_version >= _FIRST_OFFSET_NOT_AVAILABLE_VERSION
            code = ErrorCode.OFFSET_NOT_AVAILABLE if newer else ErrorCode.LEADER_NOT_AVAILABLE
            raise KafkaError(code, f"{partition.key}: the end offset is not known before the in-sync replicas catch up")
    except KafkaError as error:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error.code)
    if ctx.api_version < _FIRST_LEADER_EPOCH_VERSION:
        epoch = NO_EPOCH
    return ListOffsetsPartitionResponse(partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=epoch)


def _end_is_unknown(partition: Partition, timestamp: int, offset: int) -> bool:
    """Whether an earlier leader may have served records to consumers that this leader may not serve yet."""
    may_lag = partition.log.high_watermark < partition.epoch_start_offset
    if timestamp == LATEST_TIMESTAMP and partition.layout.closes(partition.key.partition):
        return may_lag or not partition.is_followed_to_its_end
    return may_lag and (timestamp == LATEST_TIMESTAMP or offset < 0)


def _lookup(
    partition: Partition, request: ListOffsetsRequest, timestamp: int, searches: Searches
) -> tuple[int, int, int]:
    """Returns (timestamp, offset, leader epoch); a value that does not exist is -1."""
    log = partition.log
    end = log.high_watermark
    if request.replica_id != CONSUMER_REPLICA_ID:
        end = log.log_end_offset
    elif request.isolation_level == READ_COMMITTED:
        end = log.last_stable_offset
    if timestamp == LATEST_TIMESTAMP:
        return NO_TIMESTAMP, end, partition.leader_epoch
    if timestamp == LATEST_TIERED_TIMESTAMP:
        return NO_TIMESTAMP, NO_OFFSET, NO_EPOCH
    if timestamp in _STARTS:
        return NO_TIMESTAMP, log.log_start_offset, log.leader_epoch_cache.epoch_for(log.log_start_offset)
    search = searches.get((partition.key, timestamp))
    if search is None:
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.key}: this broker did not lead it when the request came"
        )
    if isinstance(search, KafkaError):
        raise KafkaError(search.code, search.message)  # an error of its own, whose traceback dies with it
    found = search.found
    return (NO_TIMESTAMP, NO_OFFSET, NO_EPOCH) if found is None or found[1] >= end else found
