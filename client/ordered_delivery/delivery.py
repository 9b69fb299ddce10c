"""Ordered delivery in a consumer: the gates, the tasks that feed them, and the callbacks in the user's task.

``poll`` runs in the user's task at the beginning of each round of ``getmany``. A new round means that the delivered
records are processed. ``poll`` changes the limits of the partitions, runs the callbacks for keys that move, and commits
and reports processed records. The order is: flush callback, commit, report; load callback, then delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import anyio

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import ClientClosedError, KafkaError, UnassignedParentError
from anabranch.client.group.group_view import GroupView
from anabranch.client.group.listener import PartitionKeyListener
from anabranch.client.group.membership import GroupMembership
from anabranch.client.net.connections import Connections
from anabranch.client.net.metadata import Metadata
from anabranch.client.ordered_delivery.blocked_partition import BlockedPartition
from anabranch.client.ordered_delivery.hand_over_metrics import HandOvers
from anabranch.client.ordered_delivery.positions_task import (
    AnsweredPosition,
    PositionAnswer,
    PositionExchange,
    build_request,
    read_answer,
)
from anabranch.client.ordered_delivery.queries import GateQueries
from anabranch.client.ordered_delivery.reports import ProcessedUpTo, Reports
from anabranch.client.ordered_delivery.topic_gates import Questions, TopicGates
from anabranch.client.subscription.fetched_batch import Records
from anabranch.client.subscription.subscription import AssignedPartition, Subscription
from anabranch.client.tasks import Tasks
from anabranch.ordered_resize.gate import GateState
from anabranch.protocol.sentinels import NO_INCARNATION, NO_OFFSET
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal

_PASSED = 2**63 - 1
"""A position past every threshold."""


def awaited_offsets(
    blocked: Iterable[BlockedPartition], with_records: Container[TopicPartition]
) -> dict[TopicPartition, int]:
    """By partition, the highest known offset that the group must reach before blocked records are delivered."""
    awaited: dict[TopicPartition, int] = {}
    for wait in (wait for one in blocked if one.partition in with_records for wait in one.waits_for):
        if wait.position < wait.until:
            awaited[wait.on] = max(wait.until, awaited.get(wait.on, NO_OFFSET))
    return awaited


class OrderedDelivery:
    """The part of a consumer that keeps the order of keys across resizes."""

    def __init__(
        self,
        env: Env,
        config: ConsumerConfig,
        subscription: Subscription,
        metadata: Metadata,
        connections: Connections,
        coordinator: GroupMembership | None,
        on_change: Callable[[], None],
    ) -> None:
        self._clock = env.clock
        self.config = config
        self._subscription = subscription
        self._metadata = metadata
        self._coordinator = coordinator
        self._link = coordinator.link if coordinator is not None else None
        self._on_change = on_change
        self.listener = PartitionKeyListener()
        self._gates = TopicGates()
        self.hand_overs = HandOvers()
        self._reports = Reports()
        self._queries = GateQueries(env, config, self._gates, self._questions, metadata, connections, on_change)
        self._exchange: PositionExchange | None = None
        self._view: GroupView | None = None
        if coordinator is not None:
            self._view = GroupView(coordinator.link, config.retry_backoff_max_ms, config.request_timeout_ms)
            self._exchange = PositionExchange(
                config, coordinator.link, coordinator, self._on_generation, self._on_answer
            )
            coordinator.on_taken = self._bring_up_to_date
            coordinator.polls_positions = self._exchange.is_understood
        self._partitions: Mapping[TopicPartition, AssignedPartition] = {}
        self._version = -1
        """The version of the gates from which the partitions' limits were computed."""
        self._blocked_at: dict[TopicPartition, int] = {}
        """Partitions whose next batch may be above the limit, and the version of their position."""
        self._revoked: dict[TopicPartition, None] = {}
        """Partitions whose keys the user has not flushed yet."""
        self._wants: dict[TopicPartition, int] = {}
        self._awaited: dict[TopicPartition, int] = {}
        """By awaited partition, the offset that the group must reach."""
        self._unassigned: dict[TopicPartition, int] = {}
        """With manual assignment: the incarnations of awaited partitions that this consumer does not read."""
        self._unknown_to_group: set[TopicPartition] = set()
        self._unassigned_changed = Signal()
        metadata.on_update(self._on_metadata)

    def start(self, tasks: Tasks) -> None:
        """Start the tasks that send questions. The tasks sleep until there is something to wait for."""
        tasks.start_soon(self._queries.run)
        if self._exchange is not None:
            tasks.start_soon(self._exchange.run_news)
            tasks.start_soon(self._exchange.run_parked)
            tasks.start_soon(self._ask_group)
        if self._view is not None:
            tasks.start_soon(self._view.run)

    # ------------------------------------------------------------ events from elsewhere

    def on_blocked(self, state: AssignedPartition) -> None:
        """Note that a fetched batch is above the limit of its partition."""
        if state.tp not in self._blocked_at:
            self._blocked_at[state.tp] = state.version
            self._version = -1  # the records wait from now on
            self._queries.ask()

    def _on_metadata(self) -> None:
        version = self._gates.version
        self._gates.on_metadata(self._metadata.cluster.topics)
        if self._gates.version != version:
            self._queries.ask()

    def _on_generation(self) -> None:
        self._reports.clear()
        self.hand_overs.new_generation()
        self._gates.on_new_generation()

    def _on_answer(self, answer: PositionAnswer) -> None:
        self.hand_overs.acknowledged(answer.report_number, self._clock.monotonic())
        if any(position.position < 0 for position in answer.wanted.values()):
            self._gates.settle()  # epochs satisfied before this answer stay passed, except those that it revokes
        for tp, position in answer.wanted.items():
            if self._is_present(tp, position.incarnation):
                self._on_position(tp, position)
                self._gates.on_owner(tp, is_owned=tp in answer.owned)
        known = {tp: (asked.incarnation, asked.position) for tp, asked in answer.to_report.items()}
        self._reports.on_asked(known, answer.report_number)
        self._on_change()

    def _is_present(self, tp: TopicPartition, incarnation: int) -> bool:
        """Whether an answer is about the present incarnation. The topic may have been created again since the poll."""
        known = self._gates.incarnation(tp)
        return incarnation == known or NO_INCARNATION in (incarnation, known)

    def _on_position(self, tp: TopicPartition, position: AnsweredPosition) -> None:
        """Store the group's position that the coordinator sent.

        For a partition of this member, the position only repeats a report of this member.
        """
        self._gates.on_rewinds(tp, position.rewinds)
        if tp in self._partitions and self._knows_own_positions:
            return  # this member has known the position since its report, and the position may be higher by now
        if position.position != self._gates.position(tp):
            self.hand_overs.processed(tp, self._clock.monotonic())
        self._gates.on_position(tp, position.position)

    def _fronts(self) -> dict[TopicPartition, int]:
        """The leader epochs of the blocked batches."""
        states = {tp: state for tp in self._blocked_at if (state := self._partitions.get(tp)) is not None}
        return {tp: state.buffer[0].leader_epoch for tp, state in states.items() if state.is_blocked}

    def _questions(self, recheck: bool) -> Questions:
        return self._gates.questions(self._fronts(), recheck=recheck)

    # ------------------------------------------------------------ the user's task

    def needs_poll(self, state: AssignedPartition) -> bool:
        """Whether ``poll`` has more to do before another record of this partition is delivered."""
        asked = self._reports.asked
        return self._gates.version != self._version or bool(
            asked and state.tp in asked and self._is_due(state.tp, state)
        )

    async def poll(self) -> None:
        """Bring callbacks, reports and delivery limits up to date."""
        await self._call_back()
        due = self._due()
        if due:
            await self.report_positions(due)
            await self._call_back()  # with manual assignment a report counts here at once
        if self.hand_overs.passed:
            self._note_released()
        if self._unassigned:
            self._check_policy()

    async def _call_back(self) -> None:
        """Run the callbacks that are due. A callback that is cancelled runs again in the next round."""
        while True:
            self._bring_up_to_date()
            if self._revoked:
                revoked = list(self._revoked)
                await self._flush(revoked)
                for tp in revoked:
                    self._revoked.pop(tp, None)
            elif due := self._to_load():
                called = {tp: self._gates.load_called(tp) for tp in due}
                began = self._clock.monotonic()
                await self.listener.assigned(due)
                self.hand_overs.loaded(began, self._clock.monotonic())
                for tp in due:
                    self._gates.load_returned(tp, called[tp])
            else:
                return

    def _to_load(self) -> list[TopicPartition]:
        """Check the blocked batches. Returns the partitions that wait for the user's load callback."""
        due = []
        for tp, version in list(self._blocked_at.items()):
            state = self._partitions.get(tp)
            if state is None or not state.has_blocked:
                del self._blocked_at[tp]
                continue
            if version != state.version:
                self._gates.restart(tp)
                self._blocked_at[tp] = state.version
            if state.is_blocked and self._gates.look(tp, state.buffer[0].leader_epoch) is GateState.DUE:
                due.append(tp)
        return due

    async def _flush(self, partitions: Sequence[TopicPartition]) -> float:
        """Call the user's flush callback for these partitions. Returns the time when it returned."""
        began = self._clock.monotonic()
        await self.listener.maybe_revoked(partitions)
        flushed = self._clock.monotonic()
        self.hand_overs.flushed(began, flushed)
        return flushed

    def _note_released(self) -> None:
        """Release the partitions whose load callback has returned and that nothing else blocks."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for tp in list(self.hand_overs.passed):
            state = self._partitions[tp]
            is_read = not state.buffer and 0 <= state.high_watermark <= state.position
            self.hand_overs.released(tp, now, now_ms, is_read=is_read)

    def note_delivered(self, found: Mapping[TopicPartition, Records]) -> None:
        """Note the hand-over of released partitions whose records the user now gets."""
        now = self._clock.monotonic()
        for tp in [tp for tp in self.hand_overs.undelivered if tp in found]:
            batch = found[tp].first_batch
            self.hand_overs.delivered(tp, batch.partition_leader_epoch, batch.base_timestamp, now)

    def _bring_up_to_date(self) -> None:
        partitions = self._subscription.partitions
        is_assigned_anew = partitions is not self._partitions
        if is_assigned_anew:
            self._partitions = partitions
            self._gates.assign(partitions, self._metadata.cluster.topics)
        if self._exchange is not None and self._is_managed:
            self._exchange.settle()
        self._note_rewinds()
        if self._gates.version == self._version:
            return
        self._version = self._gates.version
        self._gates.settle()
        for tp, state in partitions.items():
            state.max_leader_epoch = self._gates.limit(tp)
            if state.has_blocked:
                self._blocked_at.setdefault(tp, state.version)
        self._revoked = {tp: None for tp in (*self._revoked, *self._gates.take_revoked()) if tp in partitions}
        waits = [one for one in self._blocked() if one.waits_for]
        self.hand_overs.evaluated(waits, partitions, self._clock.monotonic())
        if self._view is not None and self._is_managed:
            awaited = {wait.on: self._gates.incarnation(wait.on) for one in waits for wait in one.waits_for}
            self._view.look_at({tp: known for tp, known in awaited.items() if tp not in partitions})
        questions = self._questions(False)
        unreached = {tp: until for tp, until in self._awaited.items() if self._gates.position(tp) < until}
        wanted_before, self._wants = self._wants, questions.positions
        self._awaited = awaited_offsets(waits, self._fronts())
        # The coordinator itself notices that an awaited offset is reached.
        if self._wants != wanted_before or self._awaited != unreached or is_assigned_anew:
            self._want()
        self._queries.ask()

    def _blocked(self) -> list[BlockedPartition]:
        return self._gates.blocked(self._fronts(), self._owner_of, self._committed)

    @property
    def _is_managed(self) -> bool:
        return self._subscription.is_group_managed

    @property
    def _knows_own_positions(self) -> bool:
        """Whether this member uses its own reported position at once, because it is committed or there is no group.

        Otherwise only the coordinator's response to the report proves that this client is still a member.
        """
        return self.config.ordered_delivery_commit_before_report or not self._is_managed

    def _want(self) -> None:
        if self._is_managed:
            assert self._exchange is not None
            self._unassigned = {}
            self._exchange.want(self._wants, self._awaited)
            return
        own = {tp: (inc, self._gates.position(tp)) for tp, inc in self._wants.items() if tp in self._partitions}
        self._reports.on_asked(own, self._reports.number)
        for tp in self._wants:
            self._gates.on_owner(tp, is_owned=tp in self._partitions)
        self._unassigned = {tp: known for tp, known in self._wants.items() if tp not in self._partitions}
        self._unknown_to_group &= self._unassigned.keys()
        self._unassigned_changed.set()

    def _note_rewinds(self) -> None:
        """Lower the position of partitions that the user rewound. Other partitions then wait for them again at once."""
        for tp, position in self._gates.positions().items():
            state = self._partitions.get(tp)
            if state is not None and state.has_position and state.processed[0] < position:
                self._gates.on_position(tp, state.processed[0])
                self._reports.forget(tp)

    # ------------------------------------------------------------ reports

    def _due(self) -> dict[TopicPartition, ProcessedUpTo]:
        """The positions to report now. Without a settled generation there are none: the coordinator refuses them."""
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

    def _is_due(self, tp: TopicPartition, state: AssignedPartition) -> bool:
        return state.has_position and self._reports.is_due(tp, self._progress(tp, state))

    def _progress(self, tp: TopicPartition, state: AssignedPartition) -> ProcessedUpTo:
        cluster = self._metadata.cluster
        topic = cluster.topics.get(tp.topic)
        read_committed = self.config.isolation_level == "read_committed"
        end = state.last_stable_offset if read_committed else state.high_watermark
        offset, epoch = state.processed
        return ProcessedUpTo(
            incarnation=state.incarnation,
            position=offset,
            leader_epoch=state.buffer[0].leader_epoch if state.buffer and offset == state.position else epoch,
            at_end=not state.buffer and 0 <= end <= offset,
            is_marked=topic is not None and tp.partition >= topic.undeleted_partition_count,
            current_leader_epoch=cluster.leader_epoch(tp),
        )

    async def report_positions(self, due: dict[TopicPartition, ProcessedUpTo]) -> None:
        """Call the flush callback, then commit and report. A failed step is tried again in the next round."""
        flushed = await self._flush(list(due))
        due = {tp: progress for tp, progress in due.items() if self._is_at(tp, progress)}
        if not due:
            return
        known_to_coordinator: set[TopicPartition] = set()
        if self._coordinator is not None and self.config.ordered_delivery_commit_before_report:
            for tp in due:
                self._reports.forget(tp)  # the commit may report the position even if its response is lost
            try:
                known_to_coordinator = await self._coordinator.commits.commit_news(due)
            except KafkaError:
                return
        for tp, progress in due.items():
            self._reports.reported(tp, progress)
            self.hand_overs.processed(tp, flushed)
            if self._knows_own_positions:
                self._gates.on_position(tp, progress.position)
        if self._is_managed:
            assert self._exchange is not None
            positions = {tp: AnsweredPosition(progress.incarnation, progress.position) for tp, progress in due.items()}
            self._exchange.report(positions, self._reports.number, known_to_coordinator)
            self.hand_overs.reported(self._reports.number, flushed)
            if known_to_coordinator >= due.keys():
                self.hand_overs.acknowledged(self._reports.number, self._clock.monotonic())

    def _is_at(self, tp: TopicPartition, progress: ProcessedUpTo) -> bool:
        """Whether the processed offset still equals that of ``progress``: a callback or another task may change it."""
        state = self._subscription.partitions.get(tp)
        if state is None or not state.has_position:
            return False
        return (state.incarnation, state.processed[0]) == (progress.incarnation, progress.position)

    # ------------------------------------------------------------ partitions assigned by hand

    async def _ask_group(self) -> None:
        """Regularly ask for the group's positions in partitions of other readers, because no event reports them."""
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
                present = {tp: one for tp, one in answer.wanted.items() if self._is_present(tp, one.incarnation)}
                known = {tp: position for tp, position in present.items() if position.position >= 0}
                self._unknown_to_group = present.keys() - known.keys()
                for tp, position in known.items():
                    self._on_position(tp, position)
                self._on_change()
            await anyio.sleep(self.config.retry_backoff_max_ms / 1000)

    def _check_policy(self) -> None:
        """Apply ``ordered_delivery_unassigned_parent`` to partitions whose awaited partition has no known reader."""
        nobody = [tp for tp in self._unassigned if self._link is None or tp in self._unknown_to_group]
        if not nobody:
            return
        if self.config.ordered_delivery_unassigned_parent == "ignore":
            version = self._gates.version
            for tp in nobody:
                self._gates.on_position(tp, _PASSED)
            if self._gates.version != version:
                self._on_change()
            return
        still_asked = self._questions(False).log_starts
        for blocked in self._blocked():
            for wait in blocked.waits_for:
                if wait.until >= 0 and wait.on in nobody and wait.on not in still_asked:
                    raise UnassignedParentError(blocked.partition, wait.on)

    # ------------------------------------------------------------ for people

    def explain_blocked(self) -> tuple[BlockedPartition, ...]:
        """Returns each blocked partition, with its waits."""
        self._bring_up_to_date()
        return tuple(self._blocked())

    def metrics(self) -> dict[str, float]:
        """The metrics of blocked partitions, hand-overs, reports and callbacks, by name."""
        self._bring_up_to_date()
        return self.hand_overs.values()

    def _owner_of(self, tp: TopicPartition) -> str | None:
        if self._coordinator is None or self._view is None:
            return None
        return self._coordinator.owner_of(tp) or self._view.owner_of(tp)

    def _committed(self, tp: TopicPartition) -> int:
        return self._view.committed(tp) if self._view is not None else NO_OFFSET
