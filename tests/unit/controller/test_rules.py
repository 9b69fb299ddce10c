"""Tables and small rules: state machines, topic names, configuration, packing of multis, the event queue."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from anabranch.controller.config import ControllerConfig
from anabranch.controller.events import (
    AdminCall,
    BrokersChanged,
    EventQueue,
    LogDirsFailed,
    TopicChanged,
    TopicListChanged,
)
from anabranch.controller.states import (
    VALID_PREVIOUS_PARTITION_STATUSES,
    VALID_PREVIOUS_REPLICA_STATUSES,
    PartitionStatus,
    ReplicaStatus,
)
from anabranch.controller.store import CONCURRENT_READS, MAX_BYTES, MAX_OPERATIONS, chunks, read_each
from anabranch.controller.topic_id import new_topic_id
from anabranch.controller.topic_names import colliding, name_problem
from anabranch.protocol.transitions import IllegalTransitionError
from anabranch.runtime.env import DeleteOp, SetOp
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.znode import format_id

KEYS = {"controller.id": "1000", "zookeeper.connect": "localhost:2181"}


@pytest.mark.parametrize(
    ("statuses", "valid_previous"),
    [(PartitionStatus, VALID_PREVIOUS_PARTITION_STATUSES), (ReplicaStatus, VALID_PREVIOUS_REPLICA_STATUSES)],
    ids=["partition", "replica"],
)
def test_statuses_change_only_as_in_the_table(statuses: Any, valid_previous: Any) -> None:
    for target, previous in valid_previous.items():
        for status in statuses:
            if status in previous:
                assert status.enter(target) is target
            else:
                with pytest.raises(IllegalTransitionError):
                    status.enter(target)
    assert valid_previous.keys() == set(statuses)


@pytest.mark.parametrize("name", ["a", "a.b_c-D9", "x" * 249, "..."])
def test_valid_topic_names_are_accepted(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ä", "a\n"])
def test_invalid_topic_names_are_refused(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize(
    ("name", "existing", "collision"),
    [
        ("a.b", ["a_b"], "a_b"),
        ("a_b", ["a.b"], "a.b"),
        ("a.b", ["a.b"], None),
        ("a.b_c", ["a_b.c"], "a_b.c"),
        ("ab", ["a_b"], None),
    ],
)
def test_topic_names_that_collide_in_metrics_are_found(name: str, existing: list[str], collision: str | None) -> None:
    assert colliding(name, existing) == collision


def test_topic_ids_never_begin_with_a_dash() -> None:
    rng = random.Random(1)
    ids = [new_topic_id(rng) for _ in range(500)]
    assert len(set(ids)) == 500
    assert not any(format_id(topic_id).startswith("-") for topic_id in ids)


def test_multis_keep_groups_together_and_stay_within_the_limits() -> None:
    groups = [[DeleteOp(f"/a/{i}/x"), DeleteOp(f"/a/{i}")] for i in range(400)]
    packed = chunks(groups)
    assert [op for ops in packed for op in ops] == [op for group in groups for op in group]
    assert all(len(ops) < MAX_OPERATIONS and len(ops) % 2 == 0 for ops in packed)
    large = chunks([[SetOp("/x", bytes(MAX_BYTES // 3))] for _ in range(5)])
    assert [len(ops) for ops in large] == [2, 2, 1]
    assert chunks([]) == []


def test_a_configuration_is_parsed_and_completed_by_defaults() -> None:
    config = ControllerConfig.parse({**KEYS, "controller.listener": "PLAINTEXT://h:0", "num.partitions": 6})
    assert (config.controller_id, config.host, config.port, config.num_partitions) == (1000, "h", 0, 6)
    assert config.zookeeper_start_timeout_ms == config.zookeeper_session_timeout_ms == 18_000


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"controller.id": "999"}, "999 is not at least 1000"),
        ({"controller.lisener": "x"}, "did you mean controller.listener"),
        ({"controller.listener": "SSL://h:1"}, "PLAINTEXT://host:port"),
        ({"controller.listener": "PLAINTEXT://h"}, "PLAINTEXT://host:port"),
        ({"controller.listener": "PLAINTEXT://h:99999"}, "controller.listener"),
    ],
)
def test_configuration_errors_name_the_problem(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ControllerConfig.parse({**KEYS, **given})


@pytest.mark.trio
async def test_the_queue_holds_a_change_event_once_and_keeps_order() -> None:
    queue = EventQueue()
    call = AdminCall(19, None, 7)
    topics = TopicListChanged()
    for event in (topics, TopicChanged("t"), call, TopicListChanged(), TopicChanged("u"), TopicChanged("t")):
        queue.put(event)
    assert await queue.take_all() == [topics, TopicChanged("t"), call, TopicChanged("u")]
    assert queue.watch(TopicChanged("t")) is queue.watch(TopicChanged("t"))
    with trio.move_on_after(0) as scope:
        await queue.take_all()
    assert scope.cancelled_caught


@pytest.mark.trio
async def test_events_that_may_cause_elections_are_taken_before_earlier_ones() -> None:
    queue = EventQueue()
    for event in (TopicListChanged(), BrokersChanged(), BrokersChanged(), LogDirsFailed()):
        queue.put(event)
    assert await queue.take_all() == [TopicListChanged()]
    assert [queue.urgent(), queue.urgent(), queue.urgent()] == [BrokersChanged(), LogDirsFailed(), None]
    queue.put(BrokersChanged())
    assert await queue.take_all() == []
    assert queue.urgent() == BrokersChanged()


@pytest.mark.trio
async def test_many_znodes_are_read_at_the_same_time(autojump_clock: object) -> None:
    """Reading thousands of znodes one after the other would take seconds, and other requests would wait."""
    under_way = most = 0
    read: list[int] = []

    async def slow(item: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)  # pause: a round trip
        under_way -= 1
        read.append(item)
        if item == 3:
            raise ValueError("3")

    with pytest.raises(ValueError, match="3"):
        await read_each(range(10 * CONCURRENT_READS), slow)
    assert sorted(read) == list(range(10 * CONCURRENT_READS)), "an error stops no other read"
    assert most == CONCURRENT_READS > 1
    assert trio.current_time() == 10
