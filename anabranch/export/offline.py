"""Exports a topic from the log directory of a stopped broker."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from anabranch.broker.log.checkpoint_files import (
    LogIdentity,
    MalformedFileError,
    MetaProperties,
    decode_meta_properties,
    decode_partition_metadata,
)
from anabranch.broker.log.paths import (
    CLEANER_CHECKPOINT,
    LOCK_FILE,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    parse_directory_name,
)
from anabranch.command_error import CommandError
from anabranch.export.destination import open_destination
from anabranch.export.replica_files import read_high_watermarks, read_leader_epochs, read_offsets
from anabranch.export.run import ExportProgress, ExportReport, ExportRun, NoProgress, ReplicaSource
from anabranch.export.segment_pieces import SourceChangedError, list_segments
from anabranch.export.state import CopyKey, Head, ReplicaBounds
from anabranch.protocol.topic_names import INTERNAL_TOPICS
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.regular_files import read_regular
from anabranch.zk_schemas.znode import format_id


def export_offline(
    log_dir: Path, topic: str, to: str | Path, *, progress: ExportProgress | None = None
) -> ExportReport:
    """Copy the new records of the partitions in ``log_dir`` to ``to``, up to their checkpointed high watermarks.

    The directory is locked meanwhile, so that no broker starts on it. Raises CommandError if a broker runs on the
    directory, if the directory has no partition of the topic, or if it is not a log directory.
    """
    meta = _meta(log_dir)
    with _locked(log_dir):
        partitions = sorted(
            tp
            for path in log_dir.iterdir()
            if (tp := parse_directory_name(path.name)) is not None and tp.topic == topic and path.is_dir()
        )
        if not partitions:
            raise CommandError(f"{log_dir} has no partition of topic {topic}")
        identities = _identities(log_dir, partitions)
        head = Head(
            topic,
            next((format_id(identity.topic_id) for identity in identities.values()), ""),
            meta.cluster_id,
            _cleanup_policy(log_dir, topic),
            {number: identity.incarnation for number, identity in identities.items() if identity.incarnation >= 0},
        )
        destination = open_destination(to)
        with destination.hold():
            run = ExportRun(destination, head, progress or NoProgress())
            run.open()
            try:
                _copy(log_dir, meta.broker_id, partitions, run)
            except SourceChangedError as error:
                raise CommandError(
                    f"{error}: a compaction was interrupted; start the broker, which finishes it, and stop it again"
                ) from None
            return run.finish()


def _copy(log_dir: Path, broker: int, partitions: list[TopicPartition], run: ExportRun) -> None:
    starts, ends = read_offsets(log_dir / LOG_START_CHECKPOINT), read_high_watermarks(log_dir)
    for tp in partitions:
        directory = log_dir / f"{tp.topic}-{tp.partition}"
        segments = list_segments(directory)
        first = segments[0].base_offset if segments else 0
        start = max(starts.get(tp, 0), first)
        bounds = ReplicaBounds(start, max(ends.get(tp, 0), start), read_leader_epochs(directory))
        run.copy(CopyKey(tp.partition, None), ReplicaSource(broker, directory, bounds, may_lag=True))
        run.add_layouts(tp.partition, [directory])


def _meta(log_dir: Path) -> MetaProperties:
    path = log_dir / META_PROPERTIES
    try:
        return decode_meta_properties(str(path), read_regular(path))
    except FileNotFoundError:
        raise CommandError(f"{log_dir} is no broker's log directory: it has no {META_PROPERTIES}") from None
    except MalformedFileError as error:
        raise CommandError(str(error)) from None


def _identities(log_dir: Path, partitions: list[TopicPartition]) -> dict[int, LogIdentity]:
    """The topic's identity in ``partition.metadata`` of each partition."""
    found = {}
    for tp in partitions:
        path = log_dir / f"{tp.topic}-{tp.partition}" / PARTITION_METADATA
        with contextlib.suppress(FileNotFoundError):
            try:
                found[tp.partition] = decode_partition_metadata(str(path), read_regular(path))
            except MalformedFileError as error:
                raise CommandError(str(error)) from None
    return found


def _cleanup_policy(log_dir: Path, topic: str) -> str:
    """The cleanup policy, from the log directory alone: the cleaner's checkpoint lists compacted partitions."""
    cleaned = any(tp.topic == topic for tp in read_offsets(log_dir / CLEANER_CHECKPOINT))
    return "compact" if cleaned or topic in INTERNAL_TOPICS else "delete"


@contextlib.contextmanager
def _locked(log_dir: Path) -> Iterator[None]:
    """Hold the locks of the log directory: Anabranch's brokers lock with flock, Kafka's with POSIX locks."""
    path = log_dir / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # a copy of a log directory has no lock file
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CommandError(
            f"a broker runs on {log_dir} and holds {path}: stop it, or export from the running cluster (no --offline)"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)
