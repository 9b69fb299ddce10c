"""The effects of CreatePartitions and of an edit of the topic's znode.

Each decision is made from an image. Other tests show how a decision is carried out.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.controller import config_writes
from anabranch.controller.admin.create_partitions import PartitionsDemand, create_partitions, decide
from anabranch.controller.admin.resize_wait import ResizeState, state_of_resize
from anabranch.controller.append_window import AppendWindow
from anabranch.controller.carry_out import carry_out, carry_out_all
from anabranch.controller.config import ControllerConfig
from anabranch.controller.effects import AskedReport, Effects
from anabranch.controller.events import ResizesDue
from anabranch.controller.feature_level_rules import for_new_cluster
from anabranch.controller.image import ClusterImage, LiveBroker, StockReport, TopicImage
from anabranch.controller.outcome import ResponseWait
from anabranch.controller.resize import goal
from anabranch.controller.store import ImageStaleError
from anabranch.controller.topics import decide_edit, undone
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.runtime.env import SetOp, ZkOp, ZkRequestTooLargeError
from anabranch.runtime.zk_requests import check_fits
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.features import SUPPORTED, Features, FeaturesStatus
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.decisions import context_of
from tests.support.controller.refusals import assert_only_refuses
from tests.support.controller.topic_images import asked, image_of, resized, unfinished
from tests.support.resize.resized_topic import Topic

CONFIG = ControllerConfig(controller_id=1000, zookeeper_connect="z")
PATH = paths.topic("t")


def cluster(topic: TopicImage) -> ClusterImage:
    """Return an image of brokers 1 and 2 and the topic ``t``."""
    registration = BrokerRegistration([Endpoint("PLAINTEXT", "a", 9092)], features=dict(SUPPORTED))
    brokers = {id: LiveBroker(id, 5, registration) for id in (1, 2)}
    image = ClusterImage(1000, 4, brokers=brokers, topics={"t": topic})
    image.features = for_new_cluster(SUPPORTED)
    return image


def fits(_ops: Sequence[ZkOp]) -> None:
    pass


def decided(
    image: ClusterImage, count: int, *, name: str = "t", config: ControllerConfig = CONFIG, **demand: bool
) -> Effects:
    return decide(
        image,
        config,
        PartitionsDemand(CreatePartitionsTopic(name=name, count=count, assignments=None), **demand),
        fits,
        0.0,
    )


def refused(image: ClusterImage, count: int, code: ErrorCode, config: ControllerConfig = CONFIG) -> str:
    """Check that the count is refused with ``code``, also by a dry run. Return the message."""
    effects = decided(image, count, config=config)
    assert_only_refuses(effects, code)
    assert decided(image, count, config=config, validate_only=True) == effects
    message: str = effects.response.error_message
    return message


def configure(image: ClusterImage, **config: str) -> None:
    """Give the topic's config these values. Names of keys have underscores for dots."""
    names = {name.replace("_", "."): value for name, value in config.items()}
    config_writes.take(image, paths.topic_config("t"), ConfigZnode(names).encode(), 6)


def written(effects: Effects) -> TopicZnode:
    (op,) = effects.writes
    assert op.path == PATH
    return TopicZnode.decode(PATH, op.data)


def test_a_count_is_written_and_waits_for_the_leaders() -> None:
    topic = image_of(Topic(4))
    before = topic.znode
    effects = decided(cluster(topic), 8)
    znode = written(effects)
    assert (znode.undeleted_partition_count, znode.layout_version, len(znode.partitions)) == (8, 1, 8)
    assert (effects.znode, replaced(effects)) == (znode, topic.version)
    assert (effects.step, effects.events, len(effects.waits)) == ("asked-for", (ResizesDue(),), 1)
    assert (effects.metadata, effects.leader_and_isr, effects.asks) == ((), (), ())
    assert topic.znode is before and len(topic.partitions) == 4  # a decision does not change the image


def test_brokers_are_asked_for_stock_producers_that_cannot_follow_the_count() -> None:
    assert decided(cluster(image_of(Topic(4))), 6).asks == (AskedReport.STOCK_PRODUCERS,)


def test_a_count_during_a_resize_is_queued_and_answered_at_once() -> None:
    effects = decided(cluster(image_of(asked(4, 6, 8), silent=[0])), 9)
    assert written(effects).wanted == 9
    assert (effects.step, list(effects.waits)) == ("queued", [])
    assert effects.response.error_code == ErrorCode.NONE
    assert effects.response.error_message.startswith("The resize begins when the one before it is done:")


def test_a_count_that_waits_for_a_lost_leader_names_no_resize_before() -> None:
    effects = decided(cluster(image_of(resized(4, 6), silent=[0])), 9)
    assert written(effects).wanted == 9
    assert effects.response.error_message == (
        "The resize is queued and waits: partition 0 has the layout, and its leader has not answered; "
        "the resize to 9 partitions is queued."
    )
    effects = decided(cluster(image_of(resized(4, 6), silent=[0])), 6)
    assert effects.response.error_message == "Topic already has 6 partitions."


def test_a_dry_run_answers_with_the_goal_and_the_queued_count() -> None:
    for topic, expected in ((asked(4, 6), (6, -1)), (asked(4, 6, 8), (8, -1)), (Topic(4), (4, -1))):
        assert goal_of(topic) == expected
    queued = asked(4, 6)
    queued.topic = queued.topic.replace(wanted=8)
    assert goal_of(queued) == (6, 8)


def goal_of(topic: Topic) -> tuple[int, int]:
    requested = CreatePartitionsTopic(name="t", count=-1, assignments=None, wants_goal=True)
    effects = decide(
        cluster(image_of(topic)), CONFIG, PartitionsDemand(requested, validate_only=True), lambda _: None, 0.0
    )
    assert (effects.writes, effects.waits, effects.response.error_code) == ((), (), ErrorCode.NONE)
    return effects.response.goal_count, effects.response.queued_count


def test_the_count_under_way_is_not_written_again() -> None:
    effects = decided(cluster(image_of(asked(4, 8))), 8)
    assert (effects.znode, effects.writes, effects.step, len(effects.waits)) == (None, (), "", 1)


@pytest.mark.parametrize("count", [6, 8])
def test_a_dry_run_writes_nothing(count: int) -> None:
    effects = decided(cluster(image_of(Topic(4))), count, validate_only=True)
    assert (effects.znode, effects.writes, effects.events, effects.step) == (None, (), (), "")
    assert len(effects.waits) == len(effects.asks) == (1 if count == 6 else 0)


def replaced(effects: Effects) -> int:
    """Return the zkVersion that the write overwrites."""
    (op,) = effects.writes
    assert isinstance(op, SetOp)
    return op.version


def refusals() -> dict[str, tuple[ErrorCode, Effects]]:
    topic = CreatePartitionsTopic(name="t", count=8, assignments=None)
    deleted, malformed = cluster(image_of(Topic(4))), cluster(image_of(Topic(4)))
    deleted.deletions["t"] = {}
    malformed.malformed["u"] = 7
    image, internal = cluster(image_of(Topic(4))), cluster(image_of(Topic(4)))
    internal.topics["__consumer_offsets"] = internal.topics["t"]
    internal.topics["__consumer_offsets"].name = "__consumer_offsets"

    def given(count: int, *replicas: int) -> Effects:
        assignments = [CreatePartitionsAssignment(broker_ids=[broker, 2]) for broker in replicas]
        wanted = CreatePartitionsTopic(name="t", count=count, assignments=assignments)
        return decide(image, CONFIG, PartitionsDemand(wanted), fits, 0.0)

    def too_large(_ops: Sequence[ZkOp]) -> None:
        raise ZkRequestTooLargeError(PATH, 9, 8)

    return {
        "no such topic": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, decided(image, 8, name="u")),
        "twice": (ErrorCode.INVALID_REQUEST, decided(image, 8, is_repeated=True)),
        "being deleted": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, decided(deleted, 8)),
        "malformed": (ErrorCode.INVALID_TOPIC_EXCEPTION, decided(malformed, 8, name="u")),
        "the same count": (ErrorCode.INVALID_PARTITIONS, decided(image, 4)),
        "fewer than created": (ErrorCode.INVALID_PARTITIONS, decided(image, 3)),
        "internal": (ErrorCode.INVALID_REQUEST, decided(internal, 60, name="__consumer_offsets")),
        "too few given": (ErrorCode.INVALID_REPLICA_ASSIGNMENT, given(8, 1, 1)),
        "none given": (ErrorCode.INVALID_REPLICA_ASSIGNMENT, given(5)),
        "a broker that is not registered": (ErrorCode.INVALID_REPLICA_ASSIGNMENT, given(5, 9)),
        "too large": (ErrorCode.INVALID_PARTITIONS, decide(image, CONFIG, PartitionsDemand(topic), too_large, 0.0)),
    }


@pytest.mark.parametrize("kind", list(refusals()))
def test_a_refusal_has_no_effect_except_its_response(kind: str) -> None:
    code, effects = refusals()[kind]
    assert effects.response.error_code == code, effects.response
    assert effects == Effects(effects.topic, response=effects.response)


def test_the_largest_count_follows_from_max_partitions() -> None:
    image = cluster(image_of(Topic(4)))
    assert decided(image, 20_000, validate_only=True).response.error_code == ErrorCode.NONE
    message = refused(image, 20_001, ErrorCode.POLICY_VIOLATION)
    assert "19997 more would exceed the limit of 20000 (max.partitions)" in message


def test_a_shrink_that_would_never_drain_is_refused_with_the_config_that_allows_it() -> None:
    """Hole 23: the refusal names the config that would let the marked partitions drain."""
    image = cluster(image_of(resized(4, 6)))
    configure(image, retention_ms="-1")
    message = refused(image, 4, ErrorCode.POLICY_VIOLATION)
    assert "never expire" in message and "delete.records.when.drained=true" in message
    configure(image, retention_ms="-1", delete_records_when_drained="true")
    assert decided(image, 4).response.error_code == ErrorCode.NONE


def test_a_resize_that_makes_a_znode_too_large_is_refused_before_the_goal_is_written() -> None:
    """``partition.state.max.bytes``: a partition that was merged often and never removed is in every lineage entry."""
    image = cluster(image_of(resized(4, 160, 4, 160)))
    config = dataclasses.replace(CONFIG, partition_state_max_bytes=1024)
    message = refused(image, 4, ErrorCode.INVALID_PARTITIONS, config)
    assert "The znode of partition 0 would have " in message and "more than 1024 (partition.state.max" in message
    assert written(decided(image, 156, config=config)).undeleted_partition_count == 156


@pytest.mark.parametrize(("removing", "named"), [({}, "Partition 0 is"), ({1: [2]}, "Partitions 0, 1 are")])
def test_a_resize_during_a_reassignment_is_refused_and_changes_nothing(
    removing: dict[int, list[int]], named: str
) -> None:
    topic = image_of(Topic(4))
    topic.znode = topic.znode.replace(adding_replicas={0: [2]}, removing_replicas=removing)
    message = refused(cluster(topic), 8, ErrorCode.REASSIGNMENT_IN_PROGRESS)
    assert f"{named} being reassigned" in message


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_does_not_grow_beyond_one_request_to_zookeeper(validate_only: bool) -> None:
    """With a low ``jute.maxbuffer``, the servers accept less than the bound of a topic's znode."""
    demand = PartitionsDemand(CreatePartitionsTopic(name="t", count=400, assignments=None), validate_only)
    check = functools.partial(check_fits, limit=3000)
    effects = decide(cluster(image_of(Topic(4))), CONFIG, demand, check, 0.0)
    assert_only_refuses(effects, ErrorCode.INVALID_PARTITIONS)
    message = effects.response.error_message
    assert "400 partitions of t are too many" in message and "accepts 3000 (jute.maxbuffer)" in message


def test_a_topic_is_resized_only_while_ordered_resize_is_finalized() -> None:
    """KIP-584: the level of the feature allows resizes."""
    image = cluster(image_of(resized(4, 6)))
    image.features = Features(FeaturesStatus.DISABLED)
    message = refused(image, 8, ErrorCode.POLICY_VIOLATION)
    assert "ordered_resize" in message and "`anabranch features upgrade --all`" in message
    image.features = for_new_cluster(SUPPORTED)
    assert decided(image, 8).response.error_code == ErrorCode.NONE


@pytest.mark.trio
@pytest.mark.parametrize("counts", [(6, 8), (6, 6)])
async def test_a_request_that_names_the_topic_twice_is_refused(counts: tuple[int, int]) -> None:
    """The intended count is unknown, even if both counts are equal."""
    context = context_of(cluster(image_of(Topic(4))))
    topics = [CreatePartitionsTopic(name="t", count=count, assignments=None) for count in counts]
    outcome = await carry_out_all(context, create_partitions(context, CreatePartitionsRequest(topics=topics), 3))
    (result,) = outcome.response.results
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message == "The topic is named more than once in the request."
    assert (context.store.multis, outcome.waits) == ([], [])


def test_the_measured_rate_is_returned_and_the_measurement_continues() -> None:
    topic = image_of(Topic(4))
    topic.append_window = AppendWindow(0.0)
    wanted = CreatePartitionsTopic(name="t", count=4, assignments=None, wants_measured=True)
    effects = decide(cluster(topic), CONFIG, PartitionsDemand(wanted, validate_only=True), fits, 5.0)
    assert effects.asks == (AskedReport.APPENDED_BYTES,)
    assert (effects.response.error_code, effects.writes) == (ErrorCode.NONE, ())
    assert topic.append_window.asked_at == 0.0


# ---------------------------------------------------------------- advice about stock producers


def written_by_stock_producers(topic: TopicImage, seconds_ago: float) -> None:
    """Let broker 2 report that stock producers wrote to the topic."""
    topic.stock_reports[2] = StockReport(written_at=-seconds_ago, misplaced_at=None)


def advice(image: ClusterImage, wait: ResponseWait) -> str | None:
    """Return the message of a response that is complete."""
    assert wait.condition(context_of(image))
    assert wait.result.error_code == ErrorCode.NONE
    message: str | None = wait.result.error_message
    return message


@pytest.mark.parametrize(("seconds_ago", "is_given"), [(None, False), (599, True), (601, False)])
@pytest.mark.parametrize("validate_only", [True, False])
def test_a_request_for_a_count_that_stock_producers_cannot_follow_gets_advice(
    validate_only: bool, seconds_ago: float | None, is_given: bool
) -> None:
    image = cluster(image_of(Topic(4)))
    (wait,) = decided(image, 6, validate_only=validate_only).waits
    topic = image.topics["t"] = image_of(Topic(4) if validate_only else resized(4, 6))
    topic.flush = 1
    if seconds_ago is not None:
        written_by_stock_producers(topic, seconds_ago)
    message = advice(image, wait)
    assert (message is not None) is is_given
    if message is not None:
        assert "wrote to t within the last 10 minutes" in message
        assert "They can follow 4 or 8 partitions" in message


@pytest.mark.parametrize(("seconds_ago", "is_given"), [(None, False), (599, True), (601, False)])
@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_merge_gets_advice_even_to_a_count_by_which_stock_producers_place_keys(
    is_ordered: bool, validate_only: bool, seconds_ago: float | None, is_given: bool
) -> None:
    """A producer has the old count until it refreshes, and metadata lists the merged partitions until they are gone."""
    image = cluster(image_of(resized(4, 8)))
    effects = decided(image, 4, validate_only=validate_only)
    (wait,) = effects.waits
    assert effects.asks == (AskedReport.STOCK_PRODUCERS,)
    topic = image.topics["t"] = image_of(resized(4, 8) if validate_only else resized(4, 8, 4))
    topic.znode = topic.znode.replace(ordered_delivery=is_ordered)
    topic.flush = 1
    if seconds_ago is not None:
        written_by_stock_producers(topic, seconds_ago)
    message = advice(image, wait)
    assert (message is not None) is is_given
    if message is not None:
        assert "it places keys by hash % 8" in message
        assert message.endswith("Such producers can follow no lower count.")


def test_a_merge_to_a_count_by_which_no_stock_producer_places_keys_gets_both_sentences() -> None:
    image = cluster(image_of(resized(4, 8)))
    (wait,) = decided(image, 6, validate_only=True).waits
    image.topics["t"].flush = 1
    written_by_stock_producers(image.topics["t"], 0)
    message = advice(image, wait) or ""
    assert "Such producers can follow no lower count. They place keys by hash % 6" in message


def test_no_advice_is_given_if_stock_producers_can_follow() -> None:
    image = cluster(image_of(Topic(4)))
    written_by_stock_producers(image.topics["t"], 0)
    effects = decided(image, 8, validate_only=True)
    assert (effects.response.error_message, effects.waits, effects.asks) == (None, [], ())


# ---------------------------------------------------------------- the state of a requested resize


def unrecorded(*counts: int) -> Topic:
    """Return a resized topic whose znode does not say that the resize is over."""
    topic = resized(*counts)
    topic.topic = topic.topic.replace(finished_layout_version=None)
    return topic


def stood(found: TopicImage | None, *, is_being_deleted: bool = False) -> tuple[ResizeState, ErrorCode]:
    """Return the state of a resize from 4 to 8 partitions with layout version 1, and the response's error."""
    image = cluster(image_of(Topic(4)))
    (wait,) = decided(image, 8).waits
    topic = image.topics.pop("t")
    if found is not None:
        image.topics["t"] = found
    if is_being_deleted:
        image.deletions["t"] = {}
    state = state_of_resize(image, topic, 1, 8)
    assert wait.condition(context_of(image)) is (state not in (ResizeState.UNFINISHED, ResizeState.SETTLED))
    return state, ErrorCode(wait.result.error_code)


@pytest.mark.parametrize(
    ("topic", "state"),
    [
        (None, ResizeState.UNFINISHED),
        (image_of(asked(4, 8)), ResizeState.UNFINISHED),
        (unfinished(4, 8, silent=[0]), ResizeState.UNFINISHED),
        (image_of(unrecorded(4, 8)), ResizeState.UNFINISHED),  # the next controller would have to ask again
        (image_of(resized(4, 8)), ResizeState.SETTLED),  # no broker has acknowledged the layout
        (image_of(resized(4, 8, 12)), ResizeState.FOLLOWED),
    ],
)
def test_a_resize_ends_without_an_error(topic: TopicImage | None, state: ResizeState) -> None:
    assert stood(topic) == (state, ErrorCode.NONE)


def test_a_resize_that_is_cancelled_or_whose_topic_is_deleted_ends_with_an_error() -> None:
    back = Topic(4)
    back.ask(8)
    back.ask(4)
    assert stood(image_of(back)) == (ResizeState.TAKEN_BACK, ErrorCode.POLICY_VIOLATION)
    deleted = (ResizeState.DELETED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert stood(image_of(asked(4, 8)), is_being_deleted=True) == deleted
    assert stood(dataclasses.replace(image_of(resized(4, 8)), czxid=8)) == deleted  # a new topic of the same name


# ---------------------------------------------------------------- edits


def test_a_manual_edit_has_the_same_effects_as_a_request() -> None:
    topic = image_of(Topic(4))
    image, request = cluster(topic), decided(cluster(topic), 8)
    edit = decide_edit(image, CONFIG, topic, topic.znode.replace(undeleted_partition_count=8), 9)
    assert (edit.znode, edit.step, edit.events) == (request.znode, request.step, request.events)
    assert replaced(edit) == 9


def test_an_edit_that_needs_no_correction_is_not_written() -> None:
    topic = image_of(Topic(4))
    edited = topic.znode.replace(extra={"theirs": 1})
    edit = decide_edit(cluster(topic), CONFIG, topic, edited, 9)
    assert (edit.znode, edit.version, edit.writes, edit.step) == (edited, 9, (), "")


# ---------------------------------------------------------------- carrying out


class Journal:
    """A context whose parts record their calls in ``done``, in order."""

    def __init__(self, image: ClusterImage, *, stale: bool = False) -> None:
        self.image, self.stale, self.done = image, stale, list[Any]()
        self.store = SimpleNamespace(write=self._write)
        self.batch = SimpleNamespace(
            leader_and_isr=lambda tp: self.done.append(("leader", tp.partition)),
            metadata=lambda tps: self.done.append(("metadata", len(list(tps)))),
        )
        self.events = SimpleNamespace(put=self.done.append)

    async def _write(self, ops: Sequence[ZkOp]) -> list[int]:
        if self.stale:
            raise ImageStaleError("changed")
        self.done.append(("write", self.image.topics["t"].version))
        return [41]


@pytest.mark.trio
async def test_effects_are_written_before_the_image_changes_and_sent_after() -> None:
    topic = image_of(Topic(4))
    topic.wait_logged = "a resize before waits"
    context: Any = Journal(cluster(topic))
    recreated = topic.znode.replace(topic_id=uuid.UUID(int=77))
    await carry_out(context, goal.becoming(topic, recreated, topic.version))
    assert context.done == [("write", 3), *(("leader", p) for p in range(4)), ResizesDue()]
    assert (topic.znode, topic.version) == (recreated, 41)
    assert topic.wait_logged == "", "the next wait is logged even for the same reason"


@pytest.mark.trio
async def test_a_write_that_fails_changes_nothing() -> None:
    topic = image_of(Topic(4))
    before = topic.znode
    context: Any = Journal(cluster(topic), stale=True)
    with pytest.raises(ImageStaleError):
        await carry_out(context, decided(context.image, 6))
    assert (topic.znode, topic.version, len(topic.partitions), context.done) == (before, 3, 4, [])


@pytest.mark.trio
async def test_an_undone_edit_is_not_sent_to_brokers() -> None:
    topic = image_of(Topic(4))
    context: Any = Journal(cluster(topic))
    topic.wait_logged = "a broker is away"
    await carry_out(context, undone(topic, 9))
    assert (context.done, topic.version, topic.wait_logged) == ([("write", 3)], 41, "a broker is away")
