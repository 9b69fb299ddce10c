"""Producer ids, taken from ``/latest_producer_id_block`` a thousand at a time (KIP-98)."""

from __future__ import annotations

import trio

from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.runtime.env import BadVersionError, NodeExistsError, NoNodeError, ZkConnectionError, ZkError, ZkStore
from anabranch.zk_schemas.producer_id_block import ProducerIdBlock


class ProducerIds:
    """Returns ids that no other broker returns. A versioned write claims a block; claimed ids may stay unused."""

    def __init__(self, zk: ZkStore, broker_id: int) -> None:
        self._zk = zk
        self._broker_id = broker_id
        self._next = 0
        self._end = -1
        self._claiming = trio.Lock()

    def take(self) -> int | None:
        """An id of the current block; None when the block is used up."""
        if self._next > self._end:
            return None
        producer_id = self._next
        self._next += 1
        return producer_id

    async def take_or_claim(self) -> int:
        """An id, from a new block if necessary. Raises COORDINATOR_LOAD_IN_PROGRESS 14 if ZooKeeper does not answer."""
        async with self._claiming:
            producer_id = self.take()
            while producer_id is None:
                try:
                    await self._claim()
                except (BadVersionError, NodeExistsError):
                    continue  # another broker claimed this block
                except ZkError as error:
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
                producer_id = self.take()
            return producer_id

    async def _claim(self) -> None:
        path = ProducerIdBlock.PATH
        try:
            znode = await self._zk.get(path)
        except NoNodeError:
            block = ProducerIdBlock.first(self._broker_id)
            await self._zk.create(path, block.encode())
        else:
            block = ProducerIdBlock.decode(path, znode.data).next(self._broker_id)
            try:
                await self._zk.set(path, block.encode(), znode.version)
            except ZkConnectionError:
                if (await self._zk.get(path)).data != block.encode():
                    raise
        self._next, self._end = block.block_start, block.block_end
