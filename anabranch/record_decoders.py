"""Decodes records of ``__consumer_offsets`` and ``__transaction_state`` to the text that ``kafka-dump-log`` prints."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from anabranch.protocol.generated.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolAssignment
from anabranch.protocol.generated.transaction_log import TransactionLogKey, TransactionLogValue
from anabranch.protocol.message import decode_tolerantly, decode_versioned, read_version
from anabranch.protocol.messages.consumer_offsets import (
    GROUP_METADATA_KEY,
    GROUP_METADATA_VALUE,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
)
from anabranch.protocol.messages.consumer_protocol import CONSUMER_PROTOCOL_ASSIGNMENT, CONSUMER_PROTOCOL_SUBSCRIPTION
from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.schema import Field
from anabranch.protocol.subscriptions import CONSUMER_PROTOCOL_TYPE, read_subscription

Decoder: TypeAlias = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]
"""Decodes key and value to printable text. Raises ``DecodeError``."""

DELETED = "<DELETE>"
_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"
)  # fmt: skip


def decode_text(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Decode UTF-8, with as many U+FFFD for invalid bytes as Java writes."""
    return _text(key), _text(value)


def decode_offsets(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Decode a record of ``__consumer_offsets`` to JSON with the version of key and value."""
    if key is None:
        raise DecodeError("key: null, where a versioned key is needed")
    version = read_version(key)
    if version in OffsetCommitKey.DECODERS:
        shown = _fields(OFFSET_COMMIT_KEY.fields, decode_versioned(OffsetCommitKey, key)[1], version)
        return _json("type", version, shown), DELETED if value is None else _offset(value)
    if version in GroupMetadataKey.DECODERS:
        shown = _fields(GROUP_METADATA_KEY.fields, decode_versioned(GroupMetadataKey, key)[1], version)
        return _json("type", version, shown), DELETED if value is None else _group(value)
    return _json("type", version, "unknown"), DELETED if value is None else _json("version", -1, "unknown")


def decode_transactions(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Decode a record of ``__transaction_state``."""
    if key is None:
        raise DecodeError("key: null, where a versioned key is needed")
    if read_version(key) not in TransactionLogKey.DECODERS:
        return f"unknown::version={read_version(key)}", None
    name = decode_versioned(TransactionLogKey, key)[1].transactional_id
    shown = f"transaction_metadata::transactionalId={name}"
    if value is None:
        return shown, DELETED
    found: TransactionLogValue = decode_tolerantly(TransactionLogValue, value)[1]
    status = found.transaction_status
    state = _STATES[status] if 0 <= status < len(_STATES) else str(status)
    partitions = [f"{x.topic}-{p}" for x in found.transaction_partitions or () for p in x.partition_ids]
    return shown, (
        f"producerId:{found.producer_id},producerEpoch:{found.producer_epoch},state={state},"
        f"partitions=[{','.join(partitions)}],txnLastUpdateTimestamp={found.transaction_last_update_timestamp_ms},"
        f"txnTimeoutMs={found.transaction_timeout_ms}"
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", _JAVA_REPLACE)


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """Replace invalid UTF-8 as Java does: an encoded surrogate by one character. Python replaces each byte of it."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    rest = error.object[error.start : error.start + 3]
    if rest[0] != 0xED or len(rest) < 2 or not 0xA0 <= rest[1] <= 0xBF:
        return "\ufffd", error.end
    whole = len(rest) == 3 and 0x80 <= rest[2] <= 0xBF
    return "\ufffd", error.start + (3 if whole else 2)


_JAVA_REPLACE = "anabranch.java-replace"
codecs.register_error(_JAVA_REPLACE, _replace_as_java)


def _offset(value: bytes) -> str:
    version, found = decode_tolerantly(OffsetCommitValue, value)
    return _json("version", version, _fields(OFFSET_COMMIT_VALUE.fields, found, version))


def _group(value: bytes) -> str:
    version, found = decode_tolerantly(GroupMetadataValue, value)
    shown = _fields(GROUP_METADATA_VALUE.fields, found, version)
    for member in shown["members"]:
        subscription, assignment = member["subscription"], member["assignment"]
        if found.protocol_type == CONSUMER_PROTOCOL_TYPE:
            member["subscription"] = _subscription(subscription)
            member["assignment"] = _assignment(assignment)
        else:
            member["subscription"], member["assignment"] = subscription.hex(), assignment.hex()
    return _json("version", version, shown)


def _subscription(blob: bytes) -> Any:
    newest = max(CONSUMER_PROTOCOL_SUBSCRIPTION.versions)
    return _fields(CONSUMER_PROTOCOL_SUBSCRIPTION.fields, read_subscription(blob), newest) if blob else None


def _assignment(blob: bytes) -> Any:
    if not blob:
        return None
    version = read_version(blob)
    newest = max(CONSUMER_PROTOCOL_ASSIGNMENT.versions)
    found = ConsumerProtocolAssignment.decode_prefix(memoryview(blob)[2:], min(version, newest))[0]
    return _fields(CONSUMER_PROTOCOL_ASSIGNMENT.fields, found, newest)


def _fields(fields: Sequence[Field], message: Any, version: int) -> dict[str, Any]:
    """The fields of a message's version by Kafka's names. Tagged fields are included when they are set."""
    found = {}
    for field in fields:
        value = getattr(message, field.name)
        if version not in field.versions or (field.tag is not None and value == field.default):
            continue
        if field.fields and value is not None:
            value = [_fields(field.fields, each, version) for each in value]
        elif isinstance(value, bytes) and field.name == "user_data":
            value = value.hex()
        found[camel_case(field.name)] = value
    return found


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _json(kind: str, version: int, data: Any) -> str:
    return json.dumps({kind: str(version), "data": data}, separators=(",", ":"), ensure_ascii=False)
