"""Encodes and decodes the records of ``__consumer_offsets``, in Kafka's formats.

Writers follow the finalized level of ``consumer_offsets_topic_schema``. Below level 2 they use version 3 of offset
values, the highest version without tagged fields, so a coordinator from before KIP-915 can read them. From level 2 on
they use the flexible version 4, in which an offset has the incarnation and the rewinds of its partition in tagged
fields. Group values have no such fields, so they are written in version 3 at each level, as Kafka writes them:
programs that read this topic know no later version (Burrow). A commit with its own expiry uses version 1 of offset
values at each level, because no later version has that field. Readers follow KIP-915 at each level: they accept the
flexible version, read a higher version as the highest known version, ignore unknown tagged fields, and return
``UnknownRecord`` for unknown key types.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.broker.coordinator.broker_services import KeyValue
from anabranch.broker.coordinator.durable import (
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    StableGeneration,
    StoredMember,
    StoredOffset,
)
from anabranch.protocol.generated.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from anabranch.protocol.message import decode_tolerantly, decode_versioned, encode_versioned, read_version
from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.types import Buffer, TopicPartition

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
FLEXIBLE_OFFSET_VALUE_VERSION = 4
GROUP_VALUE_VERSION = 3
FLEXIBLE_LEVEL = 2
"""The level of ``consumer_offsets_topic_schema`` from which on flexible offset values are written."""
_UNSET = -1


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """A record whose key type is unknown here: a newer coordinator wrote it. It stays in the log."""

    key_version: int


def encode(record: CoordinatorRecord, schema_level: int = FLEXIBLE_LEVEL) -> KeyValue:
    """Key and value bytes; the value is None for a tombstone. ``schema_level``: the finalized level, 0 if none is."""
    if isinstance(record, OffsetRecord):
        key = OffsetCommitKey(group=record.group_id, topic=record.partition.topic, partition=record.partition.partition)
        return encode_versioned(key, OFFSET_KEY_VERSION), _encode_offset(record.value, schema_level >= FLEXIBLE_LEVEL)
    key_bytes = encode_versioned(GroupMetadataKey(group=record.group_id), GROUP_KEY_VERSION)
    return key_bytes, _encode_generation(record.value)


def _encode_offset(committed: StoredOffset | None, is_flexible: bool) -> bytes | None:
    if committed is None:
        return None
    expires = committed.expire_timestamp_ms
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=_UNSET if expires is None else expires,
        incarnation=committed.incarnation,
        rewinds=committed.rewinds,
    )
    if expires is not None:
        return encode_versioned(value, OFFSET_VALUE_VERSION_WITH_EXPIRY)
    return encode_versioned(value, FLEXIBLE_OFFSET_VALUE_VERSION if is_flexible else OFFSET_VALUE_VERSION)


def _encode_generation(generation: StableGeneration | None) -> bytes | None:
    if generation is None:
        return None
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in generation.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=generation.protocol_type or "",
        generation=generation.generation_id,
        protocol=generation.protocol_name,
        leader=generation.leader_id,
        current_state_timestamp=generation.state_timestamp_ms,
        members=members,
    )
    return encode_versioned(value, GROUP_VALUE_VERSION)


def decode(key: Buffer | None, value: Buffer | None) -> CoordinatorRecord | UnknownRecord:
    """Decode a record from its key and value. Raises ``DecodeError`` if a record of a known type is malformed."""
    if key is None:
        raise DecodeError("key: null, where a versioned key is needed")
    version = read_version(key)
    if version in OffsetCommitKey.DECODERS:
        offset_key = decode_versioned(OffsetCommitKey, key)[1]
        partition = TopicPartition(offset_key.topic, offset_key.partition)
        return OffsetRecord(offset_key.group, partition, None if value is None else _decode_offset(value))
    if version in GroupMetadataKey.DECODERS:
        group_key = decode_versioned(GroupMetadataKey, key)[1]
        return GroupRecord(group_key.group, None if value is None else _decode_generation(value))
    return UnknownRecord(version)


def _decode_offset(data: Buffer) -> StoredOffset:
    _, value = decode_tolerantly(OffsetCommitValue, data)
    return StoredOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=None if value.expire_timestamp == _UNSET else value.expire_timestamp,
        incarnation=value.incarnation,
        rewinds=value.rewinds,
    )


def _decode_generation(data: Buffer) -> StableGeneration:
    version, value = decode_tolerantly(GroupMetadataValue, data)
    members = {
        member.member_id: StoredMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            # Version 0 has one timeout for session and rebalance.
            rebalance_timeout_ms=member.session_timeout if version == 0 else member.rebalance_timeout,
            session_timeout_ms=member.session_timeout,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    }
    return StableGeneration(
        protocol_type=value.protocol_type or None,
        generation_id=value.generation,
        protocol_name=value.protocol,
        leader_id=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members=members,
    )
