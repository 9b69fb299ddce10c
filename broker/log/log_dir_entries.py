"""Finds the directories of logs in a log dir. Only these are opened, moved or removed; the rest stays as it is."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from anabranch.broker.log.paths import (
    FILES_OF_LOG,
    FILES_OF_LOG_DIR,
    PARTITION_METADATA,
    is_delete_directory,
    join,
    offset_of,
    parse_directory_name,
    parse_future_directory_name,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Storage

NAMED_AT_MOST = 20
"""The largest number of other entries that one log event names."""


class Entries(NamedTuple):
    """The entries of a log dir, by name."""

    logs: dict[str, TopicPartition]
    futures: dict[str, TopicPartition]
    """The copies of logs that are moving to this log dir."""
    deleted: list[str]
    """The directories that are being removed."""
    others: list[str]
    """Entries that no broker made: plain files, FIFOs, dangling links, other directories."""


def entries_of(storage: Storage, log_dir: str, logs: Container[str] = ()) -> Entries:
    """Read a log dir. The directories ``logs`` hold logs. Raises ``OSError``."""
    found = Entries({}, {}, [], [])
    for name in storage.listdir(log_dir):
        if name in FILES_OF_LOG_DIR:
            continue
        path = join(log_dir, name)
        if (partition := parse_directory_name(name)) is not None and (name in logs or _may_hold_log(storage, path)):
            found.logs[name] = partition
        elif (partition := parse_future_directory_name(name)) is not None and storage.is_dir(path):
            found.futures[name] = partition
        elif is_delete_directory(name) and storage.is_dir(path):
            found.deleted.append(name)
        else:
            found.others.append(name)
    return found


def _may_hold_log(storage: Storage, path: str) -> bool:
    """Whether a directory holds a log, is empty, or cannot be read. If not, it is a directory of something else."""
    if storage.exists(join(path, PARTITION_METADATA)):
        return True
    if not storage.is_dir(path):
        return False
    try:
        names = storage.listdir(path)
    except OSError:
        return True
    return not names or any(name in FILES_OF_LOG or offset_of(name) is not None for name in names)


def shown(names: list[str]) -> list[str]:
    """The first names, for a log event: bytes that are no UTF-8 are escaped."""
    return [name.encode("utf-8", "backslashreplace").decode() for name in names[:NAMED_AT_MOST]]
