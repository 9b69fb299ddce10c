"""A controller process: stands for election again and again, and serves its listener in and out of office."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from anabranch.controller import features, view
from anabranch.controller.active import ActiveController
from anabranch.controller.config import ControllerConfig
from anabranch.controller.controller_election import ensure_paths, find_mine, stand, wait_for_vacancy
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.metric_table import CONTROLLER_METRICS
from anabranch.controller.metrics import ControllerMetrics
from anabranch.controller.registration import ControllerRegistration
from anabranch.controller.server import serve
from anabranch.controller.state_metrics import ImageMetrics
from anabranch.controller.store import ControllerMovedError
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env, NoNodeError, SessionState, ZkConnectionError, ZkSessionExpiredError, ZkStore
from anabranch.runtime.http_limits import HttpLimits
from anabranch.runtime.metrics import Gauge, Histogram, ShownTopics
from anabranch.runtime.observed import Observed
from anabranch.runtime.release import software_version
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import ControllerZnode
from anabranch.zk_schemas.features import Features
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)
Ready = Callable[[str, int], None]


async def run(
    config: ControllerConfig, env: Env, *, on_ready: Ready | None = None, zk_latency: Histogram | None = None
) -> None:
    """Run until cancelled. ``on_ready`` is called with host and port once the listener is bound.

    ``env.zk`` is a session of this process alone. ``zk_latency`` is the histogram of its requests. Raises ``OSError``
    when the listener cannot be bound. Raises ``IncompatibleFeaturesError`` when this release does not support a
    finalized feature.
    """
    assert env.zk is not None, "a controller needs ZooKeeper"
    listener = await env.network.listen(config.host, config.port)
    process = _Process(config, env, listener.port)
    try:
        async with trio.open_nursery() as nursery:
            if config.metrics_listener is not None:
                await process.offer_metrics(config.metrics_listener, nursery, zk_latency)
            nursery.start_soon(serve, listener, lambda: process.active, config, process.background)
            nursery.start_soon(ControllerRegistration(env.zk, process.described()).run)
            if on_ready is not None:
                on_ready(config.host, listener.port)
            await process.stand_for_ever(env.zk)
    finally:
        listener.close()


class _Process:
    def __init__(self, config: ControllerConfig, env: Env, port: int) -> None:
        self._config = config
        self._env = env
        self._port = port
        self.active: ActiveController | None = None
        self.left_because = ""
        """Why this controller left office although ``/controller`` is its own; empty if it did not."""
        self.background = Background(env.clock, propagate_bugs=env.propagate_bugs)
        self.metrics = ControllerMetrics()
        self.background.show_in(self.metrics)
        self.background.sources.append(self._vacancy)
        self.metrics.gauges += [
            Gauge(CONTROLLER_METRICS["anabranch_active_controller"], lambda: self.active is not None),
            Gauge(
                CONTROLLER_METRICS["anabranch_marked_partitions"],
                lambda: sum(len(view.marked(topic)) for topic in self._topics()),
            ),
            Gauge(
                CONTROLLER_METRICS["anabranch_unfinished_resizes"],
                lambda: sum(map(view.is_unfinished, self._topics())),
            ),
            Gauge(
                CONTROLLER_METRICS["anabranch_frozen_topics"],
                lambda: sum(bool(topic.frozen) for topic in self._topics()),
            ),
        ]

    async def offer_metrics(self, address: str, nursery: trio.Nursery, zk_latency: Histogram | None) -> None:
        """Serve metrics and health at ``address``. Raises ``OSError``."""
        config, env, metrics = self._config, self._env, self.metrics
        assert env.zk is not None
        shown = metrics.shown_topics = ShownTopics(config.metrics_max_topics, self._topic_names)
        most, now = config.metrics_max_partitions, env.clock.monotonic
        metrics.most_series = most
        metrics.sources.append(ImageMetrics(lambda: self.active, metrics, shown, most, now))
        observed = Observed("controller", config.controller_id, env, metrics, self.background, env.zk, zk_latency)
        observed.check_loop(config.health_loop_lag_ms / 1000)
        await observed.listen(address, HttpLimits.of(config))
        nursery.start_soon(observed.run)

    def _vacancy(self) -> list[str]:
        """The line for operators while no controller acts, and none can be elected."""
        if not self.left_because:
            return []
        return [
            f"no controller acts: this one left office and {paths.CONTROLLER} is still its own: {self.left_because}"
        ]

    def _topic_names(self) -> list[str]:
        return list(self.active.image.topics) if self.active is not None else []

    def _topics(self) -> list[TopicImage]:
        """The topics that are not being deleted."""
        image = self.active.image if self.active is not None else ClusterImage(-1, -1)
        return [topic for name, topic in image.topics.items() if name not in image.deletions]

    def described(self) -> ControllerZnode:
        """The controller as its znodes describe it now."""
        config, now_ms = self._config, self._env.clock.now_ms()
        return ControllerZnode(config.controller_id, config.host, self._port, now_ms, release=software_version())

    async def stand_for_ever(self, zk: ZkStore) -> None:
        reason = ""
        while True:
            try:
                await _wait_for_session(zk)
                await ensure_paths(zk)
                await self._term(zk, reason)
            except (ControllerMovedError, ZkSessionExpiredError, ZkConnectionError) as error:
                reason = str(error)
                logger.info("controller.stands_again", controller_id=self._config.controller_id, reason=reason)

    async def _term(self, zk: ZkStore, left_because: str) -> None:
        """Wait until no controller is in office, stand for election, and stay in office until replaced."""
        config = self._config
        if await find_mine(zk):
            self.left_because = left_because
            logger.error("controller.left_office", controller_id=config.controller_id, reason=left_because)
        try:
            await wait_for_vacancy(zk)
        finally:
            self.left_because = ""
        await _check_features(config, zk)
        office = await stand(zk, self.described())
        if office is None:
            return
        logger.info("controller.elected", controller_id=config.controller_id, controller_epoch=office.controller_epoch)
        self.active = ActiveController(self._env, config, office, self.metrics, self.background)
        try:
            await self.active.run()
        finally:
            self.active = None


async def _check_features(config: ControllerConfig, zk: ZkStore) -> None:
    """Raise ``IncompatibleFeaturesError`` when this release does not support a finalized feature."""
    try:
        finalized = Features.decode(Features.PATH, (await zk.get(Features.PATH)).data)
    except (NoNodeError, MalformedZnodeError):
        return  # a term of office begins with reading ``/features`` again
    features.check_supported(config.features, finalized)


async def _wait_for_session(zk: ZkStore) -> None:
    """Return once a session is connected. After an expiry, this is a new session."""
    changed = trio.Event()

    def on_state(_state: SessionState) -> None:
        changed.set()

    unregister = zk.on_state(on_state)
    try:
        while zk.state is not SessionState.CONNECTED:
            await changed.wait()
            changed = trio.Event()
    finally:
        unregister()
