"""A topic's znode is edited by hand. The active controller sees the edit, or the next controller finds the edit.

``tests/unit/ordered_resize/test_judgement.py`` checks the reasons for which edits are refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from anabranch.controller import config_writes, view
from anabranch.controller.effects import Effects
from anabranch.controller.image import ClusterImage
from anabranch.controller.resize import goal
from anabranch.controller.topics import decide_edit, decide_found
from anabranch.ordered_resize.judgement import VerdictKind
from anabranch.protocol.errors import ErrorCode
from anabranch.runtime.env import SetOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionState
from anabranch.zk_schemas.topic import LAYOUT_FIELDS, TopicZnode
from tests.support.controller import decisions
from tests.support.controller.topic_images import asked, image_of, resized
from tests.support.resize.resized_topic import NEXT_ID, Topic

PATH = paths.topic("t")
VERSION = 9
"""The zkVersion of an edited znode."""


def cluster(topic: Topic, *, silent: Collection[int] = ()) -> ClusterImage:
    """Return an image of brokers 1, 2 and 3 and the topic ``t``, whose replicas are on brokers 1 and 2."""
    image = decisions.cluster()
    image.topics["t"] = image_of(topic, silent=silent)
    return image


def edited(znode: TopicZnode, **changes: object) -> TopicZnode:
    """Edit the text of a znode as an operator with ``zkCli`` does. A field with the value None is removed."""
    fields = json.loads(znode.encode()) | changes
    text = json.dumps({name: value for name, value in fields.items() if value is not None})
    return TopicZnode.decode(PATH, text.encode())


def seen(image: ClusterImage, **changes: object) -> Effects:
    """The effects of an edit that the active controller sees."""
    topic = image.topics["t"]
    return decide_edit(image, decisions.CONFIG, topic, edited(topic.znode, **changes), VERSION)


def found(topic: Topic, name: str = "t", **changes: object) -> Effects:
    """The effects of an edit that a new controller finds. No leader has acknowledged that controller yet."""
    image = cluster(topic, silent=topic.topic.partitions)
    read = image.topics.pop("t")
    read.name, read.version = name, VERSION
    read.znode = edited(read.znode, **changes)
    return decide_found(image, decisions.CONFIG, read, view.snapshot_of(image, read), lambda: NEXT_ID)


def written(effects: Effects) -> TopicZnode:
    (op,) = effects.writes
    assert isinstance(op, SetOp) and (op.path, op.version) == (PATH, VERSION)
    return TopicZnode.decode(op.path, op.data)


def assigned(count: int) -> dict[str, list[int]]:
    """The assignment of ``resized(4, ...)`` to ``count`` partitions."""
    return {str(p): [1, 2] if p < 4 else [2, 1] for p in range(count)}


def configure(image: ClusterImage, **config: str) -> None:
    names = {name.replace("_", "."): value for name, value in config.items()}
    config_writes.take(image, paths.topic_config("t"), ConfigZnode(names).encode(), 6)


# ---------------------------------------------------------------- seen by the active controller


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"undeleted_partition_count": 3}, "created with 4 partitions and cannot have fewer"),
        ({"partitions": assigned(6) | {"6": [1]}}, "Partition 6 must have 2 replicas"),
        (
            {"partitions": assigned(6) | {"0": [3, 1, 2]}, "adding_replicas": {"0": [3]}},
            "Only the controller may change adding_replicas",
        ),
        (
            {"initial_partition_count": 9, "padding": "x" * 1_000_000},
            "Only the controller may change initial_partition_count",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_edit_that_the_rules_refuse_is_undone(changes: dict[str, object], why: str) -> None:
    image = cluster(resized(4, 6))
    known = image.topics["t"].znode
    effects = seen(image, **changes)
    assert effects.response.outcome is VerdictKind.REFUSE and why in effects.response.why
    assert (written(effects), effects.znode, effects.events, effects.step) == (known, known, (), "")


def test_an_edit_to_a_count_that_would_never_drain_is_undone() -> None:
    image = cluster(resized(4, 6))
    configure(image, retention_ms="-1")
    effects = seen(image, undeleted_partition_count=5)
    assert (effects.response.outcome, written(effects)) == (VerdictKind.REFUSE, image.topics["t"].znode)
    assert "never expire" in effects.response.why


def test_an_edit_that_adds_partitions_during_a_reassignment_is_undone() -> None:
    image = cluster(Topic(2))
    topic = image.topics["t"]
    topic.znode = topic.znode.replace(adding_replicas={0: [2]})
    effects = seen(image, partitions=assigned(4))
    assert (effects.response.outcome, written(effects)) == (VerdictKind.REFUSE, topic.znode)
    assert "being reassigned" in effects.response.why


def test_an_edit_while_a_resize_is_unfinished_is_queued() -> None:
    topic = asked(4, 6)
    znode = written(seen(cluster(topic), undeleted_partition_count=7))
    assert znode == topic.topic.replace(wanted=7)


def test_an_edit_by_a_tool_that_drops_our_fields_grows_the_topic() -> None:
    fields = dict.fromkeys(("initial_partition_count", "undeleted_partition_count", "layout_version"))
    znode = written(seen(cluster(resized(4, 6)), **fields, partitions=assigned(8), last_leader_epochs=None))
    assert (znode.initial_partition_count, znode.undeleted_partition_count, znode.layout_version) == (4, 8, 2)


def test_fields_that_an_edit_drops_are_written_again() -> None:
    image = cluster(resized(4, 6))
    effects = seen(image, **dict.fromkeys(LAYOUT_FIELDS), topic_id=None)
    assert written(effects) == image.topics["t"].znode
    assert effects.response.outcome is VerdictKind.ACCEPT


# ---------------------------------------------------------------- found by the next controller


@pytest.mark.parametrize(("count", "settled"), [(5, (4, 6)), (9, (4, 6)), (6, (4, 6, 4))])
def test_a_count_edited_without_an_active_controller_is_queued_by_the_next(
    count: int, settled: tuple[int, ...]
) -> None:
    """If an edited count differs from the stored layouts of the same version, it gets a new version (hole 10)."""
    topic = resized(*settled)
    znode = written(found(topic, undeleted_partition_count=count))
    assert znode == topic.topic.replace(wanted=count)
    topic.topic = znode
    image = cluster(topic)
    begun = goal.decide_wanted(image, decisions.CONFIG, image.topics["t"], topic.snapshot()).znode
    assert begun is not None
    assert (begun.undeleted_partition_count, begun.wanted) == (count, None)
    assert (begun.layout_version, begun.previous_undeleted_partition_count) == (len(settled), settled[-1])
    topic.topic = begun
    topic.carry_out()
    if count == 6:  # the grow revives draining partitions
        assert topic.states[5].lineage == (LineageEntry(0, {1: 0}), LineageEntry(2, {1: 2}))


def test_an_unseen_edit_during_a_reassignment_is_undone() -> None:
    topic = Topic(2)
    topic.topic = topic.topic.replace(adding_replicas={0: [2]})
    effects = found(topic, partitions=assigned(4))
    assert effects.response.code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert written(effects) == topic.topic


def test_an_internal_topic_does_not_grow_by_an_edit_that_no_controller_saw() -> None:
    """Another partition count would give every group another coordinator, without the group's offsets."""
    topic = Topic(1)
    effects = found(topic, "__consumer_offsets", partitions=assigned(2))
    assert (effects.response.outcome, effects.znode) == (VerdictKind.REFUSE, topic.topic)


# ---------------------------------------------------------------- contradictions between znodes


def pair(count: int, version: int) -> dict[str, int]:
    return {"undeleted_partition_count": count, "layout_version": version}


def with_state(topic: Topic, partition: int, **fields: Any) -> Topic:
    """Edit the text of a partition's state. A field with the value None is removed."""
    content = json.loads(topic.states[partition].encode()) | fields
    text = json.dumps({name: value for name, value in content.items() if value is not None})
    topic.states[partition] = PartitionState.decode("", text.encode())
    return topic


def frozen(topic: Topic, **changes: object) -> str:
    """Check that a new controller freezes the topic and writes nothing. Return the reason."""
    effects = found(topic, **changes)
    assert effects == Effects("t", response=effects.response)
    assert effects.response.outcome is VerdictKind.FREEZE
    why: str = effects.response.why
    return why


@pytest.mark.parametrize(
    ("partition", "fields", "why"),
    [
        (5, {"lineage": [[0, {"5": 0}]]}, "it names partition 5, itself"),
        (2, {"layout": pair(5, 2)}, "partition 2: layout is 5 partitions in version 2, not the topic's"),
        (2, {"initial_partition_count": 2}, "partition 2: initial_partition_count is 2, and the topic's is 4"),
    ],
    ids=["lineage", "layout", "initial"],
)
def test_a_state_that_contradicts_the_topic_freezes_it(partition: int, fields: dict[str, Any], why: str) -> None:
    assert why in frozen(with_state(resized(4, 6), partition, **fields))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"initial_partition_count": 2}, "partition 0: initial_partition_count is 4, and the topic's is 2"),
        ({"layout_version": None}, "layout_version is missing, and the topic was resized"),
        (
            {"partitions": {str(p): [1] for p in range(6)}},
            "partition 0: broker 2 is in its isr, but not among its assigned replicas",
        ),
    ],
    ids=["initial", "dropped", "replicas"],
)
def test_a_topic_that_contradicts_its_states_is_frozen(changes: dict[str, object], why: str) -> None:
    """No controller saw the edit. The states do not overwrite the topic's znode, because the states may be wrong."""
    assert why in frozen(resized(4, 6), **changes)
