"""The texts that explain why a resize waits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from anabranch.ordered_resize import next_step
from anabranch.ordered_resize.delete_when_drained import DRAIN_KEY, LOSS_KEY, Marked
from anabranch.ordered_resize.explain import Wait, for_records, request_effect, resize_waits
from anabranch.ordered_resize.next_step import STEPS
from anabranch.ordered_resize.snapshot import Phase, Snapshot
from tests.support.resize.resized_topic import Topic


def waits(snapshot: Snapshot, *more: Mapping[int, Sequence[int]]) -> list[str]:
    return resize_waits(snapshot, next_step.phases(snapshot), *more)


def test_a_topic_that_was_never_resized_waits_for_nothing() -> None:
    assert waits(Topic(4).snapshot(), {}) == []


def test_gainers_wait_for_the_leaders_of_their_losers() -> None:
    topic = Topic(4)
    topic.ask(7)
    for p in (0, 1, 3):
        topic.write(STEPS[Phase.BUMP](topic.snapshot(), p))
    assert waits(topic.snapshot(silent=[1, 3]), {}) == [
        "partitions 5, 6 gain keys when the leaders of partitions 1, 2 have answered",
        "partitions 1, 3 have the layout, and their leaders have not answered",
    ]
    topic.electable = {}
    topic.carry_out()
    assert waits(topic.snapshot(), {}) == ["partitions 4, 5, 6 gain keys, and no replica of them may lead"]


def test_marked_and_removed_partitions_and_the_queued_count_are_explained() -> None:
    topic = Topic.split(1, 20)
    topic.ask(1)
    topic.carry_out()
    assert waits(topic.snapshot(), {}) == [
        "partitions 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 9 more are marked for deletion"
    ]
    topic.carry_out(drained=[18, 19])
    topic.ask(20)
    assert waits(topic.snapshot(), {18: [3], 19: [2, 3]})[1:] == [
        "partitions 18, 19 are being removed, and brokers 2, 3 have replicas of them",
        "the resize to 20 partitions is queued",
    ]


def test_partitions_that_were_never_led_are_explained() -> None:
    topic = Topic(3)
    del topic.states[2]
    assert waits(topic.snapshot(), {}) == ["partition 2 has had no leader yet"]


def test_an_unreadable_state_does_not_count_as_never_led() -> None:
    topic = Topic(3)
    del topic.states[2]
    found = dataclasses.replace(topic.snapshot(), unreadable={2})
    assert waits(found, {}) == ["the state of partition 2 cannot be read: see the controller's log"]


def test_a_frozen_topic_waits_for_an_edit() -> None:
    frozen = dataclasses.replace(Topic(2).snapshot(), frozen="layout_version is missing, and the topic was resized")
    assert waits(frozen, {}) == ["frozen: layout_version is missing, and the topic was resized"]


def test_brokers_that_have_not_deleted_the_records_of_a_drained_partition_are_named() -> None:
    topic = Topic.split(1, 4)
    topic.ask(1)
    topic.carry_out()
    assert waits(topic.snapshot(), {}, {1: [2], 2: [2, 3], 3: []}) == [
        "partitions 1, 2, 3 are marked for deletion",
        "brokers 2, 3 are not in sync and have to delete the records of partitions 1, 2",
    ]


def test_a_commit_is_named_where_it_is_ahead_of_the_reported_position() -> None:
    wait = Wait(5, 2, 1, 0, 100, 60, "m")
    words = "partition 5 from epoch 2 waits for partition 1 until offset 100, owned by m, at position 60"
    assert (str(wait), wait.sentence(60), wait.sentence(70)) == (words, words, f"{words} (70 committed)")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"retention.ms": 1}, "their records to expire"),
        ({}, "delete.records.when.drained=true: their records never expire"),
        (
            {"cleanup.policy": "compact"},
            "delete.latest.values.when.drained=true: they have the latest values of their keys",
        ),
    ],
)
def test_a_partition_whose_records_stay_names_the_key_that_lets_them_go(values: dict[str, Any], words: str) -> None:
    config = {"cleanup.policy": "delete", "retention.ms": -1, DRAIN_KEY: False, LOSS_KEY: False} | values
    assert for_records(Marked.of(config), config) == words


@pytest.mark.parametrize(
    ("queued", "count", "effect"),
    [
        (None, 9, "the resize to 9 partitions would be queued"),
        (None, 6, ""),
        (None, 4, "the resize to 6 partitions would be cancelled"),
        (9, 12, "the resize to 12 partitions would be queued in place of the queued resize to 9"),
        (9, 9, "the resize to 9 partitions is queued already"),
        (9, 6, "the queued resize to 9 partitions would be cancelled"),
        (9, 4, "the resize to 6 partitions would be cancelled, and the queued resize to 9 partitions"),
    ],
)
def test_the_effect_on_a_resize_in_progress_is_told(queued: int | None, count: int, effect: str) -> None:
    """A topic goes from 4 to 6 partitions, and perhaps another count is queued."""
    topic = dataclasses.replace(
        Topic(4).topic, undeleted_partition_count=6, previous_undeleted_partition_count=4, wanted=queued
    )
    cancels = count == 4
    asked = dataclasses.replace(
        topic,
        undeleted_partition_count=4 if cancels else 6,
        wanted=None if cancels or count == 6 else count,
    )
    assert request_effect(topic, asked, count) == effect
