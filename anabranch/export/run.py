"""One export into one destination: copy the new records of each replica, then replace the manifest as the last step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from fastcrc import crc32

from anabranch.audit.manifest import (
    MANIFEST_NAME,
    PARTIAL_NAME,
    FileEntry,
    LayoutLine,
    Manifest,
    ManifestError,
    SegmentEntry,
    decode_layouts,
    merge_layouts,
)
from anabranch.broker.log.paths import PARTITION_COUNT_CHECKPOINT
from anabranch.command_error import CommandError
from anabranch.export.destination import Destination
from anabranch.export.segment_pieces import (
    HistoryChangedError,
    Piece,
    list_segments,
    open_piece,
    wanted_segments,
)
from anabranch.export.state import (
    CHECKPOINTS,
    UNFINISHED_SUFFIX,
    Copy,
    CopyKey,
    ExportConflictError,
    Head,
    ReplicaBounds,
    build_manifest,
    check_belongs,
    continued,
    differs,
    empty_copy,
    grown,
    leftovers,
    resumed,
    skipped_to,
    wrong_files,
)
from anabranch.runtime.regular_files import read_regular

PARTIAL_EVERY_BYTES = 64 << 20
"""The bytes between two partial manifests: an export that is killed loses at most this many copied bytes."""


class StoppedError(Exception):
    """The export was cancelled."""


class ExportProgress(Protocol):
    """Receives the number of bytes to copy, and the number of copied bytes."""

    def expect(self, size_bytes: int) -> None: ...

    def advance(self, size_bytes: int) -> None: ...


class NoProgress:
    def expect(self, size_bytes: int) -> None: ...

    def advance(self, size_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The contents of the destination, and the parts that this export added. Bytes are those of the ``.log`` files.

    An interrupted export had copied ``resumed_bytes`` of the added bytes. ``replicas`` counts copies besides the
    leaders'. ``missing`` has, by directory, the offsets that brokers removed before they were exported. ``unread`` has
    the brokers that did not respond; their replicas were not exported.
    """

    topic: str
    directory: str
    partitions: int
    segments: int
    bytes: int
    added_segments: int
    added_bytes: int
    resumed_bytes: int
    generation: int
    replicas: int = 0
    missing: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    unread: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaSource:
    """A replica's directory, and the offsets that it must have.

    ``may_lag``: the replica's log may end before the end of an earlier export from the replica or its leader.
    """

    broker: int
    directory: Path
    bounds: ReplicaBounds
    may_lag: bool = False


class ExportRun:
    """One export into one destination. Its methods block; ``stop`` may be called from another thread."""

    def __init__(
        self, destination: Destination, head: Head, progress: ExportProgress, partial_every: int = PARTIAL_EVERY_BYTES
    ) -> None:
        self.head = head
        self.leaders: dict[int, int] = {}
        self.layouts: dict[int, list[LayoutLine]] = {}
        self._destination = destination
        self._progress = progress
        self._partial_every = partial_every
        self._unsaved = 0
        self._stopped = False
        self._sizes: dict[str, int] = {}
        self._previous: Manifest | None = None
        self._directories: dict[CopyKey, Path] = {}
        self.copies: dict[CopyKey, Copy] = {}
        self._done: set[CopyKey] = set()
        self._resumed_bytes = 0

    def open(self) -> None:
        """Read the state of the destination. Raises CommandError when this export cannot be added to it."""
        self._sizes = self._destination.sizes()
        self._previous = self._read_manifest(MANIFEST_NAME)
        partial = self._read_manifest(PARTIAL_NAME)
        if self._previous is None and partial is None:
            if PARTIAL_NAME not in self._sizes and self._sizes.keys() - {PARTIAL_NAME + UNFINISHED_SUFFIX}:
                raise CommandError(
                    f"{self._destination.name} is not empty and holds no export; export into a new directory"
                )
            self._put(PARTIAL_NAME, [self._manifest().encode()])  # marks the directory as that of an export
        for manifest in (self._previous, partial):
            if manifest is not None:
                with _conflicts():
                    check_belongs(manifest, self.head, self._destination.name)
        if self._previous is not None:
            wrong = wrong_files(self._previous, self._sizes)
            if wrong:
                raise CommandError(
                    f"the manifest in {self._destination.name} disagrees with {len(wrong)} of its files: {wrong[0]}; "
                    "put the exported file back or export into a new directory"
                )
            self.layouts = {entry.partition: list(entry.layouts) for entry in self._previous.partitions}
        self.copies = resumed(self._previous, partial, self._sizes)
        self._resumed_bytes = sum(segment.size_bytes for segment in self._added())

    def _read_manifest(self, name: str) -> Manifest | None:
        data = self._destination.read(name)
        try:
            return Manifest.decode(data, f"{self._destination.name}/{name}") if data is not None else None
        except ManifestError as error:
            if name == PARTIAL_NAME:
                return None  # the export was killed while it wrote the file
            raise CommandError(f"{error}; export into a new directory") from None

    def copy(self, key: CopyKey, source: ReplicaSource) -> None:
        """Copy the new records of one replica. When that fails, the progress so far is saved.

        After SourceChangedError or FileNotFoundError, call it again with the replica's present directory and bounds.
        """
        try:
            self._copy(key, source)
        except BaseException:
            with contextlib.suppress(Exception):
                self.save_partial()
            raise

    def _copy(self, key: CopyKey, source: ReplicaSource) -> None:
        what = source.directory.name if key.broker is None else f"{source.directory.name} of broker {key.broker}"
        copy = self.copies.get(key) or empty_copy(source.bounds)
        bounds = source.bounds
        if source.may_lag:
            bounds = replace(bounds, high_watermark=max(bounds.high_watermark, copy.end_offset))
        with _conflicts():
            copy = continued(copy, bounds, what)
        wanted = wanted_segments(
            list_segments(source.directory), copy.end_offset, bounds.log_start_offset, bounds.high_watermark
        )
        if bounds.log_start_offset > copy.end_offset:
            first = min([bounds.log_start_offset, *(segment.base_offset for segment in wanted[:1])])
            copy = skipped_to(copy, first)
        self.copies[key] = copy
        self._directories[key] = source.directory
        self._progress.expect(sum(segment.size_bytes for segment in wanted))
        for segment in wanted:
            start = copy.end_offset if copy.segments or copy.missing else 0
            try:
                with open_piece(source.directory, segment, start, bounds.high_watermark) as piece:
                    self._progress.expect(piece.size_bytes - segment.size_bytes)
                    entry = self._write(key, source.broker, piece) if piece.size_bytes else None
                    self.copies[key] = copy = grown(copy, entry, piece.end_offset)
            except HistoryChangedError as error:
                raise CommandError(
                    f"{what}: no batch begins at offset {start} any more: {error}; export into another directory"
                ) from None
            if self._unsaved >= self._partial_every:
                self.save_partial()
        self._done.add(key)

    def _write(self, key: CopyKey, broker: int, piece: Piece) -> SegmentEntry:
        """Write the piece's files, the log last."""
        directory = key.directory(self.head.topic)
        files = []
        for suffix, data in piece.files.items():
            name = piece.name.removesuffix(".log") + suffix
            self._put(f"{directory}/{name}", [data])
            self._sizes[f"{directory}/{name}"] = len(data)
            files.append(FileEntry(name, len(data), crc32.iscsi(data)))
        summed = _Summed(self._read(piece))
        self._put(f"{directory}/{piece.name}", summed)
        self._sizes[f"{directory}/{piece.name}"] = summed.size_bytes
        self._unsaved += summed.size_bytes
        return SegmentEntry(
            piece.name,
            piece.base_offset,
            summed.size_bytes,
            piece.end_offset,
            summed.crc32c,
            files,
            broker,
            piece.source,
            piece.begin,
        )

    def _read(self, piece: Piece) -> Iterator[bytes]:
        try:
            for chunk in piece.chunks():
                if self._stopped:
                    raise StoppedError
                yield chunk
                self._progress.advance(len(chunk))
        except OSError as error:
            raise CommandError(f"cannot read {piece.source}: {error.strerror}") from error

    def _put(self, path: str, chunks: Iterable[bytes]) -> None:
        try:
            self._destination.write(path, chunks)
        except OSError as error:
            raise CommandError(
                f"cannot write {path} in {self._destination.name}: {error.strerror or error}; "
                "the copied files stay, and the same command continues the export"
            ) from error

    def stop(self) -> None:
        self._stopped = True

    def save_partial(self) -> None:
        """Save the progress so far, so that a later export can continue this one after an interruption."""
        if self._unsaved:
            self._put(PARTIAL_NAME, [self._manifest().encode()])
        self._unsaved = 0

    def _added(self) -> Iterator[SegmentEntry]:
        """The segments that the last complete export does not have."""
        for copy in self.copies.values():
            yield from copy.segments[copy.published :]

    def add_layouts(self, partition: int, directories: Iterable[Path]) -> None:
        """Read the layouts of all replicas of a partition: a replica that was down during a resize lacks lines."""
        histories = [self.layouts.get(partition, [])]
        for directory in directories:
            path = directory / PARTITION_COUNT_CHECKPOINT
            with contextlib.suppress(FileNotFoundError, PermissionError):
                histories.append(decode_layouts(path.read_text(), str(path)))
        try:
            self.layouts[partition] = merge_layouts(histories)
        except ManifestError as error:
            raise CommandError(f"{self.head.topic}-{partition}: {error}") from error

    def _manifest(self) -> Manifest:
        return build_manifest(self.head, self.copies, self.layouts, self.leaders, self._previous)

    def finish(self, unread: Iterable[int] = ()) -> ExportReport:
        """Write checkpoints and manifest, and remove the files that interrupted exports left."""
        for key in self.copies.keys() - self._done:  # the replica was removed, or was not requested
            copy = self.copies[key]
            self.copies[key] = replace(copy, high_watermark=copy.end_offset)
            if copy.is_new and not copy.segments:
                del self.copies[key]
        manifest = self._manifest()
        if differs(manifest, self._previous):
            for key, directory in self._directories.items():
                for name in CHECKPOINTS:
                    with contextlib.suppress(FileNotFoundError):
                        self._put(f"{key.directory(self.head.topic)}/{name}", [read_regular(directory / name)])
            self._destination.flush()
            self._put(MANIFEST_NAME, [manifest.encode()])
            self._destination.flush()
        elif self._previous is not None:
            manifest = self._previous
        for path in [PARTIAL_NAME, *leftovers(self.copies, self.head.topic, self._sizes)]:
            self._destination.remove(path)
        segments = [segment for copy in self.copies.values() for segment in copy.segments]
        added = list(self._added())
        return ExportReport(
            topic=self.head.topic,
            directory=self._destination.name,
            partitions=len(manifest.partitions),
            segments=len(segments),
            bytes=sum(segment.size_bytes for segment in segments),
            added_segments=len(added),
            added_bytes=sum(segment.size_bytes for segment in added),
            resumed_bytes=self._resumed_bytes,
            generation=manifest.generation,
            replicas=sum(key.broker is not None for key in self.copies),
            missing={
                key.directory(self.head.topic): [(gap.first_offset, gap.end_offset) for gap in copy.missing]
                for key, copy in sorted(self.copies.items(), key=str)
                if copy.missing
            },
            unread=tuple(unread),
        )


class _Summed:
    """Passes chunks on to a destination, and computes their size and CRC32C."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.size_bytes = 0
        self.crc32c = crc32.iscsi(b"")

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.crc32c = crc32.iscsi(chunk, self.crc32c)
            self.size_bytes += len(chunk)
            yield chunk


@contextlib.contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except ExportConflictError as error:
        raise CommandError(f"{error}; export into another directory") from None
