"""PartitionLeaderEpochsForPartitions (25301): the partitions that had a partition's keys before (KIP-253).

Each such partition is named with the last leader epoch in which it had the keys. Any broker answers, from ZooKeeper.
The error is LEADER_NOT_AVAILABLE (5) if the broker knows less than the client requests.
"""

from __future__ import annotations

from anabranch.broker.link.lineage_reader import NOTHING_READ, LineageQuestion, Read, refusal
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsRequest,
    PartitionLeaderEpochsForPartitionsResponse,
    PartitionLeaderEpochsForPartitionsResponseTopic,
)
from anabranch.protocol.types import TopicPartition


def handle(ctx: RequestContext, request: PartitionLeaderEpochsForPartitionsRequest) -> Answer:
    lineages = ctx.node.link.lineages
    topics = [
        (
            topic.name,
            [
                LineageQuestion(TopicPartition(topic.name, asked.partition_index), topic.topic_incarnation)
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]

    def respond(read: Read) -> PartitionLeaderEpochsForPartitionsResponse:
        return PartitionLeaderEpochsForPartitionsResponse(
            topics=[
                PartitionLeaderEpochsForPartitionsResponseTopic(
                    name=name,
                    topic_incarnation=lineages.topic_incarnation(name, read),
                    partitions=[
                        lineages.answer(question, read) or refusal(question.tp, ErrorCode.LEADER_NOT_AVAILABLE)
                        for question in questions
                    ],
                )
                for name, questions in topics
            ]
        )

    unread = [question for _, questions in topics for question in questions if lineages.answer(question) is None]
    if not unread:
        return respond(NOTHING_READ)

    async def read() -> PartitionLeaderEpochsForPartitionsResponse:
        return respond(await lineages.read(unread))

    return ctx.node.later(read, lambda _error: respond(NOTHING_READ))
