"""Which parts of a changed configuration a broker applies, and in which slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import pytest
import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.dynamic_config import DynamicConfig
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.slices import MAX_STEPS
from anabranch.broker.replication.settings import take_over_settings
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import ZkConnectionError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from sim.clock import SimClock
from sim.zk import FakeZk
from tests.support.broker.loop_probe import LoopProbe

pytestmark = pytest.mark.trio


class Log:
    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.config = LogConfig()

    def update_config(self, config: LogConfig) -> None:
        self.config = config


class Broker:
    """Partitions and logs that count how often each is configured, and the source of the configuration."""

    def __init__(self, topics: int, partitions: int) -> None:
        names = [f"t{topic}" for topic in range(topics)]
        self.by_key = {key: Log(key) for name in names for key in (TopicPartition(name, p) for p in range(partitions))}
        self.changed: Counter[TopicPartition] = Counter()
        self.retention_ms = 1
        self.probe = LoopProbe()

    def logs(self) -> list[Log]:
        return list(self.by_key.values())

    def get(self, partition: TopicPartition) -> Log | None:
        return self.by_key.get(partition)

    def settings_changed(self, key: TopicPartition) -> None:
        self.probe.step()
        self.changed[key] += 1

    def log_config(self, topic: str) -> LogConfig:
        return LogConfig(retention_ms=self.retention_ms)

    async def take_over(self, topics: Collection[str] | None) -> None:
        await take_over_settings(self, self, self, SimClock(), topics)


async def test_all_logs_are_configured_in_slices() -> None:
    broker = Broker(topics=2000, partitions=3)
    with broker.probe.watching():
        await broker.take_over(None)
    assert set(broker.changed.values()) == {1} and len(broker.changed) == 6000
    assert broker.probe.most_steps <= MAX_STEPS


async def test_only_the_topics_that_changed_are_configured() -> None:
    broker = Broker(topics=20, partitions=2)
    await broker.take_over({"t3", "t17", "none"})
    assert sorted(broker.changed) == [("t17", 0), ("t17", 1), ("t3", 0), ("t3", 1)]


async def test_the_later_of_two_overlapping_changes_is_in_force_in_every_log() -> None:
    broker = Broker(topics=1, partitions=4 * MAX_STEPS)

    async def change_again() -> None:
        broker.retention_ms = 2
        await broker.take_over(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.take_over, None)
        nursery.start_soon(change_again)
    assert {log.config.retention_ms for log in broker.logs()} == {2}


async def test_a_log_that_is_removed_meanwhile_is_not_configured() -> None:
    broker = Broker(topics=1, partitions=2 * MAX_STEPS)
    last = broker.logs()[-1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.take_over, None)
        await trio.lowlevel.checkpoint()
        del broker.by_key[last.partition]
    assert last.partition not in broker.changed and last.config == LogConfig()


# ---------------------------------------------------------------- reported changes


class Zk:
    """A ZooKeeper with configs, and the changes that were reported to a broker."""

    def __init__(self) -> None:
        self.server = FakeZk()
        self.store = self.server.session()
        config = BrokerConfig.from_given({"broker.id": "1", "zookeeper.connect": "zk:2181", "log.dirs": "/d"})
        self.dynamic = DynamicConfig(config, self.store)
        self.notified: list[set[str] | None] = []
        self.dynamic.on_topics_changed = self.note

    async def note(self, topics: Collection[str] | None) -> None:
        self.notified.append(None if topics is None else set(topics))

    async def start(self) -> None:
        for path in paths.PERSISTENT:
            if await self.store.exists(path) is None:
                await self.store.create(path, b"", make_parents=True)
        for topic in ("a", "b", "c"):
            await self.set(ConfigZnode.topic_path(topic), {"retention.ms": "1"})
        await self.dynamic.load()

    async def set(self, path: str, values: dict[str, str]) -> None:
        data = ConfigZnode(values).encode()
        if await self.store.exists(path) is None:
            await self.store.create(path, data, make_parents=True)
        else:
            await self.store.set(path, data)

    async def read_all_again(self) -> list[set[str] | None]:
        self.notified.clear()
        self.dynamic.read_all_again()
        await self.dynamic._apply_new()
        return self.notified


async def test_reading_all_configs_again_reports_only_changed_topics(autojump_clock: trio.testing.MockClock) -> None:
    zk = Zk()
    await zk.start()
    assert await zk.read_all_again() == []
    await zk.set(ConfigZnode.topic_path("b"), {"retention.ms": "2"})
    await zk.store.delete(ConfigZnode.topic_path("c"))
    assert await zk.read_all_again() == [{"b", "c"}]
    assert zk.dynamic.topic_value("b", "retention.ms") == 2
    assert await zk.read_all_again() == []


async def test_a_changed_default_of_all_topics_reports_all_topics(autojump_clock: trio.testing.MockClock) -> None:
    zk = Zk()
    await zk.start()
    await zk.set(ConfigZnode.broker_path(None), {"log.retention.ms": "77"})
    assert await zk.read_all_again() == [None]
    await zk.set(ConfigZnode.broker_path(None), {"log.retention.ms": "77", "follower.replication.throttled.rate": "5"})
    assert await zk.read_all_again() == [], "no topic inherits that key"


async def test_topics_read_before_the_connection_failed_are_reported(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = Zk()
    await zk.start()
    await zk.set(ConfigZnode.topic_path("a"), {"retention.ms": "5"})
    get = zk.store.get

    async def fail_at_b(path: str, watch: Callable[[], None] | None = None) -> Any:
        if path == ConfigZnode.topic_path("b"):
            raise ZkConnectionError(path)
        return await get(path, watch)

    monkeypatch.setattr(zk.store, "get", fail_at_b)
    zk.dynamic.read_all_again()
    with pytest.raises(ZkConnectionError):
        await zk.dynamic._apply_new()
    assert zk.notified == [{"a"}]


async def test_a_notice_without_a_change_reports_nothing(autojump_clock: trio.testing.MockClock) -> None:
    zk = Zk()
    await zk.start()
    await zk.store.create(paths.CONFIG_CHANGE_PREFIX, ConfigChange("topics/a").encode(), sequence=True)
    await zk.dynamic._apply_new()
    assert zk.notified == []
