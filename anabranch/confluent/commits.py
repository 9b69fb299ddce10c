"""A blocking consumer whose commits may run in the background, one after the other."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from anabranch.blocking.consumer import Consumer as BlockingConsumer
from anabranch.blocking.loop_thread import LoopThread
from anabranch.client import OffsetAndMetadata
from anabranch.client.errors import ErrorCode, KafkaError, KafkaTimeoutError
from anabranch.protocol.types import TopicPartition

_log = logging.getLogger(__name__)
Chosen = Mapping[TopicPartition, OffsetAndMetadata]


class CommitOutcome(Exception):
    """Ends a call for records, because ``on_commit`` was called."""


class Consumer(BlockingConsumer):
    """Commits in the order of the calls, so that no older offset replaces a newer one. ``close`` waits for them."""

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self._client._before_records = self._look_for_events
        self.on_commit: Callable[[Chosen, KafkaError | None], None] | None = None
        """Called in the loop with the outcome of each commit, also of an automatic one."""
        self._has_outcome = False
        self._committing = anyio.Lock()
        """Held during a commit. The lock is fair."""

    def _on_start(self, loop: LoopThread) -> None:
        super()._on_start(loop)
        coordinator = self._client._coordinator
        if coordinator is not None:
            coordinator.commits.on_commit = self._note_outcome

    def _note_outcome(self, chosen: Chosen, error: KafkaError | None) -> None:
        if self.on_commit is None:
            return
        self.on_commit(chosen, error)
        self._has_outcome = True
        self._client._changed.set()

    def _look_for_events(self) -> None:
        """End a call for records with the event that the program is to see first."""
        if self._has_outcome:
            self._has_outcome = False
            raise CommitOutcome
        self._client._metadata.tell_absent()

    async def commit_in_turn(self, offsets: Chosen | None, *, waits: bool) -> None:
        """Commit ``offsets``, or those of this moment. Without ``waits`` it returns at once. In the loop."""
        chosen = self._client._to_commit(offsets)
        coordinator = self._client._coordinator
        assert coordinator is not None and self._loop is not None
        call = coordinator.link.commit_order.call()
        if waits:
            async with self._committing:
                await self.send_commit(chosen, call)
            return
        limit_s = self._client.config.default_api_timeout_ms / 1000
        owned, until = self._client._subscription.partitions, anyio.current_time() + limit_s
        self._loop.run_task(functools.partial(self._commit_and_log, chosen, call, owned, until))

    async def send_commit(self, chosen: Chosen, call: int) -> None:
        """Commit ``chosen`` for the call number ``call``. In the loop."""
        assert self._client._coordinator is not None
        await self._client._coordinator.commits.commit(chosen, call=call)

    async def _commit_and_log(
        self, chosen: Chosen, call: int, owned: Mapping[TopicPartition, object], until: float
    ) -> None:
        """Commit ``chosen``, unless the turn comes later than ``until``: else ``close`` would wait for each in turn."""
        try:
            with anyio.CancelScope(deadline=until) as scope:
                async with self._committing:
                    scope.deadline = math.inf
                    await self.send_commit(self._without_revoked(chosen, owned), call)
            if scope.cancelled_caught:
                late = KafkaTimeoutError("the commits before it took default.api.timeout.ms")
                _log.warning("an asynchronous commit failed: %s", late.message)
                self._note_outcome(chosen, late)
        except Exception as error:
            _log.warning("an asynchronous commit failed: %s", error)

    def _without_revoked(self, chosen: Chosen, owned: Mapping[TopicPartition, object]) -> Chosen:
        """Leave out partitions of ``owned`` that a rebalance took: their new reader may have committed more."""
        subscription = self._client._subscription
        if not subscription.is_group_managed:
            return chosen
        revoked = {tp for tp in chosen if tp in owned and subscription.partitions.get(tp) is not owned[tp]}
        if revoked:
            _log.warning("an asynchronous commit failed for %s: a rebalance came first", sorted(revoked))
            self._note_outcome(
                {tp: chosen[tp] for tp in revoked},
                KafkaError(ErrorCode.ILLEGAL_GENERATION, "a rebalance came before the commit's turn"),
            )
        return {tp: offset for tp, offset in chosen.items() if tp not in revoked}

    async def _before_close(self) -> None:
        await super()._before_close()
        async with self._committing:
            pass  # the commits that were called before have ended
