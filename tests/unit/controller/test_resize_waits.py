"""Log lines about partitions that are not drained: one line for each new reason."""

from __future__ import annotations

import dataclasses

import pytest

from anabranch.controller.events import PartitionProcessed, ReplicasBehind
from anabranch.controller.image import ClusterImage, Ending, Leftover
from anabranch.controller.resize import draining, ends
from anabranch.controller.resize.waits import Round, changed_waits
from anabranch.ordered_resize import next_step
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.snapshot import Phase
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition
from tests.support.controller.decisions import context_of
from tests.support.controller.topic_images import image_of, resized
from tests.support.resize.resized_topic import Topic

T3, T4, T5, U1 = TopicPartition("t", 3), TopicPartition("t", 4), TopicPartition("t", 5), TopicPartition("u", 1)
COMMIT = Wait(why="its commits", group="g", position=3, offset=40)
NOBODY = Wait(why="a group that reads the topic")
DELETES = Wait(why="brokers 3 to delete their replicas")


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        ({}, {}, []),
        ({}, {T5: COMMIT}, ["topic=t partitions=5 group=g read=3 end=40 waits_for=its commits"]),
        ({T5: COMMIT}, {T5: COMMIT}, []),
        ({T5: COMMIT}, {T5: COMMIT._replace(position=30)}, []),
        ({T5: COMMIT}, {}, []),
        (
            {T5: COMMIT},
            {T5: COMMIT._replace(group="h")},
            ["topic=t partitions=5 group=h read=3 end=40 waits_for=its commits"],
        ),
        (
            {T5: COMMIT},
            {T5: COMMIT._replace(why="its flush callback", position=-1)},
            ["topic=t partitions=5 group=g read=-1 end=40 waits_for=its flush callback"],
        ),
        (
            {T5: COMMIT},
            {T4: COMMIT._replace(position=7), T5: COMMIT},
            ["topic=t partitions=4 group=g read=7 end=40 waits_for=its commits"],
        ),
        (
            {},
            {U1: NOBODY, T5: COMMIT, T4: COMMIT._replace(position=7, offset=9)},
            [
                "topic=t partitions=4,5 group=g read=7,3 end=9,40 waits_for=its commits",
                "topic=u partitions=1 waits_for=a group that reads the topic",
            ],
        ),
    ],
    ids=["nothing", "first", "same", "reads-on", "done", "another-group", "another-reason", "one-more", "together"],
)
def test_each_new_reason_is_logged_once(
    before: dict[TopicPartition, Wait], now: dict[TopicPartition, Wait], lines: list[str]
) -> None:
    assert [
        " ".join(f"{key}={value}" for key, value in fields.items()) for fields in changed_waits(before, now)
    ] == lines


@pytest.mark.parametrize(
    ("processed", "found", "after"),
    [
        (set(), {}, {T4: COMMIT, T5: COMMIT}),
        ({4}, {}, {T5: COMMIT}),
        ({4}, {T5: NOBODY}, {T5: NOBODY}),
        ({4}, {T4: DELETES}, {T4: DELETES, T5: COMMIT}),
        (set(), {T3: COMMIT}, {T4: COMMIT, T5: COMMIT}),
    ],
    ids=["nothing-learnt", "processed", "another-reason", "removed", "not-marked-any-more"],
)
def test_a_partition_that_every_group_has_processed_waits_for_none(
    processed: set[int], found: dict[TopicPartition, Wait], after: dict[TopicPartition, Wait]
) -> None:
    """The partition may stay for a while, because the highest marked partition is removed first."""
    topic = image_of(resized(4, 6, 4))
    image = ClusterImage(1000, 1, topics={"t": topic})
    for index in (4, 5):
        topic.partitions[index].ending = Ending(1, end_offset=40)
    reported = {TopicPartition("t", index) for index in processed}
    before = {T3: COMMIT, T4: COMMIT, T5: COMMIT, U1: COMMIT}
    assert draining.waits_after(image, before, Round(found, reported)) == after, "before the queue has the event"
    for index in (4, 5):
        topic.partitions[index].ending = Ending(1, end_offset=40, is_processed=index in processed)
    assert draining.waits_after(image, before, Round(found, set())) == after


OF = Leftover(T4, leader=1, leader_epoch=1, incarnation=9, end_offset=40)


@pytest.mark.parametrize(
    "of",
    [
        OF._replace(end_offset=41),
        OF._replace(leader_epoch=0),
        OF._replace(incarnation=8),
        OF._replace(leader=2),
        OF._replace(tp=U1),
    ],
    ids=["other-end", "former-leader-epoch", "former-incarnation", "other-leader", "deleted-topic"],
)
def test_a_report_about_a_partition_that_has_changed_since_does_not_count(of: Leftover) -> None:
    topic = image_of(resized(4, 6, 4))
    state = topic.state(4)
    assert state is not None
    topic.partitions[4].state = state.replace(leader=1)
    topic.partitions[4].ending = ending = Ending(1, end_offset=40, log_start_offset=7)
    context = context_of(ClusterImage(1000, 1, topics={"t": topic}))
    before = dataclasses.replace(ending)
    ends.on_partition_processed(context, PartitionProcessed(of))
    ends.on_replicas_behind(context, ReplicasBehind(of, (3,)))
    assert ending == before
    ends.on_replicas_behind(context, ReplicasBehind(OF, (3,)))
    assert (ending.behind, ending.log_start_offset) == ((3,), NO_OFFSET), "the leader is asked again"
    ends.on_partition_processed(context, PartitionProcessed(OF))
    assert (ending.behind, ending.is_processed) == ((), True)


def test_explaining_a_merge_of_twice_as_many_partitions_takes_twice_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, phase_of = 0, next_step.phase_of

    def counted(*args: object) -> Phase:
        nonlocal looked
        looked += 1
        return phase_of(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(next_step, "phase_of", counted)
    found = []
    for count in (32, 64):
        topic = Topic.split(4, count)
        topic.ask(4)
        image = image_of(topic)
        looked = 0
        waits = draining.standing(ClusterImage(1000, 1, topics={"t": image}), image)
        assert set(waits) == set(range(4, count))
        assert all(wait.why.startswith("the merge: ") for wait in waits.values())
        found.append(looked)
    assert found[1] <= 2.5 * found[0]
