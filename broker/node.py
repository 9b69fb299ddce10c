"""One broker: its parts and the connections between them. Handlers reach all parts through ``Node``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import structlog
import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.service import GroupCoordinator
from anabranch.broker.deferred import Deferred
from anabranch.broker.dynamic_config import DynamicConfig
from anabranch.broker.hosted_replicas import HostedReplicas
from anabranch.broker.link.cluster_link import ClusterLink
from anabranch.broker.log.log_manager import LogManager, LogManagerConfig
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.broker.replicated_offsets_log import ReplicatedOffsetsLog
from anabranch.broker.replication.layout_admission import StockConsumerRule
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.broker.replication.settings import take_over_settings
from anabranch.broker.retained_offsets import RetainedOffsets, retained_gauges
from anabranch.broker.stock_consumer_facts import StockConsumerFacts
from anabranch.ordered_resize.lineage import EVERY_EPOCH
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.api_versions import ApiVersion
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.decoded_requests import DecodedRequests
from anabranch.runtime.env import Env, ZkConnectionError, ZkError, ZkSessionExpiredError, ZkStore
from anabranch.runtime.memory_budget import MemoryBudget
from anabranch.runtime.metrics import Gauge

R = TypeVar("R")
logger = structlog.get_logger(__name__)


class Node:
    """The parts of one broker. ``process.run`` makes the node, and runs its tasks in ``nursery``."""

    def __init__(
        self,
        config: BrokerConfig,
        dynamic: DynamicConfig,
        env: Env,
        zk: ZkStore,
        cluster_id: str,
        nursery: trio.Nursery,
    ) -> None:
        self.config = config
        self.dynamic = dynamic
        self.env = env
        self.nursery = nursery
        self.advertised: list[ApiVersion] = []
        self.metadata = MetadataCache()
        self.background = Background(env.clock, propagate_bugs=env.propagate_bugs)
        self.metrics = BrokerMetrics(lambda topic: topic in self.metadata.topics)
        self.background.show_in(self.metrics)
        self.decoded_requests = DecodedRequests(config.request_limits)
        self.request_memory = MemoryBudget(config.values.queued_max_request_bytes)
        self.purgatory = Purgatory(env.clock, self.background)
        self.link = ClusterLink(config, env, zk, cluster_id, self.metadata, self.background, nursery)
        self.logs = LogManager(self._log_manager_config(), env, self.background)
        self.link.controller.on_moved = dynamic.read_all_again
        self.hosted = HostedReplicas(
            config,
            dynamic,
            env,
            nursery,
            self.background,
            self.metadata,
            self.metrics,
            self.purgatory,
            self.logs,
            self.link,
            self,
        )
        self.replicas = self.hosted.manager
        self.groups = self._new_coordinator()
        self.stock_consumer_facts = StockConsumerFacts(
            env, config, dynamic, self.metadata, self.replicas, self.link.lineages, self.metrics
        )
        self.metadata.is_withheld = self._withholds
        dynamic.on_topics_changed = self._settings_changed
        dynamic.on_values_changed.append(self._reconfigure_logs)
        self.logs.cleaner.first_kept_epoch = self.first_kept_epoch
        self.retained_offsets = self._new_retained_offsets()
        self.metrics.gauges += self._gauges()

    def _gauges(self) -> list[Gauge]:
        return [
            Gauge(BROKER_METRICS["anabranch_led_partitions"], lambda: len(self._led())),
            Gauge(
                BROKER_METRICS["anabranch_withheld_partitions"],
                lambda: self.stock_consumer_facts.withheld_partitions,
            ),
            Gauge(
                BROKER_METRICS["anabranch_longest_withhold_seconds"],
                lambda: self.stock_consumer_facts.longest_s,
            ),
            Gauge(
                BROKER_METRICS["anabranch_logs_newer_than_zookeeper"],
                lambda: len(self.link.older_zookeeper.logs),
            ),
            Gauge(
                BROKER_METRICS["anabranch_closed_partitions"],
                lambda: sum(partition.layout.closes(partition.key.partition) for partition in self._led()),
            ),
        ]

    def _new_coordinator(self) -> GroupCoordinator:
        values, env = self.config.values, self.env
        groups = GroupCoordinator(
            GroupConfig.of(values),
            env.clock,
            env.rng,
            ReplicatedOffsetsLog(self.replicas, self.purgatory, env.clock, values),
            self.metadata,
            self.background,
            self.link.features.level,
        )
        groups.observe_waits(self.metrics.hand_overs.observe)
        return groups

    def _new_retained_offsets(self) -> RetainedOffsets:
        lease_ms = self.config.values.ordered_delivery_retention_waits_lease_ms
        retained = RetainedOffsets(self.replicas.hosted, self.env.clock, lease_ms, self.metrics)
        self.logs.maintenance.retained_from, self.logs.maintenance.on_expired = retained.retained_from, retained.expired
        self.metrics.labelled_gauges += retained_gauges(retained, self.logs.logs)
        return retained

    # ------------------------------------------------------------ for handlers

    def later(
        self,
        work: Callable[[], Awaitable[R]],
        failed: Callable[[KafkaError], R | Awaitable[R]],
        *,
        may_stop: bool = False,
    ) -> Deferred[R]:
        """Run ``work`` in a task. The answer is the result of ``work``, or ``failed(error)``, which may be awaited.

        ``may_stop``: the work ends without an answer when the client's connection ends. It may end at any point where
        it waits, so it changes nothing in this broker before it has set ``on_abandoned`` of the answer to None.
        """
        answer: Deferred[R] = Deferred()
        scope = trio.CancelScope()
        if may_stop:
            answer.on_abandoned = scope.cancel

        async def run() -> None:
            with scope:
                result: R | Awaitable[R]
                try:
                    result = await work()
                except Exception as error:
                    result = failed(_shown(error))
                answer.fill(await result if isinstance(result, Awaitable) else result)

        self.nursery.start_soon(run)
        return answer

    # ------------------------------------------------------------ roles (RoleListener)

    def on_leader(self, key: TopicPartition, leader_epoch: int) -> None:
        partition = self.replicas.hosted(key)
        if partition is not None and partition.withholds:
            self.stock_consumer_facts.wake()
        if key.topic == OFFSETS_TOPIC:
            self.groups.on_leader(key.partition, leader_epoch)

    def on_not_leader(self, key: TopicPartition, leader_epoch: int | None) -> None:
        if key.topic == OFFSETS_TOPIC:
            self.groups.on_not_leader(key.partition, leader_epoch)

    # ------------------------------------------------------------ configuration

    def _led(self) -> list[Partition]:
        return [partition for partition in self.replicas.all() if partition.is_leader]

    def is_ordered(self, topic: str) -> bool:
        """Whether the topic's keys keep their order at resizes. Until the first resize, the configuration decides."""
        info = self.metadata.topics.get(topic)
        settled = None if info is None else info.ordered_delivery
        return self.dynamic.delivery_rules(topic).ordered if settled is None else settled

    def _withholds(self, topic: str) -> bool:
        rules = self.dynamic.delivery_rules(topic)
        return rules.stock_consumers is StockConsumerRule.WITHHOLD and self.is_ordered(topic)

    async def first_kept_epoch(self, key: TopicPartition) -> int:
        return await self.link.lineages.first_kept_epoch(key) if self.is_ordered(key.topic) else EVERY_EPOCH

    def _log_manager_config(self) -> LogManagerConfig:
        return LogManagerConfig.of(
            self.dynamic.values,
            broker_id=self.config.broker_id,
            cluster_id=self.link.cluster_id,
            log_dirs=self.config.log_dirs,
            topic_defaults=self.dynamic.default_log_config,
        )

    def _reconfigure_logs(self) -> None:
        self.logs.reconfigure(self._log_manager_config())

    async def _settings_changed(self, topics: Collection[str] | None) -> None:
        await take_over_settings(self.replicas, self.logs, self.dynamic, self.env.clock, topics)
        self.stock_consumer_facts.wake()


def _shown(error: Exception) -> KafkaError:
    """An error of work for a client, as the client is told."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, ZkConnectionError | ZkSessionExpiredError):
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))  # clients repeat it
    if isinstance(error, ZkError | OSError):
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    logger.error("request.failed_later", exc_info=error)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}")
