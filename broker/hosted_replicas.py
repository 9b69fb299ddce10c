"""Builds and connects the parts with which a broker hosts replicas. Handlers reach them as ``node.hosted``."""

from __future__ import annotations

from collections.abc import Callable

import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.dynamic_config import DynamicConfig
from anabranch.broker.link.cluster_link import ClusterLink
from anabranch.broker.log.log_manager import LogManager
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.metrics.layout_refusals import LayoutRefusals
from anabranch.broker.metrics.timestamp_refusals import TimestampRefusals
from anabranch.broker.replication.delayed_fetch import DelayedFetch
from anabranch.broker.replication.fetch_session import FetchSessionCache
from anabranch.broker.replication.fetcher_config import FetcherConfig
from anabranch.broker.replication.fetcher_per_leader import FetcherPerLeader
from anabranch.broker.replication.flusher import Flusher
from anabranch.broker.replication.isr_changes import VERSION as ALTER_PARTITION_VERSION
from anabranch.broker.replication.isr_changes import IsrChanges
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.broker.replication.replica_manager import ReplicaManager, RoleListener
from anabranch.broker.replication.services import SharedServices
from anabranch.broker.replication.throttle import ReplicationQuota
from anabranch.broker.replication.waiting_fetches import WaitingFetches
from anabranch.broker.stock.producers import StockProducers
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env


class HostedReplicas:
    """``manager`` has the replicas. ``roles`` gets the changes of the partitions that this broker leads."""

    def __init__(
        self,
        config: BrokerConfig,
        dynamic: DynamicConfig,
        env: Env,
        nursery: trio.Nursery,
        background: Background,
        metadata: MetadataCache,
        metrics: BrokerMetrics,
        purgatory: Purgatory,
        logs: LogManager,
        link: ClusterLink,
        roles: RoleListener,
    ) -> None:
        self._config = config
        self._dynamic = dynamic
        self._env = env
        self._metadata = metadata
        self._metrics = metrics
        self._link = link
        values = config.values
        self.state_change_lock = trio.Lock()
        """Held while a LeaderAndIsr or StopReplica is applied, also while its configuration is read."""
        self.leader_addresses: dict[int, tuple[str, int]] = {}
        """The addresses of leaders in LeaderAndIsr requests, used until UpdateMetadata has these addresses."""
        self.isr_changes = IsrChanges(config.broker_id, lambda: link.broker_epoch, self._ask_for_isr)
        self.leader_throttle = self._throttle(
            lambda: dynamic.values.leader_replication_throttled_rate, "leader.replication.throttled.replicas"
        )
        follower_throttle = self._throttle(
            lambda: dynamic.values.follower_replication_throttled_rate, "follower.replication.throttled.replicas"
        )
        follower_throttle.on_used = self._note_replicated
        self.fetch_sessions = FetchSessionCache(
            values.max_incremental_fetch_session_cache_slots,
            values.max_incremental_fetch_session_cache_partitions,
            env.clock,
            env.rng,
            purgatory,
        )
        self.waiting_fetches: WaitingFetches[DelayedFetch] = WaitingFetches(values.waiting_fetches_max_bytes)
        self.layout_refusals = LayoutRefusals(env.clock, metrics)
        self.timestamp_refusals = TimestampRefusals(env.clock)
        self.stock_producers = StockProducers(
            env.clock, values.ordered_delivery_stock_producers_silence_ms / 1000, metadata
        )
        services = SharedServices(
            env.clock,
            values.replica_lag_time_max_ms / 1000,
            values.log_flush == "ack",
            metadata,
            self.isr_changes,
            Flusher(nursery),
            link.log_dir_failures.report,
        )
        fetchers = FetcherPerLeader(
            FetcherConfig.of(values),
            env.clock,
            env.network,
            nursery,
            self._address_of,
            lambda: link.broker_epoch,
            follower_throttle,
            background,
        )
        self.manager = ReplicaManager(config.broker_id, logs, metadata, dynamic, roles, services, fetchers, background)

    def _throttle(self, rate: Callable[[], int], replicas_key: str) -> ReplicationQuota:
        dynamic = self._dynamic
        return ReplicationQuota(
            self._config.broker_id,
            self._env.clock,
            rate,
            lambda topic: dynamic.topic_value(topic, replicas_key),
        )

    def _note_replicated(self, key: TopicPartition, size_bytes: int) -> None:
        self._metrics.traffic(key.topic).replication_bytes_in += size_bytes

    def _address_of(self, broker_id: int) -> tuple[str, int] | None:
        endpoint = self._metadata.endpoint(broker_id, self._config.inter_broker_listener)
        return self.leader_addresses.get(broker_id) if endpoint is None else (endpoint.host, endpoint.port)

    async def _ask_for_isr(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        timeout_s = self._config.values.request_timeout_ms / 1000
        response: AlterPartitionResponse = await self._link.controller.request(
            request,
            ALTER_PARTITION_VERSION,
            timeout_s,
            lambda answer: answer.error_code == ErrorCode.NOT_CONTROLLER,
        )
        return response
