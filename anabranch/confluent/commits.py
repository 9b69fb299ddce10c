"""A blocking consumer whose commits may run in the background, one after the other."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from typing import Any

import anyio

from anabranch.blocking.consumer import Consumer as BlockingConsumer
from anabranch.client import OffsetAndMetadata
from anabranch.protocol.types import TopicPartition

_log = logging.getLogger(__name__)
Chosen = Mapping[TopicPartition, OffsetAndMetadata]


class Consumer(BlockingConsumer):
    """Commits in the order of the calls, so that no older offset replaces a newer one. ``close`` waits for them."""

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self._client._tells_absent = True
        self._committing = anyio.Lock()
        """Held during a commit. The lock is fair."""

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
        held, until = self._client._subscription.partitions, anyio.current_time() + limit_s
        self._loop.run_task(functools.partial(self._commit_and_log, chosen, call, held, until))

    async def send_commit(self, chosen: Chosen, call: int) -> None:
        """Commit ``chosen`` for the call number ``call``. In the loop."""
        assert self._client._coordinator is not None
        await self._client._coordinator.commit(chosen, call=call)

    async def _commit_and_log(
        self, chosen: Chosen, call: int, held: Mapping[TopicPartition, object], until: float
    ) -> None:
        """Commit ``chosen``, unless the turn comes later than ``until``: else ``close`` would wait for each in turn."""
        try:
            with anyio.CancelScope(deadline=until) as scope:
                async with self._committing:
                    scope.deadline = math.inf
                    await self.send_commit(self._without_revoked(chosen, held), call)
            if scope.cancelled_caught:
                _log.warning("an asynchronous commit failed: the commits before it took default.api.timeout.ms")
        except Exception as error:
            _log.warning("an asynchronous commit failed: %s", error)

    def _without_revoked(self, chosen: Chosen, held: Mapping[TopicPartition, object]) -> Chosen:
        """Leave out partitions of ``held`` that a rebalance took: their new reader may have committed more."""
        subscription = self._client._subscription
        if not subscription.is_group_managed:
            return chosen
        revoked = {tp for tp in chosen if tp in held and subscription.partitions.get(tp) is not held[tp]}
        if revoked:
            _log.warning("an asynchronous commit failed for %s: a rebalance came first", sorted(revoked))
        return {tp: offset for tp, offset in chosen.items() if tp not in revoked}

    async def _before_close(self) -> None:
        await super()._before_close()
        async with self._committing:
            pass  # the commits that were called before have ended
