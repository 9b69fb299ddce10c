"""Names of a partition's directory and of the files in it. Pure."""

from __future__ import annotations

import re
import uuid

from anabranch.protocol.types import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX = ".deleted"
"""The suffix of a file that is being removed. If the process crashes before, the next start removes the file."""
CLEANED_SUFFIX = ".cleaned"
"""The suffix of a compacted segment that is not complete. The next start removes the segment."""
SWAP_SUFFIX = ".swap"
"""The suffix of a complete compacted segment. The next start finishes the swap."""

DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
_FUTURE_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)\.[0-9a-f]{32}" + FUTURE_DIR_SUFFIX)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
PARTITION_COUNT_CHECKPOINT = "partition-count-checkpoint"
"""Anabranch's own file; Kafka ignores it."""

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
ROOM_PROBE = ".room_probe"
"""A file that is written and removed again, to see whether a full log dir has room."""
META_PROPERTIES = "meta.properties"

_MAX_NAME_LENGTH = 255


def join(directory: str, name: str) -> str:
    """A path below ``directory``."""
    return f"{directory}/{name}"


def parent_of(path: str) -> str:
    """The directory that ``path`` is in."""
    return path.rpartition("/")[0]


def segment_file(directory: str, base_offset: int, suffix: str) -> str:
    """Path of a segment's file: the base offset in 20 digits and the suffix."""
    return f"{directory}/{base_offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset with which a file name starts; None if the name does not start with 20 digits and a dot."""
    digits, dot, _ = name.partition(".")
    return int(digits) if dot and len(digits) == 20 and digits.isdecimal() else None


def directory_name(partition: TopicPartition) -> str:
    """``<topic>-<partition>``."""
    return f"{partition.topic}-{partition.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition whose log a directory holds; None if it is being deleted, or holds no partition's log."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isdecimal() or name.endswith(DELETE_DIR_SUFFIX):
        return None
    return TopicPartition(topic, int(number))


def delete_directory_name(partition: TopicPartition, unique: uuid.UUID) -> str:
    """``<topic>-<partition>.<uuid>-delete``; a long topic is cut, so that the whole name is a valid file name."""
    tail = f"-{partition.partition}.{unique.hex}{DELETE_DIR_SUFFIX}"
    return partition.topic[: _MAX_NAME_LENGTH - len(tail)] + tail


def is_delete_directory(name: str) -> bool:
    """Whether a directory was renamed for deletion."""
    return name.endswith(DELETE_DIR_SUFFIX)


def future_directory_name(partition: TopicPartition, unique: uuid.UUID) -> str:
    """``<topic>-<partition>.<uuid>-future``: the copy of a log that is moving to another log dir."""
    return f"{directory_name(partition)}.{unique.hex}{FUTURE_DIR_SUFFIX}"


def parse_future_directory_name(name: str) -> TopicPartition | None:
    """The partition whose copy a directory holds; None for any other directory."""
    found = _FUTURE_DIRECTORY.fullmatch(name)
    return None if found is None else TopicPartition(found["topic"], int(found["partition"]))
