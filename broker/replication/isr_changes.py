"""Requests ISR changes from the controller: AlterPartition (56), all waiting partitions in one request (KIP-497).

A change is pending until the controller answers. If there is no answer, the request is repeated with the same epochs,
by which the controller recognises the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog
import trio

from anabranch.broker.replication.isr import REFUSED_REPLICA_WAITS_S, PendingIsr
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from anabranch.protocol.types import TopicPartition

logger = structlog.get_logger(__name__)

VERSION = 0
_RETRY_S = 0.5
_NOTHING_WRITTEN = {
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INELIGIBLE_REPLICA,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}
"""The controller compares epochs before it decides, so after these errors the committed ISR surely stays."""

Send = Callable[[AlterPartitionRequest], Awaitable[Any]]
"""Sends a request to the active controller; raises ``KafkaError`` if none answers in time."""


class IsrChanges:
    """Sends the requests; at most one request is in flight."""

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], send: Send) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._pending: dict[TopicPartition, Partition] = {}
        self._refused: dict[TopicPartition, Partition] = {}
        self._wake = trio.Event()
        self.shrinks = 0
        """The numbers of ISR shrinks, of ISR expansions, and of refused changes that this broker requested."""
        self.expands = 0
        self.refusals = 0

    def propose(self, partition: Partition) -> None:
        """Request the ISR in ``partition.pending_isr`` soon."""
        self._pending[partition.key] = partition
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            asked = self._collect()
            if asked and not await self._ask(asked):
                await trio.sleep(_RETRY_S)
            if self._refused:
                await trio.sleep(REFUSED_REPLICA_WAITS_S)
                refused, self._refused = self._refused, {}
                for partition in refused.values():
                    partition.review_isr()
            if self._pending:
                self._wake.set()

    def _collect(self) -> dict[TopicPartition, tuple[Partition, PendingIsr]]:
        """The changes that are still wanted, of partitions with the same role and epoch on a disk that works."""
        asked = {}
        for key, partition in list(self._pending.items()):
            if partition.is_leader and not partition.failed and partition.pending_isr is not None:
                asked[key] = (partition, partition.pending_isr)
            else:
                del self._pending[key]
        return asked

    async def _ask(self, asked: dict[TopicPartition, tuple[Partition, PendingIsr]]) -> bool:
        """Send one request; returns whether every change in it was decided."""
        try:
            response = await self._send(self._request(asked))
        except KafkaError as error:
            logger.warning("isr.not_asked", error=str(error))
            return False
        if response.error_code:
            logger.warning("isr.refused", error=ErrorCode.of(response.error_code).name)
            return False
        settled = True
        for topic in response.topics:
            for answer in topic.partitions:
                found = asked.pop(TopicPartition(topic.name, answer.partition_index), None)
                if found is not None:
                    settled = self._take(*found, answer) and settled
        return settled and not asked

    def _take(self, partition: Partition, pending: PendingIsr, answer: Any) -> bool:
        if partition.pending_isr is not pending:
            return True
        code = ErrorCode.of(answer.error_code)
        is_news = answer.leader_epoch == partition.leader_epoch and answer.current_isr_version > pending.partition_epoch
        if code is ErrorCode.NONE and answer.leader_epoch > pending.leader_epoch:
            # This leader resigned: the LeaderAndIsr that names the new leader ends the pending change.
            logger.info("isr.resigned", partition=str(partition.key), leader=answer.leader_id)
            self._pending.pop(partition.key, None)
        elif code is ErrorCode.NONE and is_news:
            before = len(partition.isr)
            partition.isr_committed(answer.isr, answer.current_isr_version)
            self.shrinks += len(partition.isr) < before
            self.expands += len(partition.isr) > before
            logger.info("isr.changed", partition=str(partition.key), isr=list(partition.isr))
        elif code in _NOTHING_WRITTEN:
            logger.info("isr.refused", partition=str(partition.key), isr=list(pending.isr), error=code.name)
            self.refusals += 1
            partition.isr_refused(pending)
            self._refused[partition.key] = partition
        else:
            # Either a LeaderAndIsr with the controller's epochs will arrive, or the request is repeated.
            logger.info("isr.stale", partition=str(partition.key), isr=list(pending.isr), error=code.name)
            return False
        return True

    def _request(self, asked: dict[TopicPartition, tuple[Partition, PendingIsr]]) -> AlterPartitionRequest:
        topics: dict[str, TopicData] = {}
        for key, (_, pending) in asked.items():
            topic = topics.setdefault(key.topic, TopicData(name=key.topic))
            topic.partitions.append(
                PartitionData(
                    partition_index=key.partition,
                    leader_epoch=pending.leader_epoch,
                    new_isr=list(pending.isr),
                    new_isr_epochs=list(pending.broker_epochs),
                    current_isr_version=pending.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )
