"""Names of a partition's directory and of the files in it. Pure."""

from __future__ import annotations

import re
import uuid

from anabranch.protocol.batch_layout import MAX_LONG
from anabranch.protocol.topic_names import is_legal
from anabranch.protocol.types import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
PRODUCERS_SUFFIX = ".producers"
"""Anabranch's own file beside a snapshot; Kafka ignores it."""
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX = ".deleted"
"""The suffix of a file that is being removed. If the process crashes before, the next start removes the file."""
CLEANED_SUFFIX = ".cleaned"
"""The suffix of a compacted segment that is not complete. The next start removes the segment."""
SWAP_SUFFIX = ".swap"
"""The suffix of a complete compacted segment. The next start finishes the swap."""

DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
MAX_PARTITION = 2**31 - 1
_DELETE_DIRECTORY = re.compile(r".+\.[0-9a-f]{32}" + DELETE_DIR_SUFFIX)
_FUTURE_DIRECTORY = re.compile(r"(?P<log>.+)\.[0-9a-f]{32}" + FUTURE_DIR_SUFFIX)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
PARTITION_COUNT_CHECKPOINT = "partition-count-checkpoint"
"""Anabranch's own file; Kafka ignores it."""
FILES_OF_LOG = frozenset([LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, PARTITION_COUNT_CHECKPOINT])
"""The files in the directory of a log, beside its segments and snapshots."""

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
CLOSED_LOGS = ".anabranch_closed_logs"
LOCK_FILE = ".lock"
ROOM_PROBE = ".room_probe"
"""A file that is written and removed again, to see whether a full log dir has room."""
META_PROPERTIES = "meta.properties"
_FILES_OF_LOG_DIR = (
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    CLEANER_CHECKPOINT,
    CLEAN_SHUTDOWN_MARKER,
    CLOSED_LOGS,
    LOCK_FILE,
    ROOM_PROBE,
    META_PROPERTIES,
)
FILES_OF_LOG_DIR = frozenset([*_FILES_OF_LOG_DIR, *(f"{name}.tmp" for name in _FILES_OF_LOG_DIR)])
"""The files that a broker writes in a log dir, beside the directories of the logs."""

_MAX_NAME_LENGTH = 255
MAX_BASE_OFFSET = MAX_LONG - 2**31
"""With a larger base offset, the offsets of a full segment would not fit into 64 bits."""


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
    """The base offset with which a file name starts; None if it does not start with one in 20 digits, and a dot."""
    digits, dot, _ = name.partition(".")
    if not dot or len(digits) != 20 or not digits.isascii() or not digits.isdecimal():
        return None
    offset = int(digits)
    return offset if offset <= MAX_BASE_OFFSET else None


def directory_name(partition: TopicPartition) -> str:
    """``<topic>-<partition>``."""
    return f"{partition.topic}-{partition.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition whose log may be in a directory of this name; None for any other name."""
    topic, _, number = name.rpartition("-")
    if _PARTITION.fullmatch(number) is None or int(number) > MAX_PARTITION or not is_legal(topic):
        return None
    return TopicPartition(topic, int(number))


def delete_directory_name(partition: TopicPartition, unique: uuid.UUID) -> str:
    """``<topic>-<partition>.<uuid>-delete``; a long topic is cut, so that the whole name is a valid file name."""
    tail = f"-{partition.partition}.{unique.hex}{DELETE_DIR_SUFFIX}"
    return partition.topic[: _MAX_NAME_LENGTH - len(tail)] + tail


def is_delete_directory(name: str) -> bool:
    """Whether a directory was renamed for deletion."""
    return _DELETE_DIRECTORY.fullmatch(name) is not None


def future_directory_name(partition: TopicPartition, unique: uuid.UUID) -> str:
    """``<topic>-<partition>.<uuid>-future``: the copy of a log that is moving to another log dir."""
    return f"{directory_name(partition)}.{unique.hex}{FUTURE_DIR_SUFFIX}"


def parse_future_directory_name(name: str) -> TopicPartition | None:
    """The partition whose copy a directory holds; None for any other directory."""
    found = _FUTURE_DIRECTORY.fullmatch(name)
    return None if found is None else parse_directory_name(found["log"])
