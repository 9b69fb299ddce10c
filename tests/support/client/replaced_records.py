"""Moves unsent records to their partitions under a new layout, without pauses."""

from __future__ import annotations

from anabranch.client.cluster import TopicInfo
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.client.producer.unwritten_records_placed_again import Placing, Replaced, Replacement


def replace_records(
    before: TopicInfo, after: TopicInfo, queues: list[list[ProducerBatch]], placing: Placing
) -> Replaced:
    """Move records from their partitions under the layout ``before`` to their partitions under the layout ``after``.

    Each queue has the batches of one partition, in order.
    """
    work = Replacement(before, after, placing)
    work.take(queues)
    while work.is_unfinished:
        work.step()
    return work.result()
