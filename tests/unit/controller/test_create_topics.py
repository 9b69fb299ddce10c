"""The effects of CreateTopics.

Each decision is made from an image; other tests show the answer to a refused write.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.controller.admin.create_topics import CreationDemand, create_topics, decide
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.config import ControllerConfig
from anabranch.controller.effects import Effects
from anabranch.controller.image import ClusterImage, LiveBroker
from anabranch.controller.outcome import Outcome
from anabranch.controller.store import ImageStaleError
from anabranch.controller.stored_config import StoredConfig
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.runtime.env import CreateOp, NodeExistsError, SetOp, ZkOp, ZkRequestTooLargeError
from anabranch.runtime.zk_requests import check_fits
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.refusals import assert_only_refuses
from tests.support.controller.topic_images import image_of
from tests.support.resize.resized_topic import Topic

CONFIG = ControllerConfig(
    controller_id=1000, zookeeper_connect="z", num_partitions=3, default_replication_factor=2, max_partitions=20
)


def cluster() -> ClusterImage:
    """Return an image of brokers 1 and 2."""
    registration = BrokerRegistration([Endpoint("PLAINTEXT", "a", 9092)])
    return ClusterImage(1000, 4, brokers={id: LiveBroker(id, 5, registration) for id in (1, 2)})


def topic(name: str = "t", partitions: int = -1, factor: int = -1, **configs: str | None) -> CreatableTopic:
    entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=[], configs=entries
    )


def fits(_ops: Sequence[ZkOp]) -> None:
    pass


def too_large(_ops: Sequence[ZkOp]) -> None:
    raise ZkRequestTooLargeError(paths.topic_config("t"), 9, 8)


def decided(
    wanted: CreatableTopic, existing: Collection[str] = (), *, image: ClusterImage | None = None, **demand: Any
) -> Effects:
    return decide(image or cluster(), CONFIG, existing, CreationDemand(wanted, **demand), random.Random(1), fits)


def test_a_topic_is_written_after_its_config_and_waits_until_it_is_served() -> None:
    image = cluster()
    effects = decided(topic(retention_ms="5"), image=image)
    config, created = effects.writes
    assert isinstance(config, CreateOp) and isinstance(created, CreateOp)
    assert (config.path, created.path) == (paths.topic_config("t"), paths.topic("t"))
    assert ConfigZnode.decode(config.path, config.data).config == {"retention.ms": "5"}
    znode = TopicZnode.decode(created.path, created.data)
    assert {p: sorted(replicas) for p, replicas in znode.partitions.items()} == {0: [1, 2], 1: [1, 2], 2: [1, 2]}
    assert (effects.topic, effects.created, effects.notify, len(effects.waits)) == ("t", 3, ["topics/t"], 1)
    result = effects.response
    assert (result.error_code, result.topic_id) == (ErrorCode.NONE, znode.topic_id)
    assert (result.num_partitions, result.replication_factor) == (3, 2)
    assert (image.created, image.topics, image.configs) == ({}, {}, {})  # a decision does not change the image


def test_a_topic_without_overrides_causes_no_notification() -> None:
    assert decided(topic()).notify == ()


def test_a_config_left_by_an_earlier_topic_of_the_same_name_is_replaced() -> None:
    image = cluster()
    path = paths.topic_config("t")
    image.configs[path] = StoredConfig.decode(path, ConfigZnode({"retention.ms": "7"}).encode(), 6)
    config = decided(topic(), image=image).writes[0]
    assert isinstance(config, SetOp) and config.version == 6
    assert ConfigZnode.decode(path, config.data).config == {}


def test_a_topic_that_is_only_validated_has_no_effect_except_its_response() -> None:
    effects = decided(topic(partitions=5), validate_only=True)
    assert effects == Effects("t", response=effects.response)
    assert (effects.response.error_code, effects.response.num_partitions) == (ErrorCode.NONE, 5)


def test_a_given_assignment_is_used() -> None:
    effects = decided(assigned({0: [2], 1: [2]}))
    znode = TopicZnode.decode("", effects.writes[1].data)  # type: ignore[union-attr]
    assert (effects.response.error_code, znode.partitions) == (ErrorCode.NONE, {0: [2], 1: [2]})


def assigned(replicas: Mapping[int, list[int]], partitions: int = -1) -> CreatableTopic:
    wanted = topic(partitions=partitions)
    wanted.assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=b) for i, b in replicas.items()]
    return wanted


@pytest.mark.parametrize(("planned", "code"), [(15, ErrorCode.NONE), (16, ErrorCode.POLICY_VIOLATION)])
def test_the_limit_counts_the_topics_validated_before_it(planned: int, code: ErrorCode) -> None:
    effects = decided(topic(partitions=5), validate_only=True, planned=planned)
    assert effects.response.error_code == code


def refusals() -> dict[str, tuple[ErrorCode, Effects]]:
    oversize = decide(cluster(), CONFIG, (), CreationDemand(topic(retention_ms="5")), random.Random(1), too_large)
    return {
        "twice": (ErrorCode.INVALID_REQUEST, decided(topic(), is_repeated=True)),
        "an illegal name": (ErrorCode.INVALID_TOPIC_EXCEPTION, decided(topic("a b"))),
        "no name": (ErrorCode.INVALID_TOPIC_EXCEPTION, decided(topic(""))),
        "existing": (ErrorCode.TOPIC_ALREADY_EXISTS, decided(topic(), ["t"])),
        "colliding": (ErrorCode.INVALID_TOPIC_EXCEPTION, decided(topic("a.b"), ["a_b"])),
        "a config without value": (ErrorCode.INVALID_CONFIG, decided(topic(retention_ms=None))),
        "a config that cannot be": (ErrorCode.INVALID_CONFIG, decided(topic(retention_ms="soon"))),
        "an unknown config": (ErrorCode.INVALID_CONFIG, decided(topic(no_such_key="1"))),
        "a config out of range": (ErrorCode.INVALID_CONFIG, decided(topic(retention_ms="-2"))),
        "autoscaling of an internal topic": (
            ErrorCode.INVALID_CONFIG,
            decided(topic("__consumer_offsets", autoscale_enable="true")),
        ),
        "more partitions than any topic has": (ErrorCode.INVALID_PARTITIONS, decided(topic(partitions=2**31 - 1))),
        "no partitions": (ErrorCode.INVALID_PARTITIONS, decided(topic(partitions=0))),
        "no replicas": (ErrorCode.INVALID_REPLICATION_FACTOR, decided(topic(factor=0))),
        "more replicas than brokers": (ErrorCode.INVALID_REPLICATION_FACTOR, decided(topic(factor=3))),
        "a broker that is not registered": (ErrorCode.INVALID_REPLICA_ASSIGNMENT, decided(assigned({0: [1, 9]}))),
        "no replicas for partition 0": (ErrorCode.INVALID_REPLICA_ASSIGNMENT, decided(assigned({1: [1]}))),
        "count and assignment": (ErrorCode.INVALID_REQUEST, decided(assigned({0: [1]}, partitions=1))),
        "over the limit": (ErrorCode.POLICY_VIOLATION, decided(topic(partitions=21))),
        "configs too long": (ErrorCode.INVALID_CONFIG, oversize),
    }


@pytest.mark.parametrize("kind", list(refusals()))
def test_a_refusal_has_no_effect_except_its_response(kind: str) -> None:
    code, effects = refusals()[kind]
    assert_only_refuses(effects, code)


def test_a_long_name_is_refused_with_a_short_message() -> None:
    result = decided(topic("n" * 30_000)).response
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert len(result.error_message) < 1_100


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_with_a_config_too_large_for_zookeeper_is_not_created(validate_only: bool) -> None:
    wanted = topic()
    wanted.configs = [CreatableTopicConfig(name="leader.replication.throttled.replicas", value="1:1," * 999 + "1:1")]
    demand = CreationDemand(wanted, validate_only)
    effects = decide(cluster(), CONFIG, (), demand, random.Random(1), functools.partial(check_fits, limit=3000))
    assert_only_refuses(effects, ErrorCode.INVALID_CONFIG)
    assert "jute.maxbuffer" in effects.response.error_message


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_with_too_many_partitions_is_refused_by_its_size(validate_only: bool) -> None:
    effects = decided(topic(partitions=45_000, factor=2), validate_only=validate_only)
    assert_only_refuses(effects, ErrorCode.INVALID_PARTITIONS)
    assert "45000 partitions of 2 replicas, takes" in effects.response.error_message


@pytest.mark.parametrize("validate_only", [True, False])
def test_the_cluster_has_no_more_partitions_than_its_limit(validate_only: bool) -> None:
    """``max.partitions``. A request without a count counts with the default, and internal topics are exempt."""
    image, config = cluster(), dataclasses.replace(CONFIG, max_partitions=10, num_partitions=7)
    image.topics["t"] = image_of(Topic(4))

    def answer(wanted: CreatableTopic) -> Effects:
        return decide(image, config, ["t"], CreationDemand(wanted, validate_only), random.Random(1), fits)

    effects = answer(topic("u"))
    assert_only_refuses(effects, ErrorCode.POLICY_VIOLATION)
    assert effects.response.error_message == (
        "The cluster has 4 partitions, and 7 more would exceed the limit of 10 (max.partitions)."
    )
    for wanted in (topic("u", 6), topic("__consumer_offsets", 7)):
        assert answer(wanted).response.error_code == ErrorCode.NONE


# ---------------------------------------------------------------- carrying out


class Store:
    """Records writes; refuses the topics ``there`` and, if ``stale``, every write, as ZooKeeper does."""

    def __init__(self, *, there: Collection[str] = (), stale: bool = False) -> None:
        self.there, self.stale, self.written = there, stale, list[str]()

    def check_fits(self, _ops: Sequence[ZkOp]) -> None:
        pass

    async def write(self, ops: Sequence[ZkOp]) -> list[int]:
        path = ops[-1].path
        if self.stale or path in map(paths.topic, self.there):
            raise ImageStaleError("changed") from (None if self.stale else NodeExistsError(path))
        self.written.append(path)
        return [0, 0]

    async def notify(self, prefix: str, _data: bytes) -> str:
        self.written.append(prefix)
        return f"{prefix}0000000001"


def context_of(store: Store) -> Any:
    return SimpleNamespace(image=cluster(), config=CONFIG, rng=random.Random(1), store=store)


async def created(context: Any, request: CreateTopicsRequest) -> Outcome:
    """Carry out a request in a cluster without topics."""
    return await carry_out_all(context, create_topics(context, request, 7, []))


@pytest.mark.trio
async def test_created_topics_count_towards_the_limit_until_they_are_read() -> None:
    context = context_of(Store())
    request = CreateTopicsRequest(topics=[topic("a", 15), topic("b", 6), topic("c", 5, retention_ms="5")])
    outcome = await created(context, request)
    codes = {result.name: result.error_code for result in outcome.response.topics}
    assert codes == {"a": ErrorCode.NONE, "b": ErrorCode.POLICY_VIOLATION, "c": ErrorCode.NONE}
    assert context.image.created == {"a": 15, "c": 5}
    assert context.store.written == [paths.topic("a"), paths.topic("c"), paths.CONFIG_CHANGE_PREFIX]
    assert context.image.config(paths.topic_config("c")).values == {"retention.ms": 5}
    assert [wait.result.name for wait in outcome.waits] == ["a", "c"]


@pytest.mark.trio
async def test_topics_that_are_only_validated_count_towards_the_limit_together() -> None:
    context = context_of(Store())
    request = CreateTopicsRequest(topics=[topic("a", 15), topic("b", 6), topic("c", 5)], validate_only=True)
    outcome = await created(context, request)
    assert [result.error_code for result in outcome.response.topics] == [0, ErrorCode.POLICY_VIOLATION, 0]
    assert (context.image.created, context.store.written, outcome.waits) == ({}, [], [])


@pytest.mark.trio
async def test_a_topic_collides_with_one_created_before_it_in_the_request() -> None:
    outcome = await created(context_of(Store()), CreateTopicsRequest(topics=[topic("a.b"), topic("a_b")]))
    assert [result.error_code for result in outcome.response.topics] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]


@pytest.mark.trio
async def test_a_topic_created_meanwhile_is_answered_as_already_existing() -> None:
    context = context_of(Store(there=["a"]))
    outcome = await created(context, CreateTopicsRequest(topics=[topic("a"), topic("b")]))
    assert [result.error_code for result in outcome.response.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS, 0]
    assert (context.image.created, len(outcome.waits)) == ({"b": 3}, 1)


@pytest.mark.trio
async def test_any_other_refused_write_ends_the_request() -> None:
    with pytest.raises(ImageStaleError):
        await created(context_of(Store(stale=True)), CreateTopicsRequest(topics=[topic("a")]))
