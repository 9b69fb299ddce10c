"""An exported topic in which some partitions have one violation each, and the places of the violations."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, TypeAlias

from anabranch.protocol.batch_builder import build_batch, retain_records
from anabranch.protocol.batch_layout import (
    CONTROL_COMMIT,
    CONTROL_KEY,
    CONTROL_VALUE,
    CRC_AT,
    HEADER_BYTES,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
)
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import RecordBatch, iter_batches, set_base_offset
from tests.support.audit.history import TOPIC, History
from tests.support.audit.samples import T0
from tests.support.log.batches import build_control_batch

ATTRIBUTES_AT = 21
INITIAL, GROWN = 40, 44
SPLIT = 2
"""The partition whose keys are out of order across its split and its merge."""
MAX_DECOMPRESSED_BYTES = 1 << 20
Place: TypeAlias = tuple[str, int, int | None, str | None, int | None]
Record: TypeAlias = tuple[bytes | None, bytes]


class ViolatingTopic:
    """A topic with 40 -> 44 -> 40 partitions. ``expected``: check, partition, offset, file and byte."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.expected: set[Place] = set()
        self.history = History(root, INITIAL, index_interval_bytes=1)
        self._keys = [b"key-%d" % n for n in range(400)]
        self._of = [[key for key in self._keys if self.history.partition_of(key) == x] for x in range(INITIAL)]
        moved = (b"moved-%d" % n for n in range(10_000))
        late, again = [key for key in moved if self._in_grown(key) == INITIAL + SPLIT][:2]
        self.history.write_rounds(self._keys, 2)
        self.history.append(SPLIT, [(late, b"800000\t"), (again, b"700001\t")])
        self.history.resize(GROWN)
        self.history.write_rounds(self._keys, 2)
        self._append_as_leader(INITIAL + SPLIT, (late, b"700000\t"), "key order")
        self._append_as_leader(INITIAL + SPLIT, (again, b"700001\t"), "duplicates")
        self.history.resize(INITIAL)
        self.history.write_rounds(self._keys, 1)
        self._append_as_leader(SPLIT, (late, b"600000\t"), "key order")
        self.history.logs[10].roll()
        self.history.write_rounds(self._keys, 2)

    def _file(self, partition: int, suffix: str = ".log", segment: int = -1, replica: bool = False) -> Path:
        name = Path(self.history.logs[partition].segments[segment].path(suffix)).name
        below = self.history.root / "replicas" / "2" if replica else self.history.root
        return below / f"{TOPIC}-{partition}" / name

    def _expect(self, check: str, partition: int, offset: int | None, file: Path | None, at: int | None) -> None:
        self.expected.add((check, partition, offset, file and file.name, at))

    def _append_as_leader(self, partition: int, record: Record, check: str) -> None:
        log = self.history.logs[partition]
        self._expect(check, partition, log.log_end_offset, self._file(partition), log.segments[-1].size_bytes)
        self.history.append(partition, [record])

    def _append(self, partition: int, records: list[Record], *checks: str, **fields: Any) -> None:
        offset, position = self.history.append_unchecked(partition, records, **fields)
        for check in checks:
            self._expect(check, partition, offset, self._file(partition), position)

    def append_violations(self) -> None:
        """Append records that a leader would have refused."""
        history, of = self.history, self._of
        # Two swapped records of a key.
        history.append(0, [(of[0][0], b"900001\tlater")])
        self._append(0, [(of[0][0], b"900000\tearlier")], "key order")
        # A record in the partition of another layout.
        other = next(b"new-%d" % n for n in range(1000) if history.partition_of(b"new-%d" % n) == 2)
        self._append(1, [(other, b"900002\t")], "placement")
        # A batch that was lost before it had an offset: the next batch's sequence shows the loss.
        history.batch(18, [(of[18][1], b"900003\t")])
        self._append(18, [(of[18][1], b"900004\t")], "producer sequences")
        # A batch that was lost after it had an offset.
        history.batch(22, [(of[22][1], b"900003\t")])
        self._append_as_follower(
            22, history.batch(22, [(of[22][1], b"900004\t")]), "contiguous offsets", "producer sequences", gap=1
        )
        # A record that was removed from its batch.
        batch = RecordBatch(bytes(history.batch(23, [(of[23][0], b"900005\t"), (of[23][0], b"900006\t")])))
        self._append_as_follower(23, bytearray(retain_records(batch, batch.records()[:1])), "contiguous offsets")
        # An epoch that begins above the number of earlier records, and a batch of an epoch that has ended.
        self._append(25, [(of[25][0], b"900007\t")], "producer sequences", producer_epoch=1, sequence=1_000_000)
        self._append(26, [(of[26][0], b"900007\t")], producer_epoch=1, sequence=0)
        self._append(26, [(of[26][0], b"900008\t")], "producer sequences", sequence=1)
        # A batch that was written twice.
        batch = history.batch(3, [(of[3][0], b"900005\t")])
        again = RecordBatch(batch).base_sequence
        history.logs[3].append_as_leader(batch, history.epochs[3])
        self._append(3, [(of[3][0], b"900005\t")], "duplicates", "producer sequences", sequence=again)
        self._append(32, [(of[32][0], b"900005\t")])
        self._append(32, [(of[32][0], b"900005\t")], "duplicates")
        batch = history.batch(33, [(None, b"900005\t")])
        history.logs[33].append_as_leader(batch, history.epochs[33])
        again = RecordBatch(batch).base_sequence
        self._append(33, [(None, b"900005\t")], "duplicates", "producer sequences", sequence=again)
        # A value without a number, so that its place in the key's order is unknown.
        self._append(35, [(of[35][0], b"none\t")], "key order")
        # A record in a closed partition.
        self._append(43, [(None, b"900006\t")], "closed partitions")
        # A leader epoch lower than the epoch before it; the leader epoch cache has another epoch at that offset.
        self._append(4, [(None, b"900007\t")], "leader epochs", epoch=1)
        self._expect("leader epochs", 4, dict(history.logs[4].leader_epoch_cache.entries)[1], None, None)
        self._append_control_batches()

    def _append_control_batches(self) -> None:
        """Append a control batch without a producer, a transactional batch without a producer, and invalid markers."""
        marker = (CONTROL_KEY.pack(0, CONTROL_COMMIT), CONTROL_VALUE.pack(0, 0), (), T0)
        other = (CONTROL_KEY.pack(0, 7), *marker[1:])
        named: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "is_transactional": True}
        plain = bytearray(build_control_batch(CONTROL_COMMIT, 9, 0, 0, T0))
        plain[ATTRIBUTES_AT + 1] &= ~TRANSACTIONAL_BIT
        struct.pack_into(">I", plain, CRC_AT, RecordBatch(plain).compute_crc())
        for partition, batch in (
            (5, build_control_batch(CONTROL_COMMIT, -1, -1, 0, T0)),
            (27, build_batch([(None, b"900007\t", (), T0)], is_transactional=True)),
            (28, plain),
            (29, build_batch([marker, marker], is_control=True, **named)),
            (30, build_batch([other], is_control=True, **named)),
        ):
            self._append_as_follower(partition, bytearray(batch), "control batches")

    def _append_as_follower(self, partition: int, batch: bytearray, *checks: str, gap: int = 0) -> None:
        """Append as a follower, at the log end plus ``gap`` missing offsets."""
        log, epoch = self.history.logs[partition], self.history.epochs[partition]
        offset = log.log_end_offset + gap
        for check in checks:
            self._expect(check, partition, offset, self._file(partition), log.segments[-1].size_bytes)
        set_base_offset(memoryview(batch), offset, epoch)
        log.append_as_follower(batch)

    def append_bomb(self) -> None:
        """Append a few kilobytes that decompress to more than ``MAX_DECOMPRESSED_BYTES``."""
        value = b"900008\t" + bytes(2 * MAX_DECOMPRESSED_BYTES)
        self._append(17, [(None, value)], "readable batches", compression=CompressionType.GZIP)

    def damage_files(self) -> None:
        """Damage files, as can happen after the export."""
        self._flip(6)
        self._tear(7)
        for partition, suffix, entry, at in ((8, ".index", ">ii", 1), (9, ".timeindex", ">qi", 0)):
            self._decrement_index_entry(partition, suffix, struct.Struct(entry), at)
        first = self._file(10, segment=0)
        first.unlink()
        self._expect("segment files", 10, 0, first, None)
        self._expect("log ends", 10, 0, None, None)
        foreign = first.with_name("notes.txt")
        foreign.write_text("no file of a log")
        self._expect("segment files", 10, None, foreign, None)
        extra = self._file(34).with_name(f"{1:020d}.log")
        extra.touch()
        self._expect("segment files", 34, None, extra, None)
        self._change_header(13, ATTRIBUTES_AT + 1, 7)  # a codec that does not exist
        self._change_header(16, MAGIC_AT, 1)
        self._change_header(21, HEADER_BYTES, 2)  # a record of one byte
        self._diverge(11)
        self._shorten(12, of_replica=True)
        self._shorten(31, of_replica=False)
        self._lengthen(19)
        self._empty(20)
        self._renumber(24)

    def _changed(self, partition: int, file: Path) -> None:
        self._expect("segment files", partition, int(file.stem), file, None)

    def _last(self, file: Path) -> tuple[bytearray, RecordBatch, int]:
        """A file's bytes, its last batch, and the batch's position."""
        data = bytearray(file.read_bytes())
        batch = list(iter_batches(data))[-1]
        return data, batch, len(data) - batch.length

    def _flip(self, partition: int) -> None:
        file = self._file(partition)
        data, batch, at = self._last(file)
        record = batch.records()[2]
        data[data.index(record.value or b"", at)] ^= 4
        file.write_bytes(data)
        self._expect("crc", partition, record.offset, file, at)
        self._changed(partition, file)

    def _tear(self, partition: int) -> None:
        file = self._file(partition)
        data, batch, at = self._last(file)
        file.write_bytes(data[:-10])
        self._expect("readable batches", partition, None, file, at)
        self._expect("log ends", partition, batch.last_offset, None, None)
        self._changed(partition, file)

    def _change_header(self, partition: int, at: int, value: int) -> None:
        """Change a byte in the header of the last batch, and make the CRC match."""
        file = self._file(partition)
        data, batch, position = self._last(file)
        data[position + at] = value
        struct.pack_into(">I", data, position + CRC_AT, RecordBatch(data[position:]).compute_crc())
        file.write_bytes(data)
        is_batch = at != MAGIC_AT
        self._expect("readable batches", partition, batch.base_offset if is_batch else None, file, position)
        if not is_batch:
            self._expect("log ends", partition, batch.last_offset, None, None)
        self._changed(partition, file)

    def _decrement_index_entry(self, partition: int, suffix: str, entry: struct.Struct, number: int) -> None:
        """Decrement a field of the last index entry."""
        file = self._file(partition, suffix)
        data = bytearray(file.read_bytes())
        at = len(data) - entry.size
        fields = list(entry.unpack_from(data, at))
        fields[number] -= 1
        entry.pack_into(data, at, *fields)
        file.write_bytes(data)
        offset = int(file.stem) + fields[0 if suffix == ".index" else 1]
        self._expect("indexes", partition, offset, file, at)
        self._changed(partition, file)

    def _diverge(self, partition: int) -> None:
        """Change the value in a replica's last batch, and make the CRC match."""
        file = self._file(partition, replica=True)
        data, batch, at = self._last(file)
        data[-2] ^= 1
        struct.pack_into(">I", data, at + CRC_AT, RecordBatch(data[at:]).compute_crc())
        file.write_bytes(data)
        self._expect("replicas", partition, batch.base_offset, file, at)
        self._changed(partition, file)

    def _lengthen(self, partition: int) -> None:
        """Append a batch beyond the high watermark."""
        file, log = self._file(partition), self.history.logs[partition]
        batch = self.history.batch(partition, [(None, b"900009\t")], base_offset=log.log_end_offset)
        set_base_offset(memoryview(batch), log.log_end_offset, self.history.epochs[partition])
        with file.open("ab") as end:
            end.write(batch)
        self._expect("log ends", partition, log.log_end_offset, None, None)
        self._changed(partition, file)

    def _empty(self, partition: int) -> None:
        """Truncate a file to zero bytes; its index has entries for all batches but the first."""
        file, index = self._file(partition), self._file(partition, ".index")
        file.write_bytes(b"")
        self._expect("log ends", partition, 0, None, None)
        self._changed(partition, file)
        for number, (last, _) in enumerate(struct.iter_unpack(">ii", index.read_bytes())):
            self._expect("indexes", partition, last, index, 8 * number)

    def _renumber(self, partition: int) -> None:
        """Lower the offsets of the last batch by one. The CRC does not cover the base offset."""
        file = self._file(partition)
        data, batch, at = self._last(file)
        struct.pack_into(">q", data, at, batch.base_offset - 1)
        file.write_bytes(data)
        self._expect("contiguous offsets", partition, batch.base_offset - 1, file, at)
        self._expect("log ends", partition, batch.last_offset, None, None)
        self._changed(partition, file)
        self._expect_last_entries(partition, batch.last_offset, replica=False)

    def _expect_last_entries(self, partition: int, offset: int, replica: bool) -> None:
        for suffix, size in ((".index", 8), (".timeindex", 12)):
            index = self._file(partition, suffix, replica=replica)
            self._expect("indexes", partition, offset, index, index.stat().st_size - size)

    def _shorten(self, partition: int, of_replica: bool) -> None:
        """Remove the last batch of a follower or of the leader, but not the batch's index entries."""
        file = self._file(partition, replica=of_replica)
        data, batch, at = self._last(file)
        file.write_bytes(data[:at])
        self._expect("replicas", partition, batch.base_offset, self._file(partition), at)
        self._expect("log ends", partition, batch.last_offset, None, None)
        self._changed(partition, file)
        self._expect_last_entries(partition, batch.last_offset, of_replica)

    def write_consumer_log(self, path: Path) -> None:
        """Write a log of deliveries with violations of the key order, and with three invalid lines.

        One member goes back in partition 14. Another member delivers a moved key too early. Partitions 15 and 36 have
        two records of a key: in partition 15 the older record is never delivered, and in partition 36 it is delivered
        after the newer record, in the same call.
        """
        moved = next(key for key in self._keys if self._in_grown(key) >= INITIAL)
        child = self._in_grown(moved)
        parent = next(number for number, keys in enumerate(self._of) if moved in keys)
        lines = [("m1", 14, offset, 0.0) for offset in (0, 1, 2, 1)]
        second = {partition: len(self._of[partition]) for partition in (15, 36)}
        lines += [("m4", 15, 0, 0.0), ("m4", 15, second[15] + 1, 1.0), ("m5", 36, second[36], 0.0), ("m5", 36, 0, 0.0)]
        lines += [("m2", parent, offset, 10.0 + offset) for offset in range(2 * len(self._of[parent]))]
        of_child = [key for key in self._keys if self._in_grown(key) == child]
        lines += [("m3", child, offset, 5.0 if key == moved else 5000.0) for offset, key in enumerate(of_child)]
        with path.open("w") as file:
            for member, partition, offset, time in lines:
                line = {"group": "g", "member": member, "partition": partition, "offset": offset, "time": T0 + time}
                file.write(json.dumps(line) + "\n")
            file.write("no JSON\n")
            file.write('{"group": "g", "partition": 37, "offset": 3, "time": 5}\n')
            file.write('{"group": "g", "member": "m", "partition": 38, "offset": 4, "time": 5, "event": "lost"}\n')
        for partition, offset in ((-1, None), (37, 3), (38, 4)):
            self._expect("consumer log", partition, offset, None, None)
        self._expect("consumer positions", 14, 1, None, None)
        self._expect("consumer positions", 36, 0, None, None)
        first = self._file(child)
        self._expect("consumer key order", child, of_child.index(moved), first, 0)
        for partition, offset in ((15, second[15] + 1), (36, second[36])):
            path = self._file(partition)
            first_batch = next(iter_batches(path.read_bytes()))
            self._expect("consumer key order", partition, offset, path, first_batch.length)

    def _in_grown(self, key: bytes) -> int:
        """The key's partition under the largest partition count."""
        return place(positive_hash(key), INITIAL, GROWN)
