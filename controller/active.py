"""The active controller: one queue of events, and one task that handles them and sends requests to brokers.

The events that are in the queue are handled together, and lead to one batch of requests. An urgent event has a batch of
its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
import trio

from anabranch.controller import autoscale_rounds, view
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.controller_election import Office, wait_until_deposed
from anabranch.controller.events import (
    AdminCall,
    AutoscaleDue,
    BrokerAnswered,
    BrokersChanged,
    ConfigsChanged,
    DeletionsChanged,
    DrainsDue,
    Event,
    EventQueue,
    FeaturesChanged,
    FirstLeaderEpochChanged,
    LeadersDue,
    LogDirsFailed,
    Mark,
    QuestionsDue,
    ReadAgainDue,
    RefusalsDue,
    ResizesDue,
    RetainOrdersFound,
    TopicChanged,
    TopicListChanged,
)
from anabranch.controller.giving_up import give_up
from anabranch.controller.handlers import HANDLERS, LOADING, Handler
from anabranch.controller.image import ClusterImage, LiveBroker
from anabranch.controller.metrics import ControllerMetrics
from anabranch.controller.outcome import AdviceWait, Outcome, ResponseWait
from anabranch.controller.reads.written_topics import written_topics
from anabranch.controller.request_batch import BrokerRequest, RequestBatch, inter_broker_endpoint
from anabranch.controller.resize import draining, unread_expiry
from anabranch.controller.resize.waits import Round, changed_waits
from anabranch.controller.senders import Senders
from anabranch.controller.store import ControllerMovedError, GuardedStore, ImageStaleError
from anabranch.ordered_resize.explain import Wait
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.error_responses import not_controller
from anabranch.protocol.request_kinds import StockCheck
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env, SessionState, ZkError
from anabranch.runtime.pauses import with_pauses
from anabranch.runtime.progress_reader import ProgressReader
from anabranch.runtime.turns import pause
from anabranch.zk_schemas.broker_registration import Endpoint

logger = structlog.get_logger(__name__)
FIRST_LEADER_CHECK_S = 5
REFUSED_RETRY_S = 1.0
"""Pause before the controller repeats requests that a broker refused."""
RESIZE_RETRY_S = 0.005
"""Pause before the controller asks a leader again for the start or end offset of its log."""
RESIZE_RETRY_GROWTH = 1.5
"""Each pause is longer than the previous pause by this factor."""
STEADY_RETRY_S = 0.05
"""Pause before brokers are asked again whether stock producers have followed an announced split."""
MAX_RESIZE_RETRY_S = 0.5
"""The longest pause before a leader is asked again.

If no leader is asked for this time, the next pause is the shortest again.
"""
RELOAD_BACKOFF_S = 0.1
"""Pause before the controller reads the cluster again because another process changed a znode."""
READ_AGAIN_S = 30.0
"""Pause before the controller reads the cluster again because it gave up a step. The step may succeed later."""


class ActiveController:
    """One term of office. ``run`` ends with ``ControllerMovedError``; ``submit`` takes requests until then."""

    def __init__(
        self,
        env: Env,
        config: ControllerConfig,
        office: Office,
        metrics: ControllerMetrics,
        background: Background | None = None,
    ) -> None:
        assert env.zk is not None
        self._env = env
        self._zk = env.zk
        self._config = config
        self._office = office
        self._metrics = metrics
        self._background = background or Background(env.clock, propagate_bugs=env.propagate_bugs)
        self._events = EventQueue(env.clock.monotonic)
        client_id = f"controller-{config.controller_id}"
        timeout_s = config.controller_socket_timeout_ms / 1000
        self._senders = Senders(env.network, client_id, timeout_s, self._answered, self._background)
        self._reader = ProgressReader(env, client_id, self._endpoint, timeout_s)
        self._store = GuardedStore(env.zk, office.epoch_version)
        self._context = self._new_context()
        self.waits: dict[TopicPartition, Wait] = {}
        """The reason why each partition marked for deletion still waits."""
        self.waiting_since: dict[TopicPartition, float] = {}
        """The time at which each of ``waits`` began, in seconds of the monotonic clock."""
        self._tasks: trio.Nursery
        self._progress = trio.Event()
        self._undecided: dict[AdminCall, None] = {}
        self._over = False

    @property
    def queue_size(self) -> int:
        """Number of events that wait for the controller."""
        return self._events.size

    @property
    def image(self) -> ClusterImage:
        return self._context.image

    async def run(self) -> None:
        """Decide until another controller takes over. Always raises; ``ControllerMovedError`` is the normal end."""
        unregister = self._zk.on_state(self._session_changed)
        ending: list[Exception] = []
        try:
            async with trio.open_nursery() as nursery:
                self._tasks = nursery
                self._senders.open(nursery)
                self._reader.open(nursery)
                for duty in (
                    self._handle_events,
                    self._watch_office,
                    self._remind_of_leaders,
                    self._remind_of_refusals,
                    self._remind_of_resizes,
                    self._remind_of_given_up,
                    self._watch_draining,
                    self._warn_of_retention,
                    self._remind_of_autoscaling,
                ):
                    nursery.start_soon(self._until_over, duty, ending, nursery.cancel_scope)
        finally:
            self._over = True
            self._publish_progress()
            unregister()
            self._refuse_undecided()
        raise ending[0]

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        broker = self.image.brokers.get(broker_id)
        return None if broker is None else inter_broker_endpoint(broker, self._config.inter_broker_listener_name)

    def submit(self, api_key: int, body: Any, version: int) -> AdminCall:
        """Put a request into the queue, after all earlier events. ``answer`` waits for the response."""
        call = AdminCall(api_key, body, version)
        if self._over:
            call.decided.set()
            return call
        self._undecided[call] = None
        self._events.put(call)
        return call

    async def decision(self, call: AdminCall) -> None:
        """Return once a request is decided. If this is cancelled, the request is given up, unless it has begun."""
        try:
            await call.decided.wait()
        finally:
            self._undecided.pop(call, None)
            if not call.decided.is_set():
                call.give_up()

    async def answer(self, call: AdminCall) -> Any:
        """The response to a request, once the request is decided and carried out, or has timed out."""
        await self.decision(call)
        if call.outcome is None:
            return await with_pauses(not_controller(call.api_key, call.body))
        outcome: Outcome = call.outcome
        began, limit_s = self._env.clock.monotonic(), max(outcome.timeout_ms, 0) / 1000
        await self._hold([wait for wait in outcome.waits if not isinstance(wait, AdviceWait)], limit_s)
        # The broker that forwards a request counts the same time, and would answer first.
        await self._hold(outcome.waits, began + limit_s / 2 - self._env.clock.monotonic())
        for wait in outcome.waits:
            if not wait.condition(self._context):
                wait.time_out()
        return outcome.response

    async def _hold(self, waits: Sequence[ResponseWait], limit_s: float) -> None:
        """Return once all ``waits`` hold, the term is over, or the time is."""
        with trio.move_on_after(max(limit_s, 0)):
            while not self._over and not all(wait.condition(self._context) for wait in waits):
                await self._progress.wait()

    async def _until_over(
        self, duty: Callable[[], Awaitable[None]], ending: list[Exception], scope: trio.CancelScope
    ) -> None:
        try:
            await duty()
        except Exception as error:
            ending.append(error)
            scope.cancel()

    async def _watch_office(self) -> None:
        await wait_until_deposed(self._zk)
        raise ControllerMovedError("the znode /controller is gone, or belongs to another controller")

    async def _remind_of_leaders(self) -> None:
        """Kafka's schedule for ``auto.leader.rebalance.enable``."""
        if not self._config.auto_leader_rebalance_enable:
            return
        await trio.sleep(FIRST_LEADER_CHECK_S)
        while True:
            self._events.put(LeadersDue())
            await trio.sleep(self._config.leader_imbalance_check_interval_seconds)

    async def _remind_of_refusals(self) -> None:
        while True:
            await trio.sleep(REFUSED_RETRY_S)
            if self.image.refused:
                self._events.put(RefusalsDue())

    async def _remind_of_resizes(self) -> None:
        pause_s = RESIZE_RETRY_S
        while True:
            with trio.move_on_after(MAX_RESIZE_RETRY_S) as waiting:
                await self._events.wait_soon()
            if waiting.cancelled_caught:
                pause_s = RESIZE_RETRY_S
                await self._events.wait_soon()
            steady, self._events.is_steady = self._events.is_steady, False
            await trio.sleep(STEADY_RETRY_S if steady else pause_s)
            self._events.put(QuestionsDue())
            if steady:
                continue
            pause_s = min(pause_s * RESIZE_RETRY_GROWTH, MAX_RESIZE_RETRY_S)

    async def _remind_of_given_up(self) -> None:
        while True:
            await self._events.wait_given_up()
            await trio.sleep(READ_AGAIN_S)
            self._events.put(ReadAgainDue())

    async def _watch_draining(self) -> None:
        """Check partitions marked for deletion periodically, because no event reports that one is empty."""
        holders = draining.Holders()
        while True:
            await trio.sleep(self._config.partition_drain_check_interval_ms / 1000)
            if any(view.marked(topic) for topic in self.image.topics.values()):
                found = Round({}, set())
                with self._background.guard("partition-drain", passes=ControllerMovedError):
                    found = await draining.drain(lambda: self._context, self._reader, holders)
                for wait in changed_waits(self.waits, found.waits):
                    logger.info("resize.waits", **wait)
                self._note_waits(draining.waits_after(self.image, self.waits, found))
                self._events.put(DrainsDue())
            elif self.waits:
                self._note_waits({})

    def _note_waits(self, waits: dict[TopicPartition, Wait]) -> None:
        now = self._env.clock.monotonic()
        since = {tp: self.waiting_since[tp] for tp, wait in waits.items() if _is_same(wait, self.waits.get(tp))}
        self.waits, self.waiting_since = waits, {tp: since.get(tp, now) for tp in waits}

    async def _warn_of_retention(self) -> None:
        while True:
            await trio.sleep(self._config.retention_warning_interval_ms / 1000)
            with self._background.guard("retention-warnings", passes=ControllerMovedError):
                found = await unread_expiry.look(self._context, self._reader, self._env.clock.now_ms())
                if found:
                    self._events.put(RetainOrdersFound(tuple(found)))

    async def _remind_of_autoscaling(self) -> None:
        while True:
            await trio.sleep(self._config.autoscale_check_interval_ms / 1000)
            if autoscale_rounds.has_work(self.image):
                self._events.put(AutoscaleDue())

    async def _handle_events(self) -> None:
        await self._load()
        while True:
            await self._handle_all(await self._events.take_all())
            await self._handle_urgent()
            self._flush()

    async def _handle_all(self, events: list[Event]) -> None:
        """Handle events in order. Then nothing here refers to them: a request and its response may be large."""
        for event in events:
            await self._handle_urgent()
            await self._handle(event)
            if isinstance(event, AdminCall) and not event.decided.is_set():
                await pause()  # a slice that writes nothing has waited for nothing

    async def _handle_urgent(self) -> None:
        """Handle urgent events, which may need elections, before all others. Send their requests at once."""
        while (event := self._events.urgent()) is not None:
            await self._handle(event)
            self._flush()

    async def _handle(self, event: Event) -> None:
        times = self._metrics.event_times
        times.queue_ms.observe(self._events.waited_s(event) * 1000)
        began = self._env.clock.monotonic()
        await self._handle_or_give_up(event)
        took_ms = (self._env.clock.monotonic() - began) * 1000
        times.processing_ms.observe(took_ms)
        logger.debug("event.handled", kind=type(event).__name__, took_ms=round(took_ms, 3))

    async def _ask_leaders(self, call: AdminCall) -> None:
        """Ask leaders which topics have records, then queue the request again with the answers."""
        if call.is_given_up:
            return
        limit_ms = self._config.stock_admin_check_timeout_ms
        if call.body.timeout_ms > 0:  # the broker that forwards the request counts the whole time
            limit_ms = min(limit_ms, call.body.timeout_ms / 2)
        call.answers = ({},)
        try:
            call.answers = (await written_topics(self.image, self._reader, call.body, limit_ms / 1000),)
        except Exception as error:
            self._background.failed_once("written-topics", "", error)
        self._events.put(call)

    async def _handle_or_give_up(self, event: Event) -> None:
        if isinstance(event, AdminCall) and _needs_log_ends(event):
            self._tasks.start_soon(self._ask_leaders, event)
            return
        try:
            await self._proceed(HANDLERS[type(event)], event)
        except ImageStaleError as error:
            logger.warning("cluster.read_again", reason=str(error))
            if isinstance(event, AdminCall):
                self._events.put(event)
            await trio.sleep(RELOAD_BACKOFF_S)
            await self._load()
        except ZkError as error:
            give_up(self._context, type(event).__name__, error)

    async def _proceed(self, handler: Handler, event: Event | None = None) -> None:
        """Read the facts, then carry out the handler's decisions. ``event`` is None while the cluster is loaded."""
        found = await handler.read(self._context, event)
        await carry_out_all(self._context, handler.decide(self._context, event, found))

    async def _load(self) -> None:
        """Read the whole cluster, apply due changes, and send everything to every live broker."""
        while True:
            for broker_id in list(self.image.brokers):
                self._senders.remove(broker_id)
            self._context = self._new_context(self.image)
            try:
                await self._read_all()
                self._events.put(ResizesDue())
                break
            except ImageStaleError as error:
                logger.warning("cluster.read_again", reason=str(error))
                await trio.sleep(RELOAD_BACKOFF_S)
        image = self.image
        logger.info(
            "cluster.loaded",
            controller_epoch=image.controller_epoch,
            brokers=len(image.brokers),
            topics=len(image.topics),
        )
        self._flush()

    async def _read_all(self) -> None:
        for event, handler in LOADING:
            try:
                await self._proceed(handler)
            except ZkError as error:
                give_up(self._context, event.__name__, error)

    def _new_context(self, before: ClusterImage | None = None) -> Context:
        """A context with a new image. Of the image ``before`` it has only ``suspects`` and ``configs``."""
        config = self._config
        image = ClusterImage(config.controller_id, self._office.controller_epoch)
        if before is not None:
            image.number, image.suspects, image.configs = before.number + 1, before.suspects, before.configs
        batch = RequestBatch(image, config.inter_broker_listener_name)
        return Context(
            config,
            self._env.rng,
            image,
            self._store,
            batch,
            self._senders,
            self._events,
            self._metrics,
            self._env.clock,
        )

    def _flush(self) -> None:
        """Send the requests of the batch."""
        named = self._context.batch.topics()
        requests = self._context.batch.build()
        if requests:
            flush = self._senders.send(requests)
            for name in named & self.image.topics.keys():
                self.image.topics[name].flush = flush
        self._publish_progress()

    def _answered(self, broker: LiveBroker, request: BrokerRequest, response: Any) -> None:
        self._events.put(BrokerAnswered(broker, request, response))
        self._publish_progress()

    def _publish_progress(self) -> None:
        progress, self._progress = self._progress, trio.Event()
        progress.set()

    def _session_changed(self, state: SessionState) -> None:
        """Read everything again after a reconnect, because watches may be lost with the connection."""
        if state is not SessionState.CONNECTED:
            self._senders.suspend()
            return
        self._senders.resume()
        marks: list[Mark] = [
            BrokersChanged(),
            TopicListChanged(),
            DeletionsChanged(),
            ConfigsChanged(),
            LogDirsFailed(),
            FeaturesChanged(),
            FirstLeaderEpochChanged(),
        ]
        for mark in marks:
            self._events.put(mark)
        for name in sorted(self.image.topics):
            self._events.put(TopicChanged(name))

    def _refuse_undecided(self) -> None:
        for call in self._undecided:
            call.decided.set()


def _needs_log_ends(call: AdminCall) -> bool:
    """Whether leaders have to answer before the request is decided: it may be refused for topics with records."""
    if call.api_key != ApiKey.CREATE_PARTITIONS or call.answers or call.is_given_up:
        return False
    return bool(call.body.stock_check == StockCheck.RECORDS)


def _is_same(wait: Wait, before: Wait | None) -> bool:
    """Whether a partition still waits for the same reason and group, even if the group has made progress."""
    return before is not None and (wait.why, wait.group) == (before.why, before.group)
