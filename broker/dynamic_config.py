"""Configuration that changes while the broker runs: ``/config/brokers``, ``/config/topics``, ``/config/changes``.

A change is applied at once: the notification's watch wakes one task, which reads the entity's znode again. The
effective value comes from the first of these places that has the key: topic override, override of this broker, override
of all brokers, static file, default.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

import structlog
import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.replication.layout_admission import DeliveryRules, StockConsumerRule, StockProducerRule
from anabranch.ordered_resize.delete_when_drained import Marked
from anabranch.runtime.env import NoNodeError, SessionState, ZkConnectionError, ZkError, ZkSessionExpiredError, ZkStore
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS, BrokerKeys
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.config_def import ConfigDef, ConfigError, UpdateMode
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS, topic_defaults
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)

_FOR_ALL_BROKERS = ConfigDef(
    "cluster-wide broker",
    [key for key in BROKER_CONFIGS if key.update_mode in (UpdateMode.CLUSTER_WIDE, UpdateMode.ALL_BROKERS)],
)
_FOR_ONE_BROKER = ConfigDef(
    "dynamic broker",
    [key for key in BROKER_CONFIGS if key.update_mode in (UpdateMode.CLUSTER_WIDE, UpdateMode.PER_BROKER)],
)
"""Any other key in a znode that was edited by hand is ignored: it would be described without being in force."""
_RETRY_S = 0.5
_ORDER_RETRY_S = 0.1


class DynamicConfig:
    """The configuration in force. ``values`` has every broker key."""

    def __init__(self, config: BrokerConfig, zk: ZkStore) -> None:
        self._config = config
        self._zk = zk
        self._topics: dict[str, dict[str, Any]] = {}
        self._default_overrides: dict[str, Any] = {}
        self._own_overrides: dict[str, Any] = {}
        self._read_for: dict[str, tuple[uuid.UUID, int]] = {}
        """``{topic: (topic id, layout version)}`` of the last request that caused a read of the topic's overrides."""
        self._wake = trio.Event()
        self._seen = ""
        self._reload = False
        self.values: BrokerKeys = config.values
        self._topic_defaults = topic_defaults(config.values.by_key())
        self._default_log_config = self._topic_defaults, LogConfig.of(self._topic_defaults)
        self._log_configs: dict[str, tuple[dict[str, Any], dict[str, Any], LogConfig]] = {}
        """By topic: the overrides and defaults that a configuration was made of, and the configuration."""
        self._unapplied: set[str] = set()
        """Topics whose overrides were read and differ from the overrides in force."""
        self._all_unapplied = False
        """Whether a default that any topic may inherit has changed."""
        self.on_topics_changed: Callable[[Collection[str] | None], Awaitable[None]] = _apply_to_nothing
        """Awaited with the topics whose effective configuration changed; with None if any topic may be affected."""
        self.on_values_changed: list[Callable[[], None]] = []
        """Called when ``values`` have changed."""

    # ------------------------------------------------------------ values in force

    def topic_values(self, topic: str) -> dict[str, Any]:
        """Every topic key, parsed."""
        return {**self._topic_defaults, **self._topics.get(topic, {})}

    def topic_value(self, topic: str, name: str) -> Any:
        """One topic key, parsed."""
        overrides = self._topics.get(topic)
        return self._topic_defaults[name] if overrides is None or name not in overrides else overrides[name]

    def topic_values_with(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Every topic key, parsed, for a topic with these overrides."""
        return {**self._topic_defaults, **_usable(given, TOPIC_CONFIGS, "topic")}

    def log_config(self, topic: str) -> LogConfig:
        """The settings of a topic's logs. All logs of a topic, and all topics without overrides, share one object."""
        overrides = self._topics.get(topic)
        if overrides is None:
            return self.default_log_config
        known = self._log_configs.get(topic)
        if known is None or known[0] is not overrides or known[1] is not self._topic_defaults:
            known = self._log_configs[topic] = overrides, self._topic_defaults, LogConfig.of(self.topic_values(topic))
        return known[2]

    def min_insync_replicas(self, topic: str) -> int:
        return int(self.topic_value(topic, "min.insync.replicas"))

    def delivery_rules(self, topic: str) -> DeliveryRules:
        """The settings of a topic that KIP-253's checks need."""
        return DeliveryRules(
            bool(self.topic_value(topic, "enable.ordered.delivery")),
            StockProducerRule(self.topic_value(topic, "ordered.delivery.stock.producers")),
            StockConsumerRule(self.topic_value(topic, "ordered.delivery.stock.consumers")),
        )

    def marked(self, topic: str) -> Marked:
        """The rule that decides when partitions marked for deletion lose their records."""
        return Marked.of(self.topic_values(topic))

    @property
    def default_log_config(self) -> LogConfig:
        if self._default_log_config[0] is not self._topic_defaults:
            self._default_log_config = self._topic_defaults, LogConfig.of(self._topic_defaults)
        return self._default_log_config[1]

    # ------------------------------------------------------------ reading

    async def load(self) -> None:
        """Read all overrides, before any part of the broker uses a configuration. Raises ``ZkError``."""
        await self._load_all()
        self._unapplied.clear()
        self._all_unapplied = False

    async def _load_all(self) -> None:
        changes = await self._zk.children(paths.CONFIG_CHANGES)
        self._seen = changes[-1] if changes else ""
        await self._load_brokers()
        topics = await self._zk.children(paths.TOPIC_CONFIGS)
        for topic in [*topics, *(known for known in self._topics if known not in topics)]:
            await self._load_topic(topic)

    async def load_topic(self, topic: str, topic_id: uuid.UUID, layout_version: int) -> None:
        """Read one topic's overrides for a controller's request; wait while ZooKeeper cannot be reached.

        The overrides are read at the first request of each layout, because notifications of earlier alterations may
        arrive after the request. The request waits and is not refused, because the controller does not repeat a refused
        request. A leader that missed its new epoch would stay in the old epoch, and its ISR changes would be fenced
        until the next election.
        """
        known_id, known_version = self._read_for.get(topic, (None, -1))
        if topic_id == known_id and layout_version <= known_version:
            return
        while True:
            try:
                await self._load_topic(topic)
                self._read_for[topic] = (topic_id, layout_version)
                if topic in self._unapplied:
                    self._unapplied.discard(topic)
                    await self.on_topics_changed((topic,))
                return
            except (ZkConnectionError, ZkSessionExpiredError) as error:
                logger.info("config.order_waits", topic=topic, error=str(error))
                await trio.sleep(_ORDER_RETRY_S)

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Note topics that lost partitions: their overrides are read again at the controller's next request."""
        for topic in topics:
            self._read_for.pop(topic, None)

    async def _load_topic(self, topic: str) -> None:
        """Read one topic's overrides again. Raises ``ZkError``."""
        overrides = await self._read(ConfigZnode.topic_path(topic), TOPIC_CONFIGS)
        if overrides != self._topics.get(topic, {}):
            self._unapplied.add(topic)
        if overrides:
            self._topics[topic] = overrides
        else:
            self._topics.pop(topic, None)
            self._log_configs.pop(topic, None)

    async def _load_brokers(self) -> None:
        self._default_overrides = await self._read(ConfigZnode.broker_path(None), _FOR_ALL_BROKERS)
        self._own_overrides = await self._read(ConfigZnode.broker_path(self._config.broker_id), _FOR_ONE_BROKER)
        before = self.values
        values = {**self._config.values.by_key(), **self._default_overrides, **self._own_overrides}
        self.values = BrokerKeys.of(values)
        defaults = topic_defaults(values)
        self._all_unapplied |= defaults != self._topic_defaults
        self._topic_defaults = defaults
        if self.values != before:
            for changed in self.on_values_changed:
                changed()

    async def _apply_unapplied(self) -> None:
        """Apply the overrides that were read since the last call."""
        topics, everything = self._unapplied, self._all_unapplied
        self._unapplied, self._all_unapplied = set(), False
        if topics or everything:
            await self.on_topics_changed(None if everything else topics)

    async def _read(self, path: str, table: ConfigDef) -> dict[str, Any]:
        """The overrides at ``path``, parsed. An override that cannot be used is logged and left out."""
        try:
            given = ConfigZnode.decode(path, (await self._zk.get(path)).data).config
        except NoNodeError:
            return {}
        except MalformedZnodeError as error:
            logger.error("config.malformed", path=path, error=str(error))
            return {}
        return _usable(given, table, path)

    # ------------------------------------------------------------ following

    async def run(self) -> None:
        """Apply changes until cancelled. After a lost session all overrides are read again.

        ``runtime.znode_watch.follow`` does not fit: ``read_all_again`` has to wake this loop too. After a failed read
        this loop logs a warning and reads again after ``_RETRY_S``, even without a connection. ``follow`` would wait
        for a connection.
        """
        unregister = self._zk.on_state(self._on_state)
        try:
            while True:
                self._wake = trio.Event()
                try:
                    await self._apply_new()
                except ZkError as error:
                    logger.warning("config.changes_not_read", error=str(error))
                    with trio.move_on_after(_RETRY_S):
                        await self._wake.wait()
                    continue
                await self._wake.wait()
        finally:
            unregister()

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._reload = True
            self._read_for.clear()  # after the next registration, requests may arrive before everything is read again
        elif state is SessionState.CONNECTED:
            self._wake.set()

    def _woken(self) -> None:
        self._wake.set()

    def read_all_again(self) -> None:
        """Read all overrides again: a controller that dies after a change may not have sent the notification."""
        self._reload = True
        self._wake.set()

    async def _apply_new(self) -> None:
        if self._reload:
            self._reload = False
            try:
                await self._load_all()
            except ZkError:
                self._reload = True
                raise
            finally:
                await self._apply_unapplied()
        for name in await self._zk.children(paths.CONFIG_CHANGES, self._woken):
            if name > self._seen:
                await self._apply(f"{paths.CONFIG_CHANGES}/{name}")
                self._seen = name

    async def _apply(self, path: str) -> None:
        try:
            change = ConfigChange.decode(path, (await self._zk.get(path)).data)
        except NoNodeError:
            return
        except MalformedZnodeError as error:
            logger.error("config.malformed", path=path, error=str(error))
            return
        if change.entity_type == "topics":
            await self._load_topic(change.entity_name)
        elif change.entity_type == "brokers" and change.entity_name in (
            paths.DEFAULT_BROKER,
            str(self._config.broker_id),
        ):
            await self._load_brokers()
        await self._apply_unapplied()
        logger.info("config.changed", entity=change.entity_path)


async def _apply_to_nothing(_topics: Collection[str] | None) -> None:
    return None


def _usable(given: Mapping[str, str], table: ConfigDef, where: str) -> dict[str, Any]:
    """The overrides that can be used, parsed; the others are logged and left out."""
    overrides = {}
    for name, value in given.items():
        try:
            overrides[name] = table[name].parse(value)
        except ConfigError as error:
            logger.error("config.refused", where=where, error=str(error))
    return overrides
