"""Recovery of damaged segments, and compaction against a model with a dict."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.log.cleaner import LogCleaner
from anabranch.broker.log.current_logs import CurrentLogs
from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.log_loader import Checkpoints
from anabranch.broker.log.manager_config import LogManagerConfig
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.records import RecordBatch
from tests.support.log.log_fixture import START_MS, LogFixture, batch, read_all, values

SEGMENT_BYTES = 700

damages = st.lists(
    st.tuples(
        st.sampled_from(["cut", "flip", "zero", "insert", "append"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=80),
    ),
    min_size=1,
    max_size=3,
)


def apply_damage(data: bytes, kind: str, where: float, noise: bytes) -> bytes:
    position = int(where * (len(data) + 1))
    if kind == "cut":
        return data[:position]
    if kind == "flip":
        return data[:position] + bytes(a ^ b for a, b in zip(data[position:], noise)) + data[position + len(noise) :]
    if kind == "zero":
        return data[:position] + bytes(len(data) - position)
    if kind == "insert":
        return data[:position] + noise + data[position:]
    return data + noise


def common_prefix(left: bytes, right: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))


@settings(max_examples=100)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=14),
    codec=st.sampled_from([CompressionType.NONE, CompressionType.LZ4]),
    target=st.floats(0, 1, exclude_max=True),
    damage=damages,
    losses=st.sets(st.sampled_from([".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])),
)
def test_recovery_keeps_every_whole_batch_before_the_damage_and_none_after(
    sizes: list[int], codec: CompressionType, target: float, damage: list[tuple[str, float, bytes]], losses: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        log_fixture = LogFixture(Path(root))
        log = log_fixture.create(segment_bytes=SEGMENT_BYTES, index_interval_bytes=100)
        for number, size in enumerate(sizes):
            data = batch(*[b"%d" % number * 20] * size, compression=codec, timestamp=START_MS + number)
            log.append_as_leader(data, number // 5)
        originals = [bytes(each.buffer) for each in read_all(log)]
        log.close_files()

        logs = log_fixture.names(".log")
        victim = int(target * len(logs))
        path = log_fixture.file(logs[victim])
        before = path.read_bytes()
        after = before
        for kind, where, noise in damage:
            after = apply_damage(after, kind, where, noise)
        path.write_bytes(after)
        for name in log_fixture.names():
            if any(name.endswith(suffix) for suffix in losses):
                log_fixture.file(name).unlink()

        async def reopen() -> list[bytes]:
            again = await log_fixture.reopen(checkpoints=Checkpoints(), index_interval_bytes=100)
            found = [bytes(each.buffer) for each in read_all(again)]
            end = int.from_bytes(found[-1][:8], "big") + RecordBatch(found[-1]).last_offset_delta + 1 if found else 0
            assert again.append_as_leader(batch(b"next"), 99).base_offset == end
            again.close_files()
            return found

        kept = trio.run(reopen)

    whole = sum(len(each) for each in _files_before(originals, logs, victim)) + common_prefix(before, after)
    intact = sum(1 for end in itertools.accumulate(len(each) for each in originals) if end <= whole)
    assert kept[:intact] == originals[:intact]
    if before == after:
        assert kept == originals
    # Batches after the damage are kept only if the damage is in one of the two fields that the CRC does not cover.
    assert [under_checksum(each) for each in kept] == [under_checksum(each) for each in originals[: len(kept)]]
    bases = [RecordBatch(each).base_offset for each in kept]
    assert bases == sorted(set(bases))


def under_checksum(data: bytes) -> bytes:
    """Return a batch without the base offset and leader epoch: a broker rewrites these two fields."""
    return data[8:12] + data[16:]


def _files_before(originals: list[bytes], logs: list[str], victim: int) -> list[bytes]:
    """Return the batches in the files before the damaged one."""
    first_offset = int(logs[victim][:20])
    return [each for each in originals if int.from_bytes(each[:8], "big") < first_offset]


keys = st.sampled_from([b"a", b"b", b"c", b"long" * 20])
operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.lists(st.tuples(keys, st.one_of(st.none(), st.binary(max_size=8))), min_size=1, max_size=4),
        ),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("clean"), st.none()),
        st.tuples(st.just("wait"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(operations)
def test_compaction_keeps_the_last_value_of_each_key_for_a_reader_of_the_whole_log(steps: list) -> None:  # type: ignore[type-arg]
    async def run(log_fixture: LogFixture) -> None:
        config = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0, "delete_retention_ms": 1000}
        log = log_fixture.create(**config)
        expected: dict[bytes, bytes | None] = {}
        written: dict[int, tuple[bytes, bytes | None]] = {}

        def cleaner() -> LogCleaner:
            logs, directory = CurrentLogs(), LogDirectory(log_fixture.storage, str(log_fixture.root))
            logs.add(log, directory)
            made = LogCleaner(log_fixture.env, LogManagerConfig(1, "c", (str(log_fixture.root),)), logs)
            made.load_checkpoint(directory)
            return made

        for name, puts in steps:
            if name == "put":
                base = log.append_as_leader(batch(*[v for _, v in puts], keys=[k for k, _ in puts]), 0).base_offset
                log.advance_high_watermark(log.log_end_offset)
                expected.update(puts)
                written.update({base + delta: pair for delta, pair in enumerate(puts)})
            elif name == "roll":
                log.roll()
            elif name == "wait":
                log_fixture.clock.ms += 1001
            elif name == "clean":
                await cleaner().clean_dirtiest()
            else:
                end = log.log_end_offset
                log.close_files()
                log = await log_fixture.reopen(checkpoints=Checkpoints(high_watermark=end), **config)
                assert log.log_end_offset == end
        found = values(log)
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        assert all(written[offset] == (key, value) for offset, key, value in found)
        live = {key: value for key, value in expected.items() if value is not None}
        ended = {key: value for _, key, value in found}
        assert {key: value for key, value in ended.items() if value is not None} == live
        log.close_files()

    with tempfile.TemporaryDirectory() as root:
        trio.run(run, LogFixture(Path(root)))
