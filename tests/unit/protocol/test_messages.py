"""Message classes, their defaults, and the values that a version can carry."""

from __future__ import annotations

import uuid

import pytest

from anabranch.protocol.generated.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from anabranch.protocol.generated.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from anabranch.protocol.generated.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from anabranch.protocol.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from anabranch.protocol.generated.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.message import decode_tolerantly, decode_versioned, encode_versioned, read_version
from anabranch.protocol.primitives import DecodeError, EncodeError


def produce_request(records: object, **topic: int) -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=records)  # type: ignore[arg-type]
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[partition], **topic)])


class FileRange:
    """Stands for bytes in a file: it has a length and no buffer."""

    def __len__(self) -> int:
        return 1000


def test_defaults_are_kafkas() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.session_epoch, request.cluster_id) == (
        -1,
        2**31 - 1,
        -1,
        None,
    )
    topic = MetadataResponseTopic()
    assert (topic.topic_id, topic.topic_authorized_operations) == (uuid.UUID(int=0), -(2**31))
    assert topic.initial_partition_count == topic.undeleted_partition_count == topic.layout_version == -1
    assert topic.ordered_delivery == 0
    assert FetchRequest().topics is not FetchRequest().topics


def test_records_are_slices_of_the_received_bytes() -> None:
    wire = bytearray(produce_request(b"records").encode(9))
    records = ProduceRequest.decode(wire, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    wire[wire.index(b"records")] = ord("R")
    assert bytes(records) == b"Records"


@pytest.mark.parametrize(
    "records", [b"r" * 1000, memoryview(b"r" * 1000), FileRange()], ids=["bytes", "memoryview", "file range"]
)
def test_records_are_passed_through_without_a_copy(records: object) -> None:
    parts = produce_request(records).encode_parts(3)
    assert parts[1] is records
    assert sum(map(len, parts)) == len(produce_request(b"r" * 1000).encode(3))


def test_a_message_with_a_file_range_is_not_encoded_as_bytes() -> None:
    with pytest.raises(EncodeError, match="FileRange"):
        produce_request(FileRange()).encode(3)


def test_a_value_that_the_version_cannot_carry_is_refused() -> None:
    request = produce_request(b"")
    request.transactional_id = "tx"
    assert ProduceRequest.decode(request.encode(3), 3).transactional_id == "tx"
    with pytest.raises(EncodeError, match="ProduceRequest v2: transactional_id is set"):
        request.encode(2)


def test_an_ignorable_value_is_left_out() -> None:
    topic = MetadataResponseTopic(
        name="t", topic_id=uuid.uuid4(), partitions=[MetadataResponsePartition(leader_epoch=4)]
    )
    decoded = MetadataResponse.decode(MetadataResponse(topics=[topic]).encode(6), 6)
    assert decoded.topics[0].topic_id == uuid.UUID(int=0)
    assert decoded.topics[0].partitions[0].leader_epoch == -1


def test_null_is_encoded_only_where_the_version_has_it() -> None:
    assert MetadataRequest.decode(MetadataRequest(topics=None).encode(1), 1).topics is None
    with pytest.raises(EncodeError, match="topics is None and this version has no null"):
        MetadataRequest(topics=None).encode(0)
    assert MetadataRequest(topics=[MetadataRequestTopic(name="t")]).encode(0) == b"\0\0\0\1\0\1t"


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(EncodeError, match="ProduceRequest v3"):
        ProduceRequest(acks=1 << 20).encode(3)
    with pytest.raises(EncodeError):
        produce_request("text").encode(3)


def test_a_tagged_struct_is_read_back_and_refused_in_older_versions() -> None:
    partition = PartitionData(diverging_epoch=EpochEndOffset(epoch=2, end_offset=30), records=b"")
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    decoded = FetchResponse.decode(response.encode(12), 12)
    assert decoded.responses[0].partitions[0].diverging_epoch == EpochEndOffset(epoch=2, end_offset=30)
    assert decoded.responses[0].partitions[0].current_leader is None
    with pytest.raises(EncodeError, match="diverging_epoch"):
        response.encode(11)


def test_kip_253_tags_are_written_in_ascending_order() -> None:
    """wire.md: Produce v9 TopicProduceData has the tags 10253 and 10257, in ascending order, as int32."""
    wire = produce_request(b"", undeleted_partition_count=4, layout_version=7).encode(9)
    assert wire.endswith(b"\2\x8d\x50\4\0\0\0\4\x91\x50\4\0\0\0\7\0")
    assert produce_request(b"", undeleted_partition_count=4).encode(8) == produce_request(b"").encode(8)
    topic = ProduceRequest.decode(wire, 9).topic_data[0]
    assert (topic.undeleted_partition_count, topic.layout_version) == (4, 7)


def test_a_fetched_offset_has_its_incarnation_from_version_6_on() -> None:
    partition = OffsetFetchResponsePartition(incarnation=2**40)
    response = OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[partition])])
    assert OffsetFetchResponse.decode(response.encode(6), 6).topics[0].partitions[0].incarnation == 2**40
    assert OffsetFetchResponse.decode(response.encode(5), 5).topics[0].partitions[0].incarnation == -1


def test_messages_compare_by_value_and_show_their_fields() -> None:
    assert produce_request(b"x") == produce_request(memoryview(b"x"))
    assert produce_request(b"x") != produce_request(b"y")
    assert MetadataRequestTopic(name="t") != "t"
    assert repr(EpochEndOffset(epoch=1, end_offset=2)) == "EpochEndOffset(epoch=1, end_offset=2)"
    with pytest.raises(TypeError):
        EpochEndOffset(1, 2)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        EpochEndOffset().offset = 3  # type: ignore[attr-defined]


# ---------------------------------------------------------------- records and blobs that begin with a version


def test_an_offset_commit_record_has_kafkas_bytes() -> None:
    """The expected bytes are laid out by hand from Kafka's OffsetCommitKey and OffsetCommitValue."""
    key = OffsetCommitKey(group="g", topic="tt", partition=5)
    assert encode_versioned(key, 1) == b"\0\1\0\1g\0\2tt\0\0\0\5"
    value = OffsetCommitValue(offset=9, leader_epoch=2, metadata="m", commit_timestamp=77)
    written = encode_versioned(value, 3)
    assert written == b"\0\3" + (9).to_bytes(8, "big") + b"\0\0\0\2" + b"\0\1m" + (77).to_bytes(8, "big")
    assert decode_versioned(OffsetCommitValue, written) == (3, value)
    value.incarnation = 6
    assert encode_versioned(value, 4).endswith(
        b"\2m" + (77).to_bytes(8, "big") + b"\1\x90\x50\x08" + (6).to_bytes(8, "big")
    )


def test_a_group_metadata_record_is_read_back_in_every_version() -> None:
    key = encode_versioned(GroupMetadataKey(group="g"), 2)
    assert key == b"\0\2\0\1g"
    assert read_version(key) == 2
    member = MemberMetadata(member_id="m", subscription=b"s", assignment=b"a")
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", leader="m", members=[member])
    for version in range(5):
        assert decode_versioned(GroupMetadataValue, encode_versioned(value, version)) == (version, value)


def test_a_record_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(DecodeError, match="no version 9"):
        decode_versioned(OffsetCommitValue, b"\0\x09")
    with pytest.raises(DecodeError, match="version"):
        decode_versioned(OffsetCommitValue, b"\0")


def test_a_newer_consumer_protocol_is_read_as_the_newest() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a"], generation_id=4, rack_id="r")
    written = encode_versioned(subscription, 3)
    assert decode_tolerantly(ConsumerProtocolSubscription, written) == (3, subscription)
    assert decode_tolerantly(ConsumerProtocolSubscription, b"\0\7" + written[2:] + b"more") == (7, subscription)


def test_a_consumer_protocol_assignment_has_kafkas_bytes() -> None:
    """The expected bytes are laid out by hand from Kafka's ConsumerProtocolAssignment."""
    assignment = ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic="t", partitions=[0, 2])])
    expected = b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\2\xff\xff\xff\xff"
    assert encode_versioned(assignment, 1) == expected
