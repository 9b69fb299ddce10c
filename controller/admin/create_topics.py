"""CreateTopics (19): validate, write config and topic znode, answer once all leaders serve.

Since version 4, -1 partitions or replicas mean the controller's defaults. Since version 5, the response has the topic's
configs: the given overrides, and Kafka's defaults for the rest. Topics are created one by one, so a refused topic does
not stop the others.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.controller.added_partition_replicas import rack_of_live_brokers
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.image import ClusterImage
from anabranch.controller.new_topic_replicas import assign_replicas
from anabranch.controller.outcome import Outcome, ResponseWait
from anabranch.controller.partition_limit import check_partition_limit
from anabranch.controller.store import MAX_BYTES, ImageStaleError
from anabranch.controller.topic_id import new_topic_id
from anabranch.controller.topic_names import colliding, name_problem
from anabranch.ordered_resize.autoscale import Policy, bounds_problem
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from anabranch.protocol.sentinels import NO_COUNT
from anabranch.protocol.topic_names import INTERNAL_TOPICS
from anabranch.runtime.env import CreateOp, NodeExistsError, SetOp, ZkOp, ZkRequestTooLargeError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.topic_keys import AUTOSCALE_KEY, TOPIC_CONFIGS, check_topic_values
from anabranch.zk_schemas.znode import MAX_PARTITIONS

_SOURCE_TOPIC, _SOURCE_DEFAULT = 1, 5


def create_topics(
    context: Context, request: CreateTopicsRequest, version: int, existing: list[str]
) -> Decisions[Outcome]:
    """``existing`` are the topics that have a znode. Raises ``ControllerMovedError``, ``ImageStaleError``."""
    named = Counter(topic.name for topic in request.topics)
    outcome = Outcome(CreateTopicsResponse(topics=[]), [], request.timeout_ms)
    planned = 0
    for name, times in named.items():
        wanted = next(topic for topic in request.topics if topic.name == name)
        demand = CreationDemand(wanted, request.validate_only, is_repeated=times > 1, planned=planned)
        effects = decide(context.image, context.config, existing, demand, context.rng, context.store.check_fits)
        try:
            yield effects
        except ImageStaleError as error:
            if not _is_there_already(error, name):
                raise
            effects = _refused(name, _already_exists(name))
        outcome.response.topics.append(effects.response)
        outcome.waits.extend(effects.waits)
        if effects.created:
            existing.append(name)
        elif effects.response.error_code == ErrorCode.NONE:
            planned += effects.response.num_partitions
    return outcome


@dataclass(frozen=True, slots=True)
class CreationDemand:
    """A request for one topic."""

    wanted: CreatableTopic
    validate_only: bool = False
    is_repeated: bool = False
    """Whether the request names the topic more than once."""
    planned: int = 0
    """If the request only validates: the number of partitions of the valid topics before this topic in the request."""


def decide(
    image: ClusterImage,
    config: ControllerConfig,
    existing: Collection[str],
    demand: CreationDemand,
    rng: random.Random,
    check_fits: Callable[[Sequence[ZkOp]], None],
) -> Effects:
    """The effects of a request for one topic.

    ``existing`` are the topics that have a znode. The replicas and the topic id are drawn from ``rng``. ``check_fits``
    raises ``ZkRequestTooLargeError``.
    """
    wanted, name = demand.wanted, demand.wanted.name
    try:
        _check_name(existing, demand)
        overrides = checked_config({config.name: config.value for config in wanted.configs}, len(wanted.configs))
        assignment = _assignment(image, config, wanted, rng)
        check_autoscale(name, overrides, len(assignment))
        znode = TopicZnode.new(new_topic_id(rng), assignment)
        writes = _writes(image, name, znode, overrides, check_fits)
        check_partition_limit(image, config, name, demand.planned + len(assignment))
    except KafkaError as error:
        return _refused(name, error)
    result = CreatableTopicResult(
        name=name,
        topic_id=znode.topic_id,
        num_partitions=len(assignment),
        replication_factor=len(assignment[0]),
        configs=_described(overrides),
    )
    if demand.validate_only:
        return Effects(name, response=result)
    return Effects(
        name,
        created=len(assignment),
        writes=writes,
        notify=[f"topics/{name}"] if overrides else (),
        response=result,
        waits=[ResponseWait(functools.partial(is_ready, name), result)],
    )


def _refused(name: str, error: KafkaError) -> Effects:
    result = CreatableTopicResult(name=name, error_code=error.code, error_message=error.message, configs=[])
    return Effects(name, response=result)


def _already_exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _is_there_already(error: ImageStaleError, name: str) -> bool:
    """Whether the topic got its znode after the list of topics was read."""
    return isinstance(error.__cause__, NodeExistsError) and error.__cause__.path == paths.topic(name)


def is_ready(name: str, context: Context) -> bool:
    """Whether every partition has a leader, and every live broker has answered the requests about the topic."""
    topic = context.image.topics.get(name)
    return (
        topic is not None
        and context.image.online(name)
        and topic.flush > 0
        and context.senders.acknowledged(topic.flush)
    )


def _check_name(existing: Collection[str], demand: CreationDemand) -> None:
    """Raises ``KafkaError``."""
    name = demand.wanted.name
    if demand.is_repeated:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
    if (problem := name_problem(name)) is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name in existing:
        raise _already_exists(name)
    if (other := colliding(name, existing)) is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topics: {other}")


def checked_config(given: dict[str, str | None], count: int) -> dict[str, str]:
    """The overrides in the form that the config znode stores. Raises ``KafkaError`` INVALID_CONFIG, INVALID_REQUEST."""
    if len(given) != count:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A config key is given more than once.")
    nulls = [name for name, value in given.items() if value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {', '.join(nulls)}")
    try:
        check_topic_values(TOPIC_CONFIGS.parse_given(given))
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return {name: value for name, value in given.items() if value is not None}


def check_autoscale(topic: str, config: Mapping[str, str], initial: int) -> None:
    """Raise ``KafkaError`` if a topic created with ``initial`` partitions cannot have ``autoscale.enable``."""
    given = TOPIC_CONFIGS.parse_given(config)
    if not given.get(AUTOSCALE_KEY):
        return
    policy = Policy.of(given)
    problem = f"{topic} is an internal topic" if topic in INTERNAL_TOPICS else bounds_problem(policy, initial)
    if problem:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{AUTOSCALE_KEY}=true: {problem}")


def _assignment(
    image: ClusterImage, config: ControllerConfig, topic: CreatableTopic, rng: random.Random
) -> dict[int, list[int]]:
    """The replicas of each partition, from the request or drawn at random. Raises ``KafkaError``."""
    if topic.assignments:
        if topic.num_partitions != NO_COUNT or topic.replication_factor != NO_COUNT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set; give one of them.",
            )
        given = {entry.partition_index: list(entry.broker_ids) for entry in topic.assignments}
        if len(given) != len(topic.assignments):
            twice = Counter(entry.partition_index for entry in topic.assignments).most_common(1)[0][0]
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {twice} is assigned more than once.")
        check_assignment(image, given)
        return dict(sorted(given.items()))
    partitions = config.num_partitions if topic.num_partitions == NO_COUNT else topic.num_partitions
    factor = config.default_replication_factor if topic.replication_factor == NO_COUNT else topic.replication_factor
    if partitions <= 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if partitions > MAX_PARTITIONS:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions: a topic can have at most {MAX_PARTITIONS}."
        )
    if factor <= 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    brokers = rack_of_live_brokers(image)
    if factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {factor} larger than available brokers: {len(brokers)}.",
        )
    start_index, shift = rng.randrange(len(brokers)), rng.randrange(len(brokers))
    return assign_replicas(brokers, partitions, factor, start_index=start_index, shift=shift)


def check_assignment(image: ClusterImage, assignment: dict[int, list[int]], first: int = 0) -> None:
    """Raise ``KafkaError`` INVALID_REPLICA_ASSIGNMENT if the request's assignment is invalid."""
    if sorted(assignment) != list(range(first, first + len(assignment))):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions should be a consecutive 0-based sequence.")
    factors = {len(replicas) for replicas in assignment.values()}
    if len(factors) != 1 or 0 in factors:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "All partitions should have the same number of replicas, at least 1."
        )
    for partition, replicas in assignment.items():
        if len(set(replicas)) != len(replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {partition} names a broker twice: {replicas}."
            )
        unknown = [broker for broker in replicas if broker not in image.brokers]
        if unknown:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {partition} names brokers that are not live: {unknown}.",
            )


def _writes(
    image: ClusterImage,
    name: str,
    znode: TopicZnode,
    config: dict[str, str],
    check_fits: Callable[[Sequence[ZkOp]], None],
) -> list[CreateOp | SetOp]:
    """The writes of the config znode and the topic znode.

    If an earlier topic of the name left a config, it is overwritten. Raises ``KafkaError`` INVALID_PARTITIONS or
    INVALID_CONFIG for a znode that is too large.
    """
    data, path = znode.encode(), paths.topic_config(name)
    if len(data) > MAX_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The assignment of topic '{name}', {len(znode.partitions)} partitions of {len(znode.partitions[0])}"
            f" replicas, takes {len(data)} bytes; at most {MAX_BYTES} are accepted.",
        )
    config_data, left = ConfigZnode(config).encode(), image.config(path)
    ops: list[CreateOp | SetOp] = [
        CreateOp(path, config_data) if left.version < 0 else SetOp(path, config_data, left.version),
        CreateOp(paths.topic(name), data),
    ]
    try:
        check_fits(ops)
    except ZkRequestTooLargeError as error:
        raise config_too_large(config, error) from error
    return ops


def config_too_large(config: Mapping[str, str], error: ZkRequestTooLargeError) -> KafkaError:
    """The error for a config znode that is too large for ZooKeeper."""
    longest = max(config, key=lambda name: len(config[name]))
    return KafkaError(
        ErrorCode.INVALID_CONFIG,
        f"The configs are too large; the longest is {longest} with {len(config[longest])} characters: {error}.",
    )


def _described(config: dict[str, str]) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=key.name,
            value=config.get(key.name, key.format(key.default)),
            read_only=False,
            config_source=_SOURCE_TOPIC if key.name in config else _SOURCE_DEFAULT,
            is_sensitive=key.sensitive,
        )
        for key in TOPIC_CONFIGS
    ]
