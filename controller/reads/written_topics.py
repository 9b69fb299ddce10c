"""Asks leaders whether anything was ever written to a topic, for requests of stock clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import trio

from anabranch.controller import stock_admin
from anabranch.controller.image import ClusterImage
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest
from anabranch.protocol.named_items import ITEMS_A_STEP
from anabranch.protocol.offset_requests import ANY_LEADER_EPOCH
from anabranch.protocol.sentinels import LATEST_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.progress_reader import ProgressReader
from anabranch.runtime.turns import pause
from anabranch.zk_schemas.topic import TopicZnode


class Written(NamedTuple):
    """What was found about a topic. It holds as long as the topic's znode is the same."""

    znode: TopicZnode
    why: str
    """Why the topic counts as one with records; "" if it has none."""


async def written_topics(
    image: ClusterImage, reader: ProgressReader, request: CreatePartitionsRequest, limit_s: float
) -> Mapping[str, Written]:
    """Whether the topics have records for which stock clients cannot follow the count, by name.

    A log that ends above 0 was written to, also if retention has removed its records. If a leader does not answer, and
    no other log of the topic was written to, the topic counts as one with records. Leaders have ``limit_s`` to answer.
    """
    topics: dict[str, TopicZnode] = {}
    led_by: dict[int, list[TopicPartition]] = defaultdict(list)
    for asked in request.topics:
        topic = image.topics.get(asked.name)
        if topic is not None and asked.name not in topics and stock_admin.objection(image, topic, asked.count):
            topics[topic.name] = topic.znode
            for p in topic.partitions:
                state = topic.state(p)
                # ``last_offsets`` has the end of a partition that is being removed.
                if state is not None and not state.never_led and not state.being_removed:
                    led_by[state.leader].append(TopicPartition(topic.name, p))
        await pause()
    del request  # it may be large, and be given up meanwhile
    written = {name for name, znode in topics.items() if any(znode.last_offsets.values())}
    unknown = {tp for led in led_by.values() for tp in led}

    async def ask(leader: int) -> None:
        led = led_by[leader]
        for begin in range(0, len(led), ITEMS_A_STEP):
            questions: dict[str, list[tuple[int, int]]] = defaultdict(list)
            for name, p in led[begin : begin + ITEMS_A_STEP]:
                questions[name].append((p, ANY_LEADER_EPOCH))
            try:
                ends = await reader.offsets(leader, questions, LATEST_TIMESTAMP, image.controller_id)
            except (OSError, KafkaError):
                return
            unknown.difference_update(ends)
            written.update(tp.topic for tp, end in ends.items() if end)
            if written >= topics.keys():
                asking.cancel_scope.cancel()  # one log of each topic is enough

    with trio.move_on_after(limit_s):
        async with trio.open_nursery() as asking:
            for leader in sorted(led_by.keys() & image.brokers.keys()) if written < topics.keys() else ():
                asking.start_soon(ask, leader)
    silent = {tp.topic: tp for tp in sorted(unknown, reverse=True)}
    return {name: Written(znode, _evidence(name, written, silent.get(name))) for name, znode in topics.items()}


def _evidence(name: str, written: set[str], silent: TopicPartition | None) -> str:
    if name in written:
        return f"{name} has records."
    if silent is None:
        return ""
    return f"It is not known whether {name} has records: the leader of {silent} does not answer. Try again later."
