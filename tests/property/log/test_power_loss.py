"""A power failure loses unsynced data; data that a returned ``flush`` has synced stays."""

from __future__ import annotations

import random

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogManager, LogManagerConfig
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from sim.storage import SimDisk
from tests.support.log.log_fixture import START_MS, TOPIC_ID, ManualClock, batch, find_time, values

PLAIN, COMPACTED = TopicPartition("plain", 0), TopicPartition("compacted", 0)
CONFIGS = {
    "plain": LogConfig(segment_bytes=400, index_interval_bytes=50),
    "compacted": LogConfig(
        segment_bytes=400, index_interval_bytes=50, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0
    ),
}
KEYS = [b"a", b"b", b"c"]
LOST = b""
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["flush", "checkpoint", "clean", "power loss", "kill", "restart"]), st.just(0)),
    ),
    max_size=20,
)


class Machine:
    """A disk, the broker's logs on the disk, the written records, and the number of durable records."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.written: dict[TopicPartition, list[bytes]] = {PLAIN: [], COMPACTED: []}
        self.durable = {PLAIN: 0, COMPACTED: 0}

    async def start(self) -> None:
        self.storage = self.disk.mount()
        env = Env(ManualClock(), None, random.Random(1), self.storage)  # type: ignore[arg-type]
        self.manager = LogManager(LogManagerConfig(1, "c", ("/d",)), env)
        await self.manager.start(CONFIGS.__getitem__)
        for partition in (PLAIN, COMPACTED):
            log = self.manager.get(partition) or self.manager.create(partition, TOPIC_ID, 1, CONFIGS[partition.topic])
            log.advance_high_watermark(log.log_end_offset)
            self.check(partition)

    def check(self, partition: TopicPartition) -> None:
        log = self.manager.get(partition)
        assert log is not None
        end = log.log_end_offset
        assert self.durable[partition] <= end <= len(self.written[partition])
        del self.written[partition][end:]
        self.durable[partition] = min(self.durable[partition], end)
        found = values(log)
        assert all(self.written[partition][offset] == key for offset, key, _ in found)
        if partition is PLAIN:
            assert [offset for offset, _, _ in found] == list(range(end))
            timed = find_time(log, None)
            assert timed is None if end == 0 else timed == (START_MS + end - 1, end - 1, 0)
        # A compacted log may lose unflushed records from its middle, because a gap is legal there.
        durable = {key: offset for offset, key in enumerate(self.written[partition][: self.durable[partition]])}
        last = {key: offset for offset, key, _ in found}
        assert all(last[key] >= offset for key, offset in durable.items() if key != LOST)
        there = {offset for offset, _, _ in found}
        for offset in range(self.durable[partition], end):
            if offset not in there:
                self.written[partition][offset] = LOST

    def append(self, partition: TopicPartition, count: int) -> None:
        log = self.manager.get(partition)
        assert log is not None
        for _ in range(count):
            offset = log.log_end_offset
            key = KEYS[offset * 7 % 3]
            sequence = (
                {} if partition is COMPACTED else {"producer_id": 9, "producer_epoch": 0, "base_sequence": offset}
            )
            log.append_as_leader(batch(b"v", key=key, timestamp=START_MS + offset, **sequence), 0)
            self.written[partition].append(key)
        log.advance_high_watermark(log.log_end_offset)

    async def step(self, name: str, count: int) -> None:
        if name == "append":
            for partition in (PLAIN, COMPACTED):
                self.append(partition, count)
        elif name == "flush":
            for log in self.manager.logs():
                await log.flush()
                self.durable[log.partition] = log.log_end_offset
        elif name == "checkpoint":
            self.manager.checkpoints.write_recovery_points()
        elif name == "clean":
            await self.manager.cleaner.clean_dirtiest()
        elif name == "restart":
            await self.manager.shutdown()
            self.durable = {log.partition: log.log_end_offset for log in self.manager.logs()}
            await self.start()
        else:
            (self.disk.crash if name == "power loss" else self.disk.kill)(self.storage)
            await self.start()


@settings(max_examples=80)
@given(steps, st.integers(0, 1000))
def test_flushed_data_survives_a_power_loss(course: list[tuple[str, int]], seed: int) -> None:
    async def run() -> None:
        machine = Machine(seed)
        await machine.start()
        for name, count in course:
            await machine.step(name, count)
        await machine.step("power loss", 0)

    trio.run(run)
