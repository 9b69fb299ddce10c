"""The checkpoints of a log directory, as an export reads them: Anabranch's own, and Kafka's."""

from __future__ import annotations

from pathlib import Path

from anabranch.audit.manifest import EpochStart
from anabranch.broker.log.checkpoint_files import MalformedFileError, decode_epochs, decode_offsets
from anabranch.broker.log.paths import HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT
from anabranch.command_error import CommandError
from anabranch.protocol.types import TopicPartition


def read_leader_epochs(directory: Path) -> tuple[EpochStart, ...]:
    """A partition's leader epochs, ascending; none where there is no such file or an empty one."""
    path = directory / LEADER_EPOCH_CHECKPOINT
    data = _read(path)
    try:
        return tuple(EpochStart(epoch, start) for epoch, start in decode_epochs(str(path), data)) if data else ()
    except MalformedFileError as error:
        raise CommandError(str(error)) from None


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """A checkpoint of offsets of a log directory; nothing where there is no such file or an empty one."""
    data = _read(path)
    try:
        return decode_offsets(str(path), data) if data else {}
    except MalformedFileError as error:
        raise CommandError(str(error)) from None


def read_high_watermarks(log_dir: Path) -> dict[TopicPartition, int]:
    return read_offsets(log_dir / HIGH_WATERMARK_CHECKPOINT)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
