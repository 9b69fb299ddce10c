"""A batch of a producer without idempotence that is parked: it was repeated before its turn."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.delayed_produce import Awaited, AwaitedInTerm, DelayedProduce, Part
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.broker.stock.order_without_idempotence import RetryOrder
from anabranch.protocol.generated.produce import PartitionProduceResponse
from anabranch.runtime.memory_budget import MemoryBudget


class ParkedBatch(AwaitedInTerm):
    """A batch that arrived before its turn. It is appended in its turn, or refused with ``answer``."""

    __slots__ = ("_append", "_appended", "_memory", "_order", "_parked_bytes", "_parked_until")

    def __init__(
        self,
        partition: Partition,
        refusal: PartitionProduceResponse,
        order: RetryOrder,
        parked_until: float,
        append: Callable[[], Part],
        memory: MemoryBudget,
        parked_bytes: int,
    ) -> None:
        super().__init__(partition, refusal)
        self._order = order
        self._parked_until = parked_until
        self._append: Callable[[], Part] | None = append
        """Appends the batch. This function keeps the batch in memory; None once the batch is not parked any more."""
        self._appended: Part | None = None
        self._memory = memory
        self._parked_bytes = parked_bytes
        memory.take(parked_bytes)

    def take_turn(self) -> None:
        """Append the batch, unless it was answered already, for instance after a change of the leader."""
        if self._append is not None and not self.settle():
            self._appended = self._append()
            self._free()

    def waits_in(self, purgatory: Purgatory, operation: DelayedProduce) -> None:
        """Let the purgatory end the wait at the batch's own deadline, which differs from the request's deadline."""
        purgatory.park(EndOfParking(self._parked_until, self, operation))

    def let_go(self) -> None:
        """End the wait for the turn: the batch is answered with its refusal."""
        self._order.let_go(self)
        self._free()

    def _free(self) -> None:
        self._append = None
        self._memory.take(-self._parked_bytes)
        self._parked_bytes = 0

    def settle_in_term(self) -> bool:
        appended = self._appended
        if appended is None:
            return self._append is None
        if isinstance(appended, Awaited):
            if not appended.settle():
                return False
            appended = appended.answer
        self.answer = appended
        return True


class EndOfParking(DelayedOperation):
    """Ends the wait of one parked batch at its deadline. Other parts of the request may wait longer."""

    __slots__ = ("_awaited", "_operation")

    def __init__(self, deadline: float, awaited: ParkedBatch, operation: DelayedProduce) -> None:
        super().__init__(deadline)
        self._awaited = awaited
        self._operation = operation

    def expire(self) -> None:
        self.completed = True
        self._awaited.let_go()
        self._operation.partition_changed(self._awaited.partition.key)
