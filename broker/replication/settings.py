"""Applies changed configuration to partitions and their logs, in slices: there may be tens of thousands."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.slices import TimeSlice
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock


class Log(Protocol):
    """A log whose configuration can be set."""

    @property
    def partition(self) -> TopicPartition: ...
    def update_config(self, config: LogConfig) -> None: ...


class Logs(Protocol):
    """All logs (``LogManager``)."""

    def logs(self) -> Iterable[Log]: ...
    def get(self, partition: TopicPartition) -> Log | None: ...


class Replicas(Protocol):
    """All partitions (``ReplicaManager``)."""

    def settings_changed(self, key: TopicPartition) -> None: ...


class LogSettings(Protocol):
    """The source of a topic's configuration."""

    def log_config(self, topic: str) -> LogConfig: ...


async def take_over_settings(
    replicas: Replicas, logs: Logs, settings: LogSettings, clock: Clock, topics: Collection[str] | None
) -> None:
    """Apply the configuration in force to the partitions and logs of ``topics`` (None: all topics).

    Each partition gets its configuration as a whole. The configuration is looked up in the same slice in which it is
    applied. So two calls at the same time cannot restore an older configuration. If a log or partition is created
    meanwhile, it has the new configuration already.
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
