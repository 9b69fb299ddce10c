"""PartitionLeaderEpochsForPartitions (25301), version 0: from which ancestor a partition was split, into which survivor
it is merged, and up to which leader epochs (KIP-253).

Any broker answers, from ZooKeeper. LEADER_NOT_AVAILABLE (5) where it knows less than the client asks for.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.layout_epochs import KnownPartition, Question
from broker.request_context import Answer, RequestContext
from protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsRequest,
    PartitionLeaderEpochsForPartitionsResponse,
    PartitionLeaderEpochsForPartitionsResponseTopic,
)
from protocol.types import TopicPartition


def handle(ctx: RequestContext, request: PartitionLeaderEpochsForPartitionsRequest) -> Answer:
    epochs = ctx.node.layout_epochs
    topics: list[tuple[str, list[Question]]] = [
        (
            topic.name,
            [(TopicPartition(topic.name, asked.partition_index), asked.incarnation) for asked in topic.partitions],
        )
        for topic in request.topics
    ]

    def respond(
        read: Mapping[TopicPartition, KnownPartition],
    ) -> PartitionLeaderEpochsForPartitionsResponse:
        return PartitionLeaderEpochsForPartitionsResponse(
            topics=[
                PartitionLeaderEpochsForPartitionsResponseTopic(
                    name=name, partitions=[epochs.answer(question, read) for question in questions]
                )
                for name, questions in topics
            ]
        )

    unread = [question[0] for _, questions in topics for question in questions if epochs.answer_now(question) is None]
    if not unread:
        return respond({})

    async def read() -> PartitionLeaderEpochsForPartitionsResponse:
        return respond(await epochs.read(unread))

    return ctx.node.later(read, lambda _error: respond({}))
