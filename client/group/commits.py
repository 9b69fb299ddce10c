"""The commits of one member of a group, or of a consumer that assigns its partitions itself.

Besides the offsets that the program commits these are: the offsets before a rebalance and at the interval of
``enable_auto_commit``, and the offsets where the group begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable

import anyio

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import ClientClosedError, CommitFailedError, ErrorCode, KafkaError
from anabranch.client.group.coordinator_link import CoordinatorLink, OffsetAndMetadata, Offsets
from anabranch.client.group.group_member import react
from anabranch.client.group.standing import MemberStanding
from anabranch.client.net.metadata import Metadata
from anabranch.client.subscription.subscription import Subscription
from anabranch.client.tasks import Tasks
from anabranch.protocol.sentinels import NO_EPOCH, NO_GENERATION
from anabranch.protocol.types import TopicPartition


class MemberCommits:
    """Commits offsets as the member that ``standing`` describes."""

    def __init__(
        self,
        config: ConsumerConfig,
        link: CoordinatorLink,
        standing: MemberStanding,
        subscription: Subscription,
        metadata: Metadata,
        tasks: Tasks,
        now: float,
    ) -> None:
        self._config = config
        self.link = link
        self.standing = standing
        self._subscription = subscription
        self._metadata = metadata
        self._tasks = tasks
        self._own: dict[TopicPartition, object] = {}
        """Offsets that this member committed, for partitions where no other member can have committed since."""
        self._next_auto_commit = now + config.auto_commit_interval_ms / 1000
        self._background_commit: anyio.CancelScope | None = None
        self.on_commit: Callable[[Offsets, KafkaError | None], None] = lambda offsets, error: None
        """Called after each commit with its error, but not for the offsets where the group begins."""
        self._starts_settled: anyio.Event | None = None
        """Set when the running commit of the group's start offsets ends; None while no such commit is running."""

    def keep_own(self, partitions: Iterable[TopicPartition]) -> None:
        """Other members may have committed for all partitions but these: forget own commits of the others."""
        self._own = {tp: self._own[tp] for tp in partitions if tp in self._own}

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The processed offset of each partition that has a position and still exists."""
        cluster, states = self._metadata.cluster, self._subscription.partitions
        return {
            tp: OffsetAndMetadata(offset, states[tp].stored_metadata, epoch, states[tp].incarnation)
            for tp, (offset, epoch) in self._subscription.positions().items()
            if not cluster.knows_removed(tp, states[tp].incarnation)
        }

    async def commit(
        self, offsets: Offsets, *, is_processed: bool = False, call: int | None = None
    ) -> set[TopicPartition]:
        """Commit as this member. Raises CommitFailedError if the group has rebalanced without it.

        A running commit in the background is cancelled first, because its older offsets must not arrive after the new
        offsets. The other arguments and the result are as in ``CoordinatorLink.commit_offsets``.
        """
        if not offsets:
            return set()
        call = self.link.commit_order.call() if call is None else call
        if self._background_commit is not None:
            self._background_commit.cancel()
        await self.commit_starts(but=offsets)
        return await self._commit_and_call(offsets, is_processed=is_processed, call=call)

    def _starts(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The uncommitted offsets where the group begins in partitions of resized topics.

        Until they are committed, a later member may find offsets in one partition and no offsets in another. Such a
        member assumes that a partition without an offset was created by a split, and reads it from the start. Without
        ``ordered_delivery_commit_before_report`` the result is empty, because the program keeps offsets elsewhere.
        """
        if not self._config.ordered_delivery_commit_before_report:
            return {}
        return {
            tp: OffsetAndMetadata(state.uncommitted_start, "", NO_EPOCH, state.incarnation)
            for tp, state in self._subscription.partitions.items()
            if state.uncommitted_start is not None and state.uncommitted_start >= 0
        }

    async def commit_starts(self, but: Container[TopicPartition] = ()) -> None:
        """Before any other commit, commit the offsets where the group begins, except for the partitions in ``but``."""
        if self._starts_settled is not None:
            await self._starts_settled.wait()
        starts = {tp: start for tp, start in self._starts().items() if tp not in but}
        if starts:
            await self._commit(starts, call=self.link.commit_order.before_unsent())

    def commit_known_starts(self) -> None:
        """Commit the offsets where the group begins as soon as they are known: a crash would lose them."""
        starts = self._starts()
        if (
            starts
            and self._starts_settled is None
            and not self.standing.is_joining
            and self.standing.member.generation_id >= 0
        ):
            self._starts_settled = anyio.Event()
            call = self.link.commit_order.before_unsent()
            self._tasks.start_soon(self._commit_starts_in_background, starts, call, self._starts_settled)

    async def _commit_starts_in_background(self, starts: Offsets, call: int, settled: anyio.Event) -> None:
        try:
            with contextlib.suppress(KafkaError, ClientClosedError):
                await self._commit(starts, call=call)
        finally:
            self._starts_settled = None
            settled.set()

    async def commit_news(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Unless this member has committed all consumed offsets of these partitions already, commit them.

        An offset that was fetched from the coordinator does not count as committed by this member, because the fetch
        does not prove that this client is still a member. All records before the offsets are processed. Returns the
        partitions whose positions the coordinator has reported with the commit. The request also repeats partitions
        that were committed before: otherwise their positions would need a separate report.
        """
        consumed, known = self.consumed(), self._own if self._subscription.is_group_managed else {}
        found = {tp: consumed[tp] for tp in partitions if tp in consumed}
        if all(known.get(tp) == offset for tp, offset in found.items()):
            return set()
        return await self.commit(found, is_processed=self._subscription.is_group_managed)

    async def _commit_and_call(self, offsets: Offsets, *, is_processed: bool = False, call: int) -> set[TopicPartition]:
        """Commit offsets that the program processed or chose, and call ``on_commit``."""
        try:
            reported = await self._commit(offsets, is_processed=is_processed, call=call)
        except KafkaError as error:
            self.on_commit(offsets, error)
            raise
        self.on_commit(offsets, None)
        return reported

    async def _commit(self, offsets: Offsets, *, is_processed: bool = False, call: int) -> set[TopicPartition]:
        under_way, owned, taken = object(), self._subscription.partitions, False
        for tp in offsets.keys() & owned.keys():
            owned[tp].uncommitted_start = None  # even if this commit fails, no commit of an older offset may follow
        self._own |= dict.fromkeys(offsets, under_way)
        try:
            reported = await self._commit_as_member(offsets, is_processed=is_processed, call=call)
            taken = True
            return reported
        finally:
            for tp, offset in offsets.items():
                # Another running commit may have been carried out before this commit or after it.
                was_alone = self._own.pop(tp, None) is under_way
                if taken and was_alone and tp in owned and not self.link.commit_order.is_replaced(call, tp):
                    self._own[tp] = offset

    async def _commit_as_member(self, offsets: Offsets, *, is_processed: bool, call: int) -> set[TopicPartition]:
        standing, member = self.standing, self.standing.member
        managed = self._subscription.is_group_managed
        if standing.failure.is_final:
            raise standing.failure.take()
        if managed and member.generation_id < 0:
            raise CommitFailedError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"the consumer is not a member of group {self.link.group_id} at the moment",
            )
        generation_id = member.generation_id
        try:
            return await self.link.commit_offsets(
                offsets,
                self._config.default_api_timeout_ms,
                generation_id=generation_id if managed else NO_GENERATION,
                member_id=member.member_id if managed else "",
                group_instance_id=self._config.group_instance_id if managed else None,
                is_processed=is_processed,
                call=call,
            )
        except KafkaError as error:
            reaction = react(error.code)
            # During a join the response to JoinGroup decides whether this client is still a member.
            is_current = managed and standing.is_stable_in(generation_id)
            if not reaction.is_rejoin:
                if is_current and error.code is ErrorCode.FENCED_INSTANCE_ID:
                    standing.note_error(error)
                    standing.fail(error)
                raise
            if is_current:
                standing.note_error(error)
            raise CommitFailedError(
                error.code,
                f"group {self.link.group_id} has rebalanced ({error.message}): the partitions may belong to another "
                "member. Process faster, raise max_poll_interval_ms or lower max_poll_records",
            ) from error

    def auto_commit(self, now: float) -> None:
        is_due = self._config.enable_auto_commit and now >= self._next_auto_commit and self._background_commit is None
        if not is_due or self.standing.is_joining:  # the commit follows after the join
            return
        self._next_auto_commit = now + self._config.auto_commit_interval_ms / 1000
        if offsets := self.consumed():
            self._background_commit = anyio.CancelScope()
            call = self.link.commit_order.call()
            self._tasks.start_soon(self._commit_in_background, offsets, call, self._background_commit)

    async def _commit_in_background(self, offsets: Offsets, call: int, scope: anyio.CancelScope) -> None:
        try:
            with scope, contextlib.suppress(KafkaError, ClientClosedError):  # the next commit has newer offsets
                if self._starts_settled is not None:
                    await self._starts_settled.wait()
                if not scope.cancel_called:  # a newer commit may be sent already
                    await self._commit_and_call(offsets, call=call)
        finally:
            self._background_commit = None

    async def commit_before_rebalance(self) -> None:
        """Commit consumed offsets; without ``enable_auto_commit`` only the offsets where the group began."""
        try:
            if self._config.enable_auto_commit:
                await self.commit(self.consumed())
            else:
                await self.commit_starts()
        except KafkaError:
            return  # the partition's next owner gets the records since the last commit again
