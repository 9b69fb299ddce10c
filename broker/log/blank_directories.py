"""Creates and removes blank log directories, which hold at most the identity of a log.

A failed or interrupted creation may leave a blank directory. Its removal loses no data: if a log has or had
records, or began above offset 0, its directory is not blank.
"""

from __future__ import annotations

import contextlib
import errno
from collections import defaultdict
from collections.abc import Iterator, Mapping

import structlog

from anabranch.broker.log.checkpoint_files import MalformedFileError, decode_partition_metadata, read_checkpoint
from anabranch.broker.log.log_dir_entries import Entries
from anabranch.broker.log.paths import PARTITION_METADATA, directory_name, join, offset_of, parent_of
from anabranch.protocol.sentinels import NO_INCARNATION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Storage

logger = structlog.get_logger(__name__)


@contextlib.contextmanager
def blank_directory(storage: Storage, path: str) -> Iterator[None]:
    """Create the directory of a new log. If the block fails, the directory is removed, if the disk allows that.

    Raises ``OSError``. If the directory already holds a log, the log stays as it is, and ``FileExistsError`` is raised.
    """
    storage.makedirs(path)
    if not _is_blank(storage, path):
        raise FileExistsError(errno.EEXIST, "a log is there already", path)
    try:
        yield
    except OSError:
        remove_unused(storage, path)
        raise


def remove_blank_copies(storage: Storage, log_dirs: Mapping[str, Entries]) -> None:
    """Remove blank directories, so that no partition is refused and no moved log is discarded because of them.

    ``log_dirs`` has the entries of each log dir; those that are removed are removed there too. All directories that are
    not blank stay. If all directories of a partition are blank, one of them stays. Raises ``OSError``.
    """
    logs: dict[TopicPartition, list[str]] = defaultdict(list)
    futures: dict[TopicPartition, list[str]] = defaultdict(list)
    for log_dir, entries in log_dirs.items():
        for name, partition in entries.logs.items():
            logs[partition].append(join(log_dir, name))
        for name, partition in entries.futures.items():
            futures[partition].append(join(log_dir, name))
    for partition, paths in logs.items():
        copies = [copy for copy in futures[partition] if all(_may_be_of(storage, copy, path) for path in paths)]
        if len(paths) + len(copies) == 1:
            continue
        blank = [path for path in paths if _is_blank(storage, path)]
        # A copy has only records of its log. If the copy has records and the log has none, the copy was complete.
        is_elsewhere = len(blank) < len(paths) or not all(_is_blank(storage, copy) for copy in copies)
        for path in blank if is_elsewhere else blank[1:]:
            storage.remove_tree(path)
            del log_dirs[parent_of(path)].logs[directory_name(partition)]
            logger.warning("log.blank_removed", path=path)


def _may_be_of(storage: Storage, copy: str, path: str) -> bool:
    """Whether ``copy`` may be a copy of the log in ``path``: False if they record different incarnations."""
    known = {incarnation_of(storage, directory) for directory in (copy, path)} - {-1}
    return len(known) < 2


def incarnation_of(storage: Storage, path: str) -> int:
    """The incarnation of the partition in a directory, -1 if it is not recorded. Raises ``OSError``."""
    try:
        return decode_partition_metadata(path, read_checkpoint(storage, join(path, PARTITION_METADATA))).incarnation
    except (FileNotFoundError, MalformedFileError):
        return NO_INCARNATION


def remove_unused(storage: Storage, path: str) -> None:
    """Remove an unused directory; if that fails, it is left for the next start."""
    try:
        storage.remove_tree(path)
    except OSError as error:
        logger.warning("log.not_removed", path=path, error=str(error))


def _is_blank(storage: Storage, path: str) -> bool:
    """Whether a log's directory holds at most its identity and the empty files of a first segment."""
    return all(
        name == PARTITION_METADATA or (offset_of(name) == 0 and storage.size(join(path, name)) == 0)
        for name in storage.listdir(path)
    )
