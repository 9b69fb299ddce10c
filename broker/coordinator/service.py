"""The group coordinator as the broker uses it.

Handlers return the result of ``answer`` for an API about one group, and of a method per API for the others. The broker
reports leadership of the offsets topic's partitions with ``on_leader`` and ``on_not_leader``, and deleted partitions
with ``on_partitions_deleted``. One task runs ``run``.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Generator, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import trio

from anabranch.broker.coordinator import (
    admin,
    fetch_response,
    offsets,
    readers,
)
from anabranch.broker.coordinator.broker_services import OffsetsLog, RequestOrigin, Topics
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.counted import Creation, RecentCreations
from anabranch.broker.coordinator.decisions import DECISIONS, POSITIONS_LEVEL, Asked
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.leadership import Leadership
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.coordinator.long_answers import LongAnswers
from anabranch.broker.coordinator.placement import partition_for
from anabranch.broker.coordinator.reader_answers import Confirmed, ReaderQuestion, answer_in_steps
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.sweeps import Sweeps
from anabranch.broker.coordinator.timer import DeadlineTimer
from anabranch.broker.deferred import Deferred
from anabranch.protocol.acl_operations import GROUP_OPERATIONS
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from anabranch.protocol.generated.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from anabranch.protocol.generated.list_groups import ListGroupsRequest, ListGroupsResponse
from anabranch.protocol.generated.offset_commit import OffsetCommitRequest
from anabranch.protocol.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from anabranch.protocol.generated.topic_readers import TopicReadersRequest, TopicReadersResponse
from anabranch.protocol.named_items import ITEMS_A_STEP
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock
from anabranch.zk_schemas.features import GROUP_COORDINATOR, highest_level

R = TypeVar("R")
S = TypeVar("S")

_STATES = frozenset(state.value for state in GroupState)


class GroupCoordinator:
    """Coordinates every group whose partition of ``__consumer_offsets`` this broker leads.

    Errors are inside the responses, never raised: NOT_COORDINATOR for a group of another broker,
    COORDINATOR_LOAD_IN_PROGRESS while the group's partition is read, COORDINATOR_NOT_AVAILABLE once the coordinator is
    closed.
    """

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        rng: random.Random,
        log: OffsetsLog,
        topics: Topics,
        background: Background | None = None,
        level: Callable[[str], int] = highest_level,
    ) -> None:
        """``level``: the finalized level of a feature."""
        self._config = config
        self._clock = clock
        self._background = background or Background(clock)
        self._rng = rng
        self._topics = topics
        self._timer = DeadlineTimer(self._now_ms, self._on_due)
        self._creations = RecentCreations()
        self._leadership = Leadership(config, clock, log, self._timer, self._take_up, self._background, level)
        self._sweeps = Sweeps(config, clock, topics, self._leadership.loaded, self._background)
        self._long_answers = LongAnswers(self._background)
        self._level = level
        self.commits = 0
        """The number of OffsetCommit requests so far, and the number of offsets in these requests."""
        self.committed_offsets = 0

    def observe_waits(self, on_waited: Callable[[float], None]) -> None:
        """Call ``on_waited`` with the seconds of each finished wait for a position."""
        self._leadership.on_waited = on_waited

    @property
    def refused_joins(self) -> int:
        """The number of joins that were refused because members take too much memory."""
        return self._leadership.refused_joins

    def shards(self) -> list[Shard]:
        """The loaded partitions of the offsets topic; callers must not change them."""
        return [loaded.shard for loaded in self._leadership.loaded.values()]

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Run loads, timers and the expiry of offsets until cancelled; then answer every waiting request."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._background.keep, "group-deadlines", self._timer.run)
                nursery.start_soon(self._background.keep, "group-loading", self._leadership.run)
                nursery.start_soon(self._background.keep, "offset-expiry", self._sweeps.run_expiry)
                nursery.start_soon(self._background.keep, "offset-removal", self._sweeps.run_removal)
                nursery.start_soon(self._background.keep, "long-answers", self._long_answers.run)
        finally:
            self.close()

    def close(self) -> None:
        """Answer every waiting request with COORDINATOR_NOT_AVAILABLE and refuse new ones: the broker shuts down."""
        self._leadership.close()
        self._long_answers.finish()

    def on_leader(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the offsets partition from ``leader_epoch`` on: load it. Returns at once."""
        self._leadership.on_leader(partition, leader_epoch)

    def on_not_leader(self, partition: int, leader_epoch: int | None) -> None:
        """This broker is a follower, or lost its replica (``leader_epoch`` None): drop the partition's groups."""
        self._leadership.on_not_leader(partition, leader_epoch)

    def on_partitions_deleted(self, partitions: Mapping[TopicPartition, int]) -> None:
        """Write tombstones for the offsets of deleted partitions. Incarnation -1 means that it is not known."""
        self._sweeps.on_deleted(partitions)

    def on_partitions_created(self, created: Mapping[TopicPartition, Creation]) -> None:
        """Note partitions that a resize created. Groups whose stock members are withheld begin at the first offset."""
        withheld = {tp: creation for tp, creation in created.items() if self._topics.withholds(tp.topic)}
        self._creations.add(withheld, self._now_ms())
        for loaded in list(self._leadership.loaded.values()):
            self._commit_beginnings(loaded, withheld)

    def partition_for(self, group_id: str) -> int:
        """The offsets topic's partition that holds a group. FindCoordinator answers with that partition's leader."""
        count = self._topics.partition_count(OFFSETS_TOPIC)
        return partition_for(group_id, self._config.offsets_topic_num_partitions if count is None else count)

    def _on_due(self, key: Hashable, deadline_ms: int) -> None:
        assert isinstance(key, tuple)
        partition, group_id = key
        loaded = self._leadership.loaded.get(partition)
        if loaded is None:
            return
        try:
            loaded.on_due(group_id, deadline_ms)
        except Exception as error:
            pause_s = self._background.failed("group-deadlines", group_id, error)
            self._timer.set(key, int((self._clock.monotonic() + pause_s) * 1000))
        else:
            self._background.succeeded("group-deadlines", group_id)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _take_up(self, loaded: LoadedPartition) -> None:
        """Do the work that the previous coordinator may not have finished."""
        self._sweeps.on_loaded(loaded)
        self._commit_beginnings(loaded, self._creations.as_of(self._now_ms()))

    def _commit_beginnings(self, loaded: LoadedPartition, created: Mapping[TopicPartition, Creation]) -> None:
        turn = loaded.turn()
        for topic in dict.fromkeys(tp.topic for tp in created):
            group_ids = [group.group_id for group in readers.counted_groups(turn, topic)]
            readers.note_created(turn, group_ids, {tp: created[tp] for tp in created if tp.topic == topic})
            for group_id in group_ids:
                turn = loaded.turn()
                readers.write_beginnings(turn, group_id, self._topics)
                loaded.carry_out(turn, group_id)

    # ------------------------------------------------------------ groups

    def answer(self, origin: RequestOrigin, request: Any) -> Deferred[Any]:
        """Answer a request of one of the ``DECISIONS``.

        JoinGroup is answered when the rebalance is over, SyncGroup when the leader's assignment is committed,
        ConsumerGroupPosition when a position that the member waits for changes, or when the member is asked for one.
        OffsetCommit and OffsetDelete are answered when their records are committed, all others at once.
        """
        token: Deferred[Any] = Deferred()
        asked = Asked(request, origin, self._topics, self._new_member_id)
        decision = DECISIONS[type(request)]
        found = self._find(request.group_id, empty_is_valid=decision.is_empty_valid)
        if self._level(GROUP_COORDINATOR) < decision.level:
            found = ErrorCode.UNSUPPORTED_VERSION
        if isinstance(found, ErrorCode):
            token.fill(decision.refuse(asked, found))
            return token
        if isinstance(request, OffsetCommitRequest):
            self.commits += 1
            self.committed_offsets += sum(len(topic.partitions) for topic in request.topics)
        turn = found.turn()
        decision.decide(turn, token, asked)
        found.carry_out(turn, request.group_id)
        return token

    def _new_member_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def member_ids(self, group_id: str) -> Collection[str] | None:
        """The ids of the group's present members; None if this broker does not know the group."""
        found = self._find(group_id)
        group = None if isinstance(found, ErrorCode) else found.shard.groups.get(group_id)
        return None if group is None else group.members.keys()

    # ------------------------------------------------------------ offsets

    def offset_fetch(self, ctx: RequestOrigin, request: OffsetFetchRequest) -> Deferred[OffsetFetchResponse]:
        """Committed offsets. Answered once it is certain that no other coordinator has later commits."""
        stable = request.require_stable
        if ctx.api_version >= fetch_response.BATCH_VERSION:
            groups = [self._fetch(ctx, group.group_id, group.topics, stable) for group in request.groups]
            return _gather(groups, lambda found: OffsetFetchResponse(groups=found))
        topics = fetch_response.topics_of(request)
        group = self._fetch(ctx, request.group_id, topics, stable)
        return _gather([group], lambda found: fetch_response.for_one_group(ctx.api_version, topics, found[0]))

    def count_readers(self, ctx: RequestOrigin, request: OffsetFetchRequest) -> Generator[bool, None, None]:
        """Count the groups of a large OffsetFetch as readers of all its topics, before its first slice is answered.

        Otherwise each slice would wait for the lease of the topics that it is the first to name. Yields in between.
        """
        if ctx.keeps_order:
            return
        groups: list[tuple[str, Sequence[readers.NamedTopic]]]
        groups = [(group.group_id, group.topics or ()) for group in request.groups]
        for group_id, topics in groups or [(request.group_id, request.topics or ())]:
            for first in range(0, len(topics), ITEMS_A_STEP):
                found = self._find(group_id, empty_is_valid=True)
                if isinstance(found, ErrorCode):
                    break
                readers.count_group(found.turn(), group_id, topics[first : first + ITEMS_A_STEP], self._topics)
                yield True

    def _fetch(
        self, ctx: RequestOrigin, group_id: str, topics: list[OffsetFetchRequestTopics] | None, require_stable: bool
    ) -> Deferred[OffsetFetchResponseGroup]:
        token: Deferred[OffsetFetchResponseGroup] = Deferred()
        found = self._find(group_id, empty_is_valid=True)
        if isinstance(found, ErrorCode):
            token.fill(OffsetFetchResponseGroup(group_id=group_id, error_code=found))
            return token
        shard = found.shard

        def answer(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                fetched = offsets.fetch_offsets(shard, group_id, topics, self._topics, require_stable=require_stable)
                token.fill(fetched)
            else:
                token.fill(OffsetFetchResponseGroup(group_id=group_id, error_code=error))

        if topics is None or ctx.keeps_order or not any(self._topics.withholds(topic.name) for topic in topics):
            found.confirm(answer)
        else:
            self._when_it_may_begin(found, group_id, topics, answer)
        return token

    def _when_it_may_begin(
        self,
        loaded: LoadedPartition,
        group_id: str,
        topics: list[OffsetFetchRequestTopics],
        then: Callable[[ErrorCode], None],
    ) -> None:
        """Wait until every leader counts the group and its beginnings are committed; then confirm the leadership.

        The answer waits, because after an error some libraries give up within a second.
        """
        turn = loaded.turn()
        readers.count_group(turn, group_id, topics, self._topics)
        begins_at_ms = readers.begins_at_ms(turn, group_id, topics, self._topics)
        give_up_ms = begins_at_ms + readers.KNOWN_WITHIN_MS

        def look(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                then(error)
                return
            turn = loaded.turn()
            beginning = readers.beginning(turn, group_id, topics, self._topics)
            loaded.carry_out(turn, group_id)
            now_ms = turn.now.monotonic_ms
            is_late = now_ms >= give_up_ms
            if now_ms < begins_at_ms:
                loaded.wait_until(begins_at_ms, look)
            elif beginning is readers.Beginning.KNOWN or (beginning is readers.Beginning.NO_PARTITION and is_late):
                loaded.confirm(then)
            elif is_late:
                then(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                loaded.wait_until(now_ms + readers.LOOK_AGAIN_MS, look)

        look(ErrorCode.NONE)

    # ------------------------------------------------------------ administration

    def describe_groups(self, ctx: RequestOrigin, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Each group's state and members, or its error."""
        groups = []
        for group_id in request.groups:
            found = self._find(group_id, empty_is_valid=True)
            if isinstance(found, ErrorCode):
                described = DescribedGroup(group_id=group_id, error_code=found)
            else:
                described = admin.describe_group(found.shard, group_id, found.turn().now)
            if request.include_authorized_operations and described.error_code == ErrorCode.NONE:
                described.authorized_operations = GROUP_OPERATIONS
            groups.append(described)
        return DescribeGroupsResponse(groups=groups)

    def list_groups(self, ctx: RequestOrigin, request: ListGroupsRequest) -> ListGroupsResponse:
        """The groups of all loaded partitions. The error is COORDINATOR_LOAD_IN_PROGRESS while some are loading."""
        if self._leadership.is_closed:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        states = _STATES.intersection(request.states_filter) if request.states_filter else None
        loading = self._leadership.is_loading
        response = ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE)
        for loaded in self._leadership.loaded.values():
            response.groups.extend(admin.list_groups(loaded.shard, states))
        return response

    def topic_readers(self, request: TopicReadersRequest) -> Deferred[TopicReadersResponse]:
        """The groups that read topics, and the time since this broker was last known to coordinate them."""
        parts: list[Deferred[Confirmed | None]] = []
        now_ms = self._now_ms()
        is_of_controller = any(topic.questions for topic in request.topics)
        for index, loaded in self._leadership.loaded.items():
            token: Deferred[Confirmed | None] = Deferred()
            parts.append(token)
            confirmed = partial(_confirmed, token, index, loaded)
            if (
                not is_of_controller
                and loaded.confirmed_ms is not None
                and now_ms - loaded.confirmed_ms < self._config.stock_consumer_lease_ms // 4
            ):
                confirmed(loaded.confirmed_ms, ErrorCode.NONE)
            else:
                loaded.confirm(partial(confirmed, now_ms))
        knows_positions = self._level(GROUP_COORDINATOR) >= POSITIONS_LEVEL
        asked = ReaderQuestion(request, self._topics, knows_positions, self._now_ms, self._config.response_max_bytes)
        answer: Deferred[TopicReadersResponse] = Deferred()

        def failed() -> TopicReadersResponse:
            return TopicReadersResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

        def make(found: list[Confirmed | None]) -> None:
            steps = answer_in_steps(asked, [part for part in found if part is not None])
            self._long_answers.make("TopicReaders", steps, answer, failed)

        _gather(parts, lambda found: found).then(make)
        return answer

    def delete_groups(self, ctx: RequestOrigin, request: DeleteGroupsRequest) -> Deferred[DeleteGroupsResponse]:
        """Answered when the tombstones of all groups that may be deleted are committed."""
        results: list[Deferred[DeletableGroupResult]] = []
        for group_id in dict.fromkeys(request.groups_names):
            token: Deferred[DeletableGroupResult] = Deferred()
            results.append(token)
            found = self._find(group_id, empty_is_valid=True)
            if isinstance(found, ErrorCode):
                token.fill(DeletableGroupResult(group_id=group_id, error_code=found))
                continue
            turn = found.turn()
            admin.delete_group(turn, token, group_id)
            found.carry_out(turn, group_id)
        return _gather(results, lambda found: DeleteGroupsResponse(results=found))

    def _find(self, group_id: str, *, empty_is_valid: bool = False) -> LoadedPartition | ErrorCode:
        """The loaded partition that holds the group, or the error for the request (Kafka ``validateGroupStatus``)."""
        if not group_id and not empty_is_valid:
            return ErrorCode.INVALID_GROUP_ID
        return self._leadership.find(self.partition_for(group_id))


def _confirmed(
    token: Deferred[Confirmed | None], index: int, loaded: LoadedPartition, confirmed_ms: int, error: ErrorCode
) -> None:
    if error is not ErrorCode.NONE:
        token.fill(None)
        return
    loaded.confirmed_ms = max(confirmed_ms, loaded.confirmed_ms or confirmed_ms)
    token.fill(Confirmed(index, loaded, confirmed_ms))


def _gather(parts: list[Deferred[R]], build: Callable[[list[R]], S]) -> Deferred[S]:
    """Join several responses, in order. The result is filled when the last response is there."""
    whole: Deferred[S] = Deferred()
    found: dict[int, R] = {}

    def take(at: int, value: R) -> None:
        found[at] = value
        if len(found) == len(parts):
            whole.fill(build([found[i] for i in range(len(parts))]))

    for at, part in enumerate(parts):
        part.then(lambda value, at=at: take(at, value))  # type: ignore[misc]
    if not parts:
        whole.fill(build([]))
    return whole
