"""The link of one broker to its cluster: what it asks of the active controller, and what it keeps in ZooKeeper."""

from __future__ import annotations

import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.link.confirmed_epochs import ConfirmedEpochs
from anabranch.broker.link.controller_client import ControllerClient
from anabranch.broker.link.features import FinalizedFeatureCache
from anabranch.broker.link.lineage_reader import LineageReader
from anabranch.broker.link.log_dir_failure import LogDirFailures
from anabranch.broker.link.older_zookeeper import OlderZooKeeper
from anabranch.broker.link.producer_ids import ProducerIds
from anabranch.broker.link.registered_controllers import RegisteredControllers
from anabranch.broker.link.registration import Registrar
from anabranch.broker.link.topic_creation import TopicCreator
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env, ZkStore


class ClusterLink:
    """The parts of the link. ``process`` runs their tasks and sets ``registration``."""

    def __init__(
        self,
        config: BrokerConfig,
        env: Env,
        zk: ZkStore,
        cluster_id: str,
        metadata: MetadataCache,
        background: Background,
        nursery: trio.Nursery,
    ) -> None:
        self.zk = zk
        self.cluster_id = cluster_id
        broker_id, silence_s = config.broker_id, config.values.controller_silence_ms / 1000
        self.controller = ControllerClient(env, zk, f"broker-{broker_id}", silence_s)
        self.controllers = RegisteredControllers(zk)
        self.topic_creator = TopicCreator(config.values, self.controller, metadata, background, nursery)
        self.features = FinalizedFeatureCache(zk, config.values.features)
        self.producer_ids = ProducerIds(zk, broker_id)
        self.lineages = LineageReader(zk, metadata)
        self.log_dir_failures = LogDirFailures(zk, broker_id)
        self.epochs = ConfirmedEpochs(zk, broker_id, config.request_limits.half_of_decoded_bytes)
        self.older_zookeeper = OlderZooKeeper(zk, broker_id)
        background.sources.append(self.older_zookeeper.lines)
        self.registration: Registrar | None = None
        self.registered = trio.Event()
        """Set once there is a broker epoch. A controller's requests from before are for the previous process."""

    @property
    def broker_epoch(self) -> int:
        """The czxid of the registration; -1 before the first registration."""
        return NO_EPOCH if self.registration is None else self.registration.epoch
