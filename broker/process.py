"""The broker process: start, serve, stop."""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog
import trio

from anabranch.broker.config import BrokerConfig, ListenerAddress
from anabranch.broker.dynamic_config import DynamicConfig
from anabranch.broker.link.registration import Registrar
from anabranch.broker.net.dispatch import Dispatcher
from anabranch.broker.net.server import Server
from anabranch.broker.node import Node
from anabranch.broker.observed.listener import offer_metrics
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.controlled_shutdown import ControlledShutdownRequest
from anabranch.runtime.env import Env, NodeExistsError, NoNodeError, ZkConnectionError, ZkSessionExpiredError, ZkStore
from anabranch.runtime.metrics import Histogram
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.cluster_id import ClusterId

logger = structlog.get_logger(__name__)

_CONTROLLED_SHUTDOWN_VERSION = 3
_ZK_PAUSE_S = 1.0


async def run(
    config: BrokerConfig,
    env: Env,
    *,
    on_ready: Callable[[Mapping[str, ListenerAddress]], None] | None = None,
    zk_latency: Histogram | None = None,
) -> None:
    """Serve until cancelled. Then let other brokers lead, flush and close.

    ``zk_latency`` is the histogram of the session's requests. ``on_ready`` gets the advertised listeners once the
    broker is registered. Raises ``LogDirError``, ``OSError`` for a listener that cannot be bound,
    ``DuplicateBrokerError``, ``IncompatibleFeaturesError``, ``ZkError``.
    """
    assert env.zk is not None
    zk = env.zk
    cluster_id, dynamic = await read_cluster(config, env, zk)
    async with trio.open_nursery() as outer:
        services = trio.CancelScope(shield=True)
        node = await outer.start(_run_services, services, config, dynamic, env, zk, cluster_id)
        try:
            await _serve(node, on_ready, zk_latency)
        finally:
            services.cancel()


async def _run_services(
    scope: trio.CancelScope,
    config: BrokerConfig,
    dynamic: DynamicConfig,
    env: Env,
    zk: ZkStore,
    cluster_id: str,
    *,
    task_status: trio.TaskStatus[Node],
) -> None:
    """Run the broker's own tasks. After a cancellation they run until the shutdown is complete."""
    with scope:
        async with trio.open_nursery() as nursery:
            node = Node(config, dynamic, env, zk, cluster_id, nursery)
            nursery.start_soon(node.purgatory.run)
            nursery.start_soon(node.background.keep, "dynamic-config", dynamic.run)
            await nursery.start(node.link.controller.run)
            task_status.started(node)


async def _serve(
    node: Node, on_ready: Callable[[Mapping[str, ListenerAddress]], None] | None, zk_latency: Histogram | None
) -> None:
    dispatcher = Dispatcher()
    node.advertised = dispatcher.advertised
    server = Server(node, dispatcher, node.background)
    await offer_metrics(node, server, zk_latency)
    await node.logs.start(node.dynamic.log_config)
    try:
        node.nursery.start_soon(node.logs.run)
        node.nursery.start_soon(node.groups.run)
        node.nursery.start_soon(node.background.keep, "stock-consumer-facts", node.stock_consumer_facts.run)
        node.nursery.start_soon(node.background.keep, "isr-changes", node.hosted.isr_changes.run)
        node.nursery.start_soon(node.background.keep, "log-dir-failures", node.link.log_dir_failures.run)
        # A replica that falls behind leaves the ISR within one and a half times the allowed lag.
        node.nursery.start_soon(node.replicas.watch_lag, node.config.values.replica_lag_time_max_ms / 2000)
        registration = Registrar(
            node.link.zk,
            node.config.broker_id,
            lambda: describe(node.config, server.advertised(), node.env.clock.now_ms()),
            node.link.features.load,
            wait_s=2 * node.config.values.zookeeper_session_timeout_ms / 1000,
        )
        node.link.registration = registration
        node.dynamic.on_values_changed.append(registration.refresh)
        # While the session of the previous process lasts, this process gets no topics, and so accepts no clients.
        await registration.wait_for_old_session()
        await server.listen()
        node.nursery.start_soon(server.run)
        await registration.register()
        node.link.registered.set()
        advertised = server.advertised()
        listeners = [str(address) for address in advertised.values()]
        logger.info("broker.ready", broker_id=node.config.broker_id, listeners=listeners)
        if on_ready is not None:
            on_ready(advertised)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(registration.run)
                nursery.start_soon(node.link.features.run)
                nursery.start_soon(node.background.keep, "registered-controllers", node.link.controllers.run)
        finally:
            with trio.CancelScope(shield=True):
                await _stop(node, server, registration)
    finally:
        with trio.CancelScope(shield=True):
            await node.logs.shutdown()
        logger.info("broker.stopped", broker_id=node.config.broker_id)


async def _stop(node: Node, server: Server, registration: Registrar) -> None:
    logger.info("broker.stopping", broker_id=node.config.broker_id)
    if node.config.values.controlled_shutdown_enable:
        await hand_over(node, registration.epoch)
    server.close_listeners()
    node.groups.close()
    node.replicas.close()
    await node.purgatory.close()
    await registration.remove()


async def hand_over(node: Node, broker_epoch: int) -> bool:
    """Ask the controller to move the leaders away (ControlledShutdown); returns whether it did."""
    values = node.config.values
    request = ControlledShutdownRequest(broker_id=node.config.broker_id, broker_epoch=broker_epoch)
    backoff_s = values.controlled_shutdown_retry_backoff_ms / 1000
    timeout_s = min(values.request_timeout_ms / 1000, backoff_s)
    for attempt in range(1 + values.controlled_shutdown_max_retries):
        if attempt:
            await trio.sleep(backoff_s)
        if node.link.controller.address is None or (attempt and _nobody_can_take_over(node)):
            break
        try:
            response = await node.link.controller.request(
                request,
                _CONTROLLED_SHUTDOWN_VERSION,
                timeout_s,
                lambda answer: answer.error_code == ErrorCode.NOT_CONTROLLER,
            )
        except KafkaError as error:
            logger.warning("broker.controlled_shutdown_failed", error=str(error))
            continue
        if response.error_code == ErrorCode.NONE and not response.remaining_partitions:
            return True
    logger.warning("broker.stops_with_leaders", broker_id=node.config.broker_id)
    return False


def _nobody_can_take_over(node: Node) -> bool:
    """Whether no partition led here has another live in-sync replica, so that another request would be useless."""
    own_id = node.config.broker_id
    return not any(
        replica != own_id and replica in node.metadata.brokers
        for partition in node.replicas.all()
        if partition.is_leader
        for replica in partition.isr
    )


async def read_cluster(config: BrokerConfig, env: Env, zk: ZkStore) -> tuple[str, DynamicConfig]:
    """Read the cluster's id and the dynamic configs, which must be known before anything starts.

    If the connection is lost meanwhile, the read is repeated until ``zookeeper.connection.timeout.ms`` is over
    (default: the session timeout); then raises ``ZkError``. The same key limits the wait for the first connection.
    """
    limit_ms = config.values.zookeeper_start_timeout_ms
    give_up = env.clock.monotonic() + limit_ms / 1000
    while True:
        try:
            for path in paths.PERSISTENT:
                with suppress(NodeExistsError):
                    await zk.create(path, b"", make_parents=True)
            cluster_id = await get_or_create_cluster_id(env, zk)
            dynamic = DynamicConfig(config, zk)
            await dynamic.load()
            return cluster_id, dynamic
        except (ZkConnectionError, ZkSessionExpiredError) as error:
            if env.clock.monotonic() >= give_up:
                raise
            logger.warning("broker.start_delayed", error=str(error))
            await trio.sleep(_ZK_PAUSE_S)


async def get_or_create_cluster_id(env: Env, zk: ZkStore) -> str:
    """The id in ``/cluster/id``, created by the first broker."""
    try:
        return ClusterId.decode(ClusterId.PATH, (await zk.get(ClusterId.PATH)).data).cluster_id
    except NoNodeError:
        pass
    unique = uuid.UUID(int=env.rng.getrandbits(128), version=4)
    candidate = ClusterId(urlsafe_b64encode(unique.bytes).rstrip(b"=").decode())
    with suppress(NodeExistsError, ZkConnectionError):
        await zk.create(ClusterId.PATH, candidate.encode())
    return ClusterId.decode(ClusterId.PATH, (await zk.get(ClusterId.PATH)).data).cluster_id


def describe(config: BrokerConfig, advertised: Mapping[str, ListenerAddress], now_ms: int) -> BrokerRegistration:
    """Returns the registration of a broker whose clients connect to ``advertised``."""
    return BrokerRegistration(
        endpoints=[Endpoint(entry.name, entry.host, entry.port) for entry in advertised.values()],
        security_protocols={name: config.security_protocols[name] for name in advertised},
        rack=config.values.broker_rack,
        features=dict(config.values.features),
        timestamp_ms=now_ms,
    )
