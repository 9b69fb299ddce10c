"""The user's callbacks for rebalances, and for keys that move between partitions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from anabranch.protocol.types import TopicPartition

REBALANCE_CALLBACKS = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")
KEY_CALLBACKS = ("on_partition_key_maybe_revoked", "on_partition_key_assigned")


class RebalanceListener:
    """Calls the user's ``on_partitions_revoked``, ``on_partitions_assigned`` and ``on_partitions_lost``.

    Each may be missing, a plain function or an async one, taking a list of TopicPartition. Without
    ``on_partitions_lost`` the revoked callback is called for lost partitions too, as in Kafka.
    """

    __slots__ = ("_listener",)

    def __init__(self, listener: object | None = None) -> None:
        self._listener = listener

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions are about to go to another member; offsets can still be committed."""
        await self._call("on_partitions_revoked", partitions)

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions belong to this member from now on. Empty if a rebalance assigned no new partitions."""
        await self._call("on_partitions_assigned", partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions may belong to another member already; commits for them fail."""
        if getattr(self._listener, "on_partitions_lost", None) is not None:
            await self._call("on_partitions_lost", partitions)
        else:
            await self._call("on_partitions_revoked", partitions)

    async def _call(self, name: str, partitions: Sequence[TopicPartition]) -> None:
        await _call(self._listener, name, partitions)


class PartitionKeyListener:
    """Calls the user's ``on_partition_key_maybe_revoked`` and ``on_partition_key_assigned`` (KIP-253).

    Each may be missing, a plain function or an async one, taking a list of TopicPartition.
    """

    __slots__ = ("_listener",)

    def __init__(self, listener: object | None = None) -> None:
        self._listener = listener

    async def maybe_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Flush the state of these partitions' keys: another member may process some of the keys next."""
        await _call(self._listener, "on_partition_key_maybe_revoked", partitions)

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Load the state of keys that may come from these partitions from now on."""
        await _call(self._listener, "on_partition_key_assigned", partitions)


async def _call(listener: object | None, name: str, partitions: Sequence[TopicPartition]) -> None:
    callback: Callable[[list[TopicPartition]], object] | None = getattr(listener, name, None)
    if callback is None:
        return
    result = callback(sorted(partitions))
    if inspect.isawaitable(result):
        await result
