"""The small text files beside the logs, in Kafka's format: encode, decode, and replace on disk.

A checkpoint is a version line (``0``), a count, then one entry a line. ``decode_*`` raises ``MalformedFileError`` with
the path and the line.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from anabranch.protocol.batch_layout import MAX_LONG
from anabranch.protocol.sentinels import NO_INCARNATION, NO_OFFSET
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Storage

MAX_FILE_BYTES = 64 << 20
MAX_ENTRIES = 200_000
"""The largest size of a checkpoint file that is read, and the largest number of entries."""
_MOST_DIGITS = 20


class MalformedFileError(ValueError):
    """A file in a log directory whose content does not fit its name."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path


def read_checkpoint(storage: Storage, path: str) -> bytes:
    """The content of a small file. Raises ``MalformedFileError`` for a large file, and ``OSError``."""
    size = storage.size(path)
    if size > MAX_FILE_BYTES:
        raise MalformedFileError(path, f"the file has {size} bytes, at most {MAX_FILE_BYTES} are read")
    return storage.read_bytes(path)


def write_replace(storage: Storage, path: str, data: bytes) -> None:
    """Write under a temporary name and rename over ``path``, without waiting for the disk.

    For files that recovery can rebuild. After a crash of the process, a reader still sees the old or the new content.
    """
    for _ in write_parts(storage, path, [data]):
        pass


def write_parts(storage: Storage, path: str, parts: Iterable[bytes]) -> Generator[None, None, None]:
    """Like ``write_replace``, with the content in parts; yields after each part.

    If the generator is closed early, the temporary file stays.
    """
    temporary = path + ".tmp"
    file = storage.open(temporary, create=True)
    try:
        file.truncate(0)
        for part in parts:
            file.append(part)
            yield
    finally:
        file.close()
    storage.rename(temporary, path)


def _encode(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("0", str(len(lines)), *lines)).encode()


def _decode(path: str, data: bytes, fields: int) -> list[list[str]]:
    head = data.split(b"\n", 2)
    if not data.endswith(b"\n"):  # a number that lost its last digits would still be a number
        raise MalformedFileError(path, "the last line is cut off")
    if len(head) < 3 or head[0].strip() != b"0" or not head[1].strip().isdigit():
        raise MalformedFileError(path, "the first two lines must be the version 0 and a count")
    count, found = _number(path, head[1].strip().decode()), data.count(b"\n")
    if max(count, found) > MAX_ENTRIES + 2:
        text = f"the file has {found} lines for {count} entries, at most {MAX_ENTRIES} are read"
        raise MalformedFileError(path, text)
    try:
        entries = [line.split(None, fields) for line in head[2].decode().split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise MalformedFileError(path, "not UTF-8 text") from error
    if len(entries) != count:
        raise MalformedFileError(path, f"the file has {len(entries)} entries, its second line names {count}")
    for number, entry in enumerate(entries, 3):
        if len(entry) != fields:
            raise MalformedFileError(path, f"line {number} has not {fields} fields")
    return entries


def _number(path: str, text: str) -> int:
    """The number in a text. Each number of these files fits into 64 bits."""
    try:
        number = int(text) if len(text) <= _MOST_DIGITS else None
    except ValueError as error:
        raise MalformedFileError(path, f"{text!r} is not a number") from error
    if number is None or not NO_OFFSET <= number <= MAX_LONG:
        shown = text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."
        raise MalformedFileError(path, f"{shown!r} is not a number from {NO_OFFSET} to {MAX_LONG}")
    return number


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """``topic partition offset`` lines, sorted."""
    return _encode([f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())])


def decode_offsets(path: str, data: bytes) -> dict[TopicPartition, int]:
    """The inverse of ``encode_offsets``."""
    return {
        TopicPartition(topic, _number(path, partition)): _number(path, offset)
        for topic, partition, offset in _decode(path, data, 3)
    }


def encode_epochs(entries: Sequence[tuple[int, int]]) -> bytes:
    """``epoch start_offset`` lines, in the order given (ascending)."""
    return _encode([f"{epoch} {start_offset}" for epoch, start_offset in entries])


def decode_epochs(path: str, data: bytes) -> list[tuple[int, int]]:
    """The inverse of ``encode_epochs``."""
    return [(_number(path, epoch), _number(path, offset)) for epoch, offset in _decode(path, data, 2)]


def encode_numbers(rows: Sequence[Sequence[int]]) -> bytes:
    """A line of numbers for each row, in the order given."""
    return _encode([" ".join(map(str, row)) for row in rows])


def decode_numbers(path: str, data: bytes, fields: int) -> list[list[int]]:
    """The inverse of ``encode_numbers`` for rows of ``fields`` numbers."""
    return [[_number(path, text) for text in row] for row in _decode(path, data, fields)]


# ---------------------------------------------------------------- partition.metadata


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The identity of the log in a directory. ``incarnation`` is -1 in a directory that Kafka wrote."""

    topic_id: uuid.UUID
    incarnation: int = NO_INCARNATION


def encode_partition_metadata(metadata: LogIdentity) -> bytes:
    """Kafka's two lines, and a third line with the incarnation, which Kafka does not read."""
    topic_id = base64.urlsafe_b64encode(metadata.topic_id.bytes).rstrip(b"=").decode()
    text = f"version: 0\ntopic_id: {topic_id}\n"
    if metadata.incarnation >= 0:
        text += f"incarnation: {metadata.incarnation}\n"
    return text.encode()


def decode_partition_metadata(path: str, data: bytes) -> LogIdentity:
    """The inverse of ``encode_partition_metadata``."""
    fields = _properties(path, data, ":")
    if not data.endswith(b"\n"):  # an incarnation that lost its last digits would still be a number
        raise MalformedFileError(path, "the last line is cut off")
    if fields.get("version") != "0":
        raise MalformedFileError(path, f"version is {fields.get('version')!r}, it must be 0")
    text = fields.get("topic_id", "")
    try:
        topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error) as error:
        raise MalformedFileError(path, f"topic_id {text!r} is not 16 bytes in base64") from error
    return LogIdentity(topic_id, _number(path, fields.get("incarnation", "-1")))


# ---------------------------------------------------------------- meta.properties


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The broker and the cluster that own a log dir."""

    broker_id: int
    cluster_id: str


def encode_meta_properties(meta: MetaProperties) -> bytes:
    """``meta.properties`` of version 0."""
    return f"#\nbroker.id={meta.broker_id}\ncluster.id={meta.cluster_id}\nversion=0\n".encode()


def decode_meta_properties(path: str, data: bytes) -> MetaProperties:
    """The inverse of ``encode_meta_properties``; comments and unknown keys are skipped."""
    fields = _properties(path, data, "=")
    if fields.get("version", "0") != "0":
        raise MalformedFileError(path, f"version {fields['version']} is not known, it must be 0")
    if "broker.id" not in fields:
        raise MalformedFileError(path, "broker.id is missing")
    return MetaProperties(_number(path, fields["broker.id"]), fields.get("cluster.id", ""))


def _properties(path: str, data: bytes, separator: str) -> dict[str, str]:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise MalformedFileError(path, "not UTF-8 text") from error
    pairs = (line.partition(separator) for line in lines if line.strip() and not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, _, value in pairs}
