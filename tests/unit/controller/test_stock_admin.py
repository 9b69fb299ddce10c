"""Counts that stock admin clients may ask for, and the evidence that a topic has records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import trio

from anabranch.controller.image import ClusterImage
from anabranch.controller.reads.written_topics import written_topics
from anabranch.controller.stock_admin import objection
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.types import TopicPartition
from tests.support.controller.decisions import cluster, state
from tests.support.controller.topic_images import image_of, resized
from tests.support.resize.resized_topic import Topic

LIMIT_S = 0.5


def topic_of(*counts: int, is_ordered: bool | None = None) -> ClusterImage:
    """Return an image of the topic ``t`` that was resized to these counts."""
    image = cluster(state(1, [1]))
    topic = image.topics["t"] = image_of(resized(*counts) if len(counts) > 1 else Topic(counts[0]))
    if is_ordered is not None:
        topic.znode = topic.znode.replace(ordered_delivery=is_ordered)
    return image


@pytest.mark.parametrize(
    ("counts", "asked", "nearest"),
    [
        ((4,), 8, None),
        ((4,), 16, None),
        ((4,), 4, None),  # another rule answers
        ((4,), 5, 8),
        ((4,), 12, 16),
        ((3,), 8, 12),
        ((4, 6), 8, None),
        ((4, 6), 7, 8),
        ((4, 6), 5, 8),  # a lower count, and the present one is no doubling either
        ((4, 8), 6, 8),
        ((4, 8), 4, 8),  # a merge is never followed
        ((4, 6), 4, 8),
    ],
)
def test_stock_clients_may_ask_for_a_higher_count_that_is_the_initial_count_times_a_power_of_two(
    counts: tuple[int, ...], asked: int, nearest: int | None
) -> None:
    image = topic_of(*counts)
    why = objection(image, image.topics["t"], asked)
    assert bool(why) is (nearest is not None), why
    if nearest is not None:
        assert f" The nearest count that works is {nearest}. `anabranch topics alter t --partitions {asked}`" in why


@pytest.mark.parametrize(("asked", "is_refused"), [(6, False), (3, True)])
def test_a_topic_without_ordered_delivery_may_get_every_higher_count(asked: int, is_refused: bool) -> None:
    image = topic_of(4, is_ordered=False)
    assert bool(objection(image, image.topics["t"], asked)) is is_refused


class Reader:
    """Answers with log ends by partition. A leader of ``silent`` fails, and a leader of ``hung`` never answers."""

    def __init__(self, ends: Mapping[int, int], silent: Iterable[int] = (), hung: Iterable[int] = ()) -> None:
        self.ends, self.silent, self.hung = ends, silent, hung

    async def offsets(self, leader: int, asked: Mapping[str, Iterable[tuple[int, int]]], *_: int) -> Any:
        if leader in self.hung:
            await trio.sleep_forever()
        if leader in self.silent:
            raise ConnectionError(leader)
        return {TopicPartition(name, p): self.ends.get(p, 0) for name, led in asked.items() for p, _ in led}


@pytest.mark.trio
@pytest.mark.parametrize(
    ("reader", "evidence"),
    [
        (Reader({}), ""),
        (Reader({2: 1}), "t has records."),
        (Reader({2: 1}, silent=[1]), "t has records."),
        (Reader({2: 1}, hung=[1]), "t has records."),
        (Reader({2: 1}, silent=[3]), "It is not known whether t has records: the leader of t-2 does not"),
        (Reader({}, silent=[1, 2]), "It is not known whether t has records: the leader of t-0 does not"),
        (Reader({}, hung=[2]), "It is not known whether t has records: the leader of t-1 does not"),
    ],
)
async def test_one_log_proves_records_and_only_all_logs_prove_that_there_are_none(
    reader: Any, evidence: str, autojump_clock: object
) -> None:
    image = cluster(state(1, [1]), state(2, [2]), state(3, [3]), None)
    asked = [CreatePartitionsTopic(name=name, count=6, assignments=None) for name in ("t", "u", "t")]
    with trio.fail_after(1):
        found = await written_topics(image, reader, CreatePartitionsRequest(topics=asked), LIMIT_S)
    assert list(found) == ["t"]
    assert found["t"].why.startswith(evidence) and bool(found["t"].why) is bool(evidence)


@pytest.mark.trio
async def test_a_partition_without_a_live_leader_leaves_the_records_unknown() -> None:
    for lost in (state(-1, [2]), state(9, [9])):
        image = cluster(state(1, [1]), lost)
        asked = [CreatePartitionsTopic(name="t", count=3, assignments=None)]
        request = CreatePartitionsRequest(topics=asked)
        found = await written_topics(image, Reader({}), request, LIMIT_S)  # type: ignore[arg-type]
        assert "the leader of t-1 does not answer" in found["t"].why


@pytest.mark.trio
async def test_a_count_that_stock_clients_follow_asks_no_leader() -> None:
    image = cluster(state(1, [1]), state(1, [1]))
    asked = [CreatePartitionsTopic(name="t", count=4, assignments=None)]
    request = CreatePartitionsRequest(topics=asked)
    assert await written_topics(image, None, request, LIMIT_S) == {}  # type: ignore[arg-type]
