"""Configuration that changed reaches the partitions and their logs, in slices: there may be tens of thousands."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.slices import TimeSlice
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock


class Log(Protocol):
    """A log, as far as its configuration goes."""

    @property
    def partition(self) -> TopicPartition: ...
    def update_config(self, config: LogConfig) -> None: ...


class Logs(Protocol):
    """The logs there are (``LogManager``)."""

    def logs(self) -> Iterable[Log]: ...
    def get(self, partition: TopicPartition) -> Log | None: ...


class Replicas(Protocol):
    """The partitions there are (``ReplicaManager``)."""

    def settings_changed(self, key: TopicPartition) -> None: ...


class LogSettings(Protocol):
    """Where a topic's configuration comes from."""

    def log_config(self, topic: str) -> LogConfig: ...


async def take_over_settings(
    replicas: Replicas, logs: Logs, settings: LogSettings, clock: Clock, topics: Collection[str] | None
) -> None:
    """Give the partitions and logs of ``topics`` (None: of all) the configuration that is in force.

    Each partition gets it as a whole. It is looked up in the slice in which it is taken over, so that of two calls that
    overlap neither leaves an older one behind. A log or partition that comes meanwhile has the new one already.
    """
    work = TimeSlice(clock)
    fresh: dict[str, LogConfig] = {}
    for log in logs.logs():
        key = log.partition
        if topics is None or key.topic in topics:
            if key.topic not in fresh:
                fresh[key.topic] = settings.log_config(key.topic)
            if logs.get(key) is log:
                log.update_config(fresh[key.topic])
                replicas.settings_changed(key)
        if work.due():
            await work.pause()
            fresh.clear()
