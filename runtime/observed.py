"""The observability of brokers and controllers: listener, loop, process and ZooKeeper metrics, health."""

from __future__ import annotations

import trio

from anabranch.runtime import garbage_collection
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env, ZkStore
from anabranch.runtime.health import Health, background_check, loop_check, zookeeper_check
from anabranch.runtime.http_limits import HttpLimits
from anabranch.runtime.http_listener import LIVE, METRICS, READY, HttpListener, metrics_handler
from anabranch.runtime.loop_lag import LoopLag
from anabranch.runtime.metrics import Histogram, Metrics
from anabranch.runtime.process_metrics import ProcessMetrics
from anabranch.runtime.release import software_version
from anabranch.runtime.zk_metrics import ZkMetrics


class Observed:
    """One process's metrics, health and their listener. ``kind`` is broker or controller."""

    def __init__(
        self,
        kind: str,
        node_id: int,
        env: Env,
        metrics: Metrics,
        background: Background,
        zk: ZkStore,
        zk_latency: Histogram | None,
    ) -> None:
        self._env = env
        self._metrics = metrics
        self._background = background
        self._lag = LoopLag(env.clock.monotonic)
        self._zk = ZkMetrics(zk)
        began = env.clock.monotonic()
        self.health = Health(kind, node_id, lambda: env.clock.monotonic() - began)
        self.health.checks += [zookeeper_check(zk), background_check(background)]
        metrics.histograms += [self._lag.rounds, garbage_collection.OF_THIS_PROCESS.pauses]
        if zk_latency is not None:
            metrics.histograms.append(zk_latency)
        metrics.sources += [ProcessMetrics(kind, node_id, software_version()), self._zk]
        self._listener: HttpListener | None = None

    def idle_share(self) -> float:
        """The share of about the last minute in which the event loop had nothing to do."""
        return self._lag.idle_share()

    def check_loop(self, limit_s: float) -> None:
        """Make the process unready when its loop was blocked for longer than ``limit_s`` within the last minute."""
        self.health.checks.append(loop_check(self._lag, limit_s))

    async def listen(self, address: str, limits: HttpLimits) -> None:
        """Bind. Raises ``OSError``."""
        handlers = {METRICS: metrics_handler(self._metrics), LIVE: self.health.live, READY: self.health.ready}
        self._listener = HttpListener(self._env.network, address, handlers, self._background, limits)
        await self._listener.listen()

    async def run(self) -> None:
        """Serve until cancelled."""
        assert self._listener is not None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listener.run)
                nursery.start_soon(self._lag.run)
        finally:
            self._zk.close()
