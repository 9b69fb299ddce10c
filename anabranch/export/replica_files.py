"""Reads the checkpoints of a log directory, Anabranch's or Kafka's, for an export."""

from __future__ import annotations

from pathlib import Path

from anabranch.audit.manifest import EpochStart
from anabranch.broker.log.checkpoint_files import MalformedFileError, decode_epochs, decode_offsets
from anabranch.broker.log.paths import HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT
from anabranch.command_error import CommandError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.regular_files import read_regular


def read_leader_epochs(directory: Path) -> tuple[EpochStart, ...]:
    """A partition's leader epochs, ascending; empty when the file is missing or empty."""
    path = directory / LEADER_EPOCH_CHECKPOINT
    data = _read(path)
    try:
        return tuple(EpochStart(epoch, start) for epoch, start in decode_epochs(str(path), data)) if data else ()
    except MalformedFileError as error:
        raise CommandError(str(error)) from None


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint of a log directory; empty when the file is missing or empty."""
    data = _read(path)
    try:
        return decode_offsets(str(path), data) if data else {}
    except MalformedFileError as error:
        raise CommandError(str(error)) from None


def read_high_watermarks(log_dir: Path) -> dict[TopicPartition, int]:
    return read_offsets(log_dir / HIGH_WATERMARK_CHECKPOINT)


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None
