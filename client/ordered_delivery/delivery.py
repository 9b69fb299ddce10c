"""Ordered delivery as the consumer lives it: the gate, the tasks that feed it, and the callbacks in the user's task.

``poll`` runs in the user's task at the beginning of each round of ``getmany``: coming back for more says that what was
delivered is processed. There the caps of the partitions change, the user is told of keys that go and come, and what was
processed is committed and reported, in this order: flush callback, commit, report; load callback, then delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio
from anyio.abc import TaskGroup

from client.cluster import TopicInfo
from client.config import ConsumerConfig
from client.connections import Connections
from client.coordinator import GroupCoordinator
from client.coordinator_link import CoordinatorLink
from client.errors import ClientClosedError, KafkaError, UnassignedParentError
from client.fetched import Records
from client.listener import PartitionKeyListener
from client.metadata import Metadata
from client.ordered_delivery.barriers import Missing
from client.ordered_delivery.explain import BlockedPartition, explain
from client.ordered_delivery.gate import DeliveryGate
from client.ordered_delivery.group_view import GroupView
from client.ordered_delivery.hand_overs import HandOvers
from client.ordered_delivery.positions_task import (
    Position,
    PositionAnswer,
    PositionExchange,
    build_request,
    read_answer,
)
from client.ordered_delivery.reports import Progress, Reports
from client.ordered_delivery.thresholds import ThresholdQueries
from client.signal import Signal
from client.subscription import PartitionState, Subscription
from protocol.types import TopicPartition
from runtime.env import Env

_PASSED = 2**63 - 1
"""A position past every threshold."""


class OrderedDelivery:
    """Everything a consumer does so that keys keep their order across resizes."""

    def __init__(
        self,
        env: Env,
        config: ConsumerConfig,
        subscription: Subscription,
        metadata: Metadata,
        connections: Connections,
        coordinator: GroupCoordinator | None,
        on_change: Callable[[], None],
    ) -> None:
        self._clock = env.clock
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._coordinator = coordinator
        self._link: CoordinatorLink | None = coordinator.link if coordinator is not None else None
        self._on_change = on_change
        self.listener = PartitionKeyListener()
        self._gate = DeliveryGate()
        self.hand_overs = HandOvers(self._owner_of)
        self._reports = Reports()
        self._queries = ThresholdQueries(env, config, self._gate, metadata, connections, self._evaluate, on_change)
        self._exchange: PositionExchange | None = None
        self._view: GroupView | None = None
        if coordinator is not None:
            self._view = GroupView(coordinator.link, config.retry_backoff_max_ms, config.request_timeout_ms)
            self._exchange = PositionExchange(
                config, coordinator.link, coordinator, self._on_generation, self._on_answer
            )
            coordinator.on_taken = self._bring_up_to_date
            coordinator.polls_positions = self._exchange.is_understood
        self._partitions: Mapping[TopicPartition, PartitionState] = {}
        self._version = -1
        """What of the gate has been carried over to the partitions."""
        self._told_version = -1
        """Up to where the user was told what there was to tell."""
        self._is_telling = False
        self._wants: dict[TopicPartition, int] = {}
        self._unassigned: dict[TopicPartition, int] = {}
        """Partitions waited for that are not assigned here, outside of a group's rebalances; by incarnation."""
        self._unknown_to_group: set[TopicPartition] = set()
        self._unassigned_changed = Signal()
        metadata.on_update(self._on_metadata)

    def start(self, tasks: TaskGroup) -> None:
        """Start the tasks that ask. They sleep until there is something to wait for."""
        tasks.start_soon(self._queries.run)
        if self._exchange is not None:
            tasks.start_soon(self._exchange.run_news)
            tasks.start_soon(self._exchange.run_parked)
            tasks.start_soon(self._ask_group)
        if self._view is not None:
            tasks.start_soon(self._view.run)

    # ------------------------------------------------------------ what happens elsewhere

    def _on_metadata(self) -> None:
        self._gate.on_metadata(self._metadata.cluster.topics)
        if self._gate.is_dirty:
            self._queries.ask()

    def _on_generation(self) -> None:
        self._reports.clear()
        self.hand_overs.new_generation()
        self._gate.await_owners()

    def _on_answer(self, answer: PositionAnswer) -> None:
        self.hand_overs.acknowledged(answer.said_before, self._clock.monotonic())
        for tp, position in answer.wanted.items():
            self._on_position(tp, position)
            self._gate.on_owner(tp, awaits_report=tp in answer.owned)
        self._reports.on_asked(answer.to_report, answer.said_before)
        self._on_change()

    def _on_position(self, tp: TopicPartition, position: Position) -> None:
        """How far the group is, from the coordinator. Of a partition read here it only repeats what was reported."""
        if tp in self._partitions and self._knows_own_positions:
            return  # since it was reported, and perhaps further by now
        if position.position != self._gate.position(tp):
            self.hand_overs.processed(tp, self._clock.monotonic())
        self._gate.on_position(tp, position.incarnation, position.position)

    # ------------------------------------------------------------ the user's task

    def needs_poll(self, state: PartitionState) -> bool:
        """Whether ``poll`` has more to do before another record of this partition is delivered."""
        return (
            self._gate.is_dirty
            or self._gate.version != self._version
            or (state.tp in self._reports.asked and self._is_due(state.tp, state))
        )

    async def poll(self) -> None:
        """Bring callbacks, reports and what may be delivered up to date."""
        self._bring_up_to_date()
        if self._gate.version != self._told_version:
            await self._tell()
        due = self._due()
        if due:
            await self._report(due)
            self._bring_up_to_date()
            if self._gate.version != self._told_version:
                await self._tell()  # assigned by hand, what was reported is known here at once
        if self.hand_overs.passed:
            self._note_released()
        if self._unassigned:
            self._check_policy()

    async def _tell(self) -> None:
        """Run the callbacks that the gate waits for; one that is cancelled runs again in the next round.

        Meanwhile the gate decides nothing, whatever task asks: what a callback is told of is what it began with.
        """
        version = self._gate.version
        self._is_telling = True
        try:
            told = await self._run_callbacks()
        finally:
            self._is_telling = False
        if told:
            self._bring_up_to_date()
        else:
            self._told_version = version

    async def _run_callbacks(self) -> bool:
        """Whether there was anything to tell."""
        revoked = self._gate.keys_revoked()
        if revoked:
            await self._flush(revoked)
            self._gate.revoked(revoked)
        assigned = self._gate.keys_assigned()
        if assigned:
            began = self._clock.monotonic()
            await self.listener.assigned(assigned)
            self.hand_overs.loaded(began, self._clock.monotonic())
            self._gate.announced(assigned)
        return bool(revoked or assigned)

    async def _flush(self, partitions: Sequence[TopicPartition]) -> float:
        """Have the user write down what is kept for keys of these; returns when that was done."""
        began = self._clock.monotonic()
        await self.listener.maybe_revoked(partitions)
        flushed = self._clock.monotonic()
        self.hand_overs.flushed(began, flushed)
        return flushed

    def _note_released(self) -> None:
        """What nothing holds back any more, and what the user was told of, counts as released."""
        untold = set(self._gate.keys_assigned())
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for tp in [tp for tp in self.hand_overs.passed if tp not in untold]:
            state = self._partitions[tp]
            is_read = not state.buffer and 0 <= state.high_watermark <= state.position
            self.hand_overs.released(tp, now, now_ms, is_read=is_read)

    def note_delivered(self, found: Mapping[TopicPartition, Records]) -> None:
        """What was released and is now handed to the user has been handed over."""
        now = self._clock.monotonic()
        for tp in [tp for tp in self.hand_overs.undelivered if tp in found]:
            batch = found[tp].first_batch
            self.hand_overs.delivered(tp, batch.partition_leader_epoch, batch.base_timestamp, now)

    def _evaluate(self) -> None:
        """Nothing while a callback runs, whichever task asks: see ``_tell``."""
        if not self._is_telling:
            self._gate.evaluate()

    def _bring_up_to_date(self) -> None:
        if self._is_telling:
            return
        partitions = self._subscription.partitions
        is_assigned_anew = partitions is not self._partitions
        if is_assigned_anew:
            self._partitions = partitions
            self._gate.assign(partitions, self._topics)
        if self._exchange is not None and self._is_managed:
            self._exchange.settle()
        self._note_rewinds()
        if self._gate.is_dirty:
            self._gate.evaluate()
        if self._gate.version == self._version:
            return
        self._version = self._gate.version
        self.hand_overs.evaluated(self._gate.blocked(), partitions, self._clock.monotonic())
        for tp, state in partitions.items():
            state.max_leader_epoch = self._gate.cap(tp)
        questions = self._gate.questions()
        if questions.positions != self._wants or is_assigned_anew:
            self._wants = questions.positions
            self._want()
        self._queries.ask()

    @property
    def _topics(self) -> Mapping[str, TopicInfo]:
        return self._metadata.cluster.topics

    @property
    def _is_managed(self) -> bool:
        return self._subscription.is_group_managed

    @property
    def _knows_own_positions(self) -> bool:
        """Whether what was reported counts here at once: its commit was taken, or there is no group to ask.

        Else only the coordinator's answer tells that this is a member still.
        """
        return self._config.ordered_delivery_commit_before_report or not self._is_managed

    def _want(self) -> None:
        elsewhere = {tp: incarnation for tp, incarnation in self._wants.items() if tp not in self._partitions}
        if self._view is not None:
            self._view.look_at(elsewhere if self._is_managed else {})
        if self._is_managed:
            assert self._exchange is not None
            self._unassigned = {}
            self._exchange.want(self._wants)
            return
        own = {tp: (inc, self._gate.position(tp)) for tp, inc in self._wants.items() if tp in self._partitions}
        self._reports.on_asked(own, self._reports.number)
        self._unassigned = elsewhere
        self._unknown_to_group &= self._unassigned.keys()
        self._unassigned_changed.set()

    def _note_rewinds(self) -> None:
        """A partition that the user rewound here blocks its children here at once, whatever the group knows."""
        for tp, (incarnation, position) in list(self._gate.positions.items()):
            state = self._partitions.get(tp)
            if state is not None and state.has_position and state.position < position:
                self._gate.on_position(tp, incarnation, state.position)
                self._reports.forget(tp)

    # ------------------------------------------------------------ reports

    def _due(self) -> dict[TopicPartition, Progress]:
        """What is to be reported now. Outside of a settled generation nobody would take it."""
        asked = self._reports.asked
        if not asked:
            return {}
        if self._is_managed and (self._coordinator is None or self._coordinator.settled_generation < 0):
            return {}
        return {
            tp: self._progress(tp, state)
            for tp in asked
            if (state := self._partitions.get(tp)) is not None and self._is_due(tp, state)
        }

    def _is_due(self, tp: TopicPartition, state: PartitionState) -> bool:
        if not state.has_position or not self._gate.has_position(tp):
            return False
        return self._reports.is_due(tp, self._progress(tp, state))

    def _progress(self, tp: TopicPartition, state: PartitionState) -> Progress:
        topic = self._topics.get(tp.topic)
        info = topic.partitions.get(tp.partition) if topic is not None else None
        read_committed = self._config.isolation_level == "read_committed"
        end = state.last_stable_offset if read_committed else state.high_watermark
        return Progress(
            incarnation=state.incarnation,
            position=state.position,
            leader_epoch=state.buffer[0].leader_epoch if state.buffer else state.position_epoch,
            at_end=not state.buffer and 0 <= end <= state.position,
            is_marked=topic is not None and tp.partition >= topic.undeleted_partition_count,
            current_leader_epoch=info.leader_epoch if info is not None else -1,
        )

    async def _report(self, due: dict[TopicPartition, Progress]) -> None:
        """Have the user flush, commit, tell. What fails is tried again with the next round."""
        flushed = await self._flush(list(due))
        due = {tp: progress for tp, progress in due.items() if self._is_at(tp, progress)}
        if not due:
            return
        told: set[TopicPartition] = set()
        if self._coordinator is not None and self._config.ordered_delivery_commit_before_report:
            for tp in due:
                self._reports.forget(tp)  # the commit may tell it even if nobody here hears of that
            try:
                told = await self._coordinator.commit_news(due)
            except KafkaError:
                return
        for tp, progress in due.items():
            self._reports.said(tp, progress)
            self.hand_overs.processed(tp, flushed)
            if self._knows_own_positions:
                self._gate.on_position(tp, progress.incarnation, progress.position)
        if self._is_managed:
            assert self._exchange is not None
            positions = {tp: Position(progress.incarnation, progress.position) for tp, progress in due.items()}
            self._exchange.report(positions, self._reports.number, told)
            self.hand_overs.reported(self._reports.number, flushed)
            if told >= due.keys():
                self.hand_overs.acknowledged(self._reports.number, self._clock.monotonic())

    def _is_at(self, tp: TopicPartition, progress: Progress) -> bool:
        """Whether the user is where that says still: the callback, or another task, may have gone elsewhere."""
        state = self._subscription.partitions.get(tp)
        if state is None or not state.has_position:
            return False
        return (state.incarnation, state.position) == (progress.incarnation, progress.position)

    # ------------------------------------------------------------ partitions assigned by hand

    async def _ask_group(self) -> None:
        """Where the group is in partitions that others read: asked for again and again, nobody can be woken for it."""
        link = self._link
        assert link is not None
        while True:
            wants = self._unassigned
            if not wants:
                await self._unassigned_changed.wait()
                continue
            try:
                response = await link.request(build_request(link.group_id, wants=wants, reports={}))
                answer = read_answer(response, wants)
            except KafkaError as error:
                if error.code.retriable:
                    link.moved()
                answer = None
            except ClientClosedError:
                return
            if answer is not None:
                known = {tp: position for tp, position in answer.wanted.items() if position.position >= 0}
                self._unknown_to_group = wants.keys() - known.keys()
                for tp, position in known.items():
                    self._on_position(tp, position)
                self._on_change()
            await anyio.sleep(self._config.retry_backoff_max_ms / 1000)

    def _check_policy(self) -> None:
        """What to do about a partition that waits for one that nobody is known to read."""
        nobody = [tp for tp in self._unassigned if self._link is None or tp in self._unknown_to_group]
        if not nobody:
            return
        if self._config.ordered_delivery_unassigned_parent == "ignore":
            for tp in nobody:
                self._gate.on_position(tp, self._unassigned[tp], _PASSED)
            if self._gate.is_dirty:
                self._on_change()
            return
        still_asked = self._gate.questions().log_starts
        for blocked in self._gate.blocked():
            for barrier in blocked.barriers:
                if barrier.missing is Missing.POSITION and barrier.on in nobody and barrier.on not in still_asked:
                    raise UnassignedParentError(blocked.tp, barrier.on)

    # ------------------------------------------------------------ for people

    def explain_blocked(self) -> tuple[BlockedPartition, ...]:
        """The partitions held back and what each waits for."""
        self._bring_up_to_date()
        return explain(self._gate.blocked(), self._owner_of, self._committed)

    def metrics(self) -> dict[str, float]:
        """What resizes cost, by name."""
        self._bring_up_to_date()
        return self.hand_overs.values()

    def _owner_of(self, tp: TopicPartition) -> str | None:
        if self._coordinator is None or self._view is None:
            return None
        return self._coordinator.owner_of(tp) or self._view.owner_of(tp)

    def _committed(self, tp: TopicPartition) -> int:
        return self._view.committed(tp) if self._view is not None else -1
