"""A config change is decided from an image, and the effects of the decision are carried out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.controller import config_writes
from anabranch.controller.admin.alter_configs import ConfigsDemand, alter_configs, decide, given_keys
from anabranch.controller.admin.incremental_alter_configs import changed_keys
from anabranch.controller.carry_out import carry_out
from anabranch.controller.effects import Effects
from anabranch.controller.image import ClusterImage
from anabranch.controller.store import ImageStaleError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_configs import AlterableConfig as GivenConfig
from anabranch.protocol.generated.alter_configs import AlterConfigsRequest
from anabranch.protocol.generated.alter_configs import AlterConfigsResource as WholeResource
from anabranch.protocol.generated.incremental_alter_configs import AlterableConfig, AlterConfigsResource
from anabranch.runtime.env import CreateOp, SetOp, ZkOp, ZkRequestTooLargeError
from anabranch.runtime.zk_requests import check_fits
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from tests.support.controller.decisions import live
from tests.support.controller.topic_images import image_of, resized
from tests.support.resize.resized_topic import Topic

PATH = paths.topic_config("t")
TOPIC, BROKER, OTHER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
ORDERED = "enable.ordered.delivery"
LIST_KEY = "leader.replication.throttled.replicas"
Change = tuple[str, int, str | None]


def cluster(config: dict[str, str] | bytes | None = None, topic: Topic | None = None) -> ClusterImage:
    """Return an image of broker 1 and the topic ``t``, with a config znode of version 3 or without one."""
    image = ClusterImage(1000, 4, brokers={1: live(1)}, topics={"t": image_of(topic or Topic(4))})
    if config is not None:
        data = config if isinstance(config, bytes) else ConfigZnode(config).encode()
        config_writes.take(image, PATH, data, 3)
    return image


def fits(_ops: Sequence[ZkOp]) -> None:
    pass


def too_large(ops: Sequence[ZkOp]) -> None:
    raise ZkRequestTooLargeError(ops[0].path, 9, 8)


def decided(
    image: ClusterImage, *changes: tuple[str, str], name: str = "t", kind: int = TOPIC, check: Any = fits, **given: Any
) -> Effects:
    """Set keys by IncrementalAlterConfigs."""
    return altered(image, *((key, SET, value) for key, value in changes), name=name, kind=kind, check=check, **given)


def altered(
    image: ClusterImage, *changes: Change, name: str = "t", kind: int = TOPIC, check: Any = fits, **given: Any
) -> Effects:
    configs = [AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return decide(image, ConfigsDemand(resource, lambda old: changed_keys(old, configs), **given), check)


def test_a_key_is_added_to_the_existing_config() -> None:
    image = cluster({"segment.ms": "9"})
    effects = decided(image, ("retention.ms", "7"))
    data = ConfigZnode({"segment.ms": "9", "retention.ms": "7"}).encode()
    assert effects == Effects(writes=(SetOp(PATH, data, 3),), notify=("topics/t",))
    assert image.config(PATH).values == {"segment.ms": 9}  # a decision does not change the image


def test_a_config_that_does_not_exist_is_created() -> None:
    effects = decided(cluster(), ("retention.ms", "7"))
    assert effects.writes == (CreateOp(PATH, ConfigZnode({"retention.ms": "7"}).encode()),)


@pytest.mark.parametrize(
    ("changes", "config"),
    [
        ([("retention.ms", SET, "8")], {"retention.ms": "8", "segment.ms": "9"}),
        ([("segment.ms", DELETE, None)], {"retention.ms": "7"}),
        (
            [("cleanup.policy", APPEND, "compact"), ("segment.ms", DELETE, None)],
            {"retention.ms": "7", "cleanup.policy": "delete,compact"},
        ),
        ([("cleanup.policy", SUBTRACT, "delete")], {"retention.ms": "7", "segment.ms": "9", "cleanup.policy": ""}),
    ],
    ids=["set", "delete", "append", "subtract"],
)
def test_keys_are_set_deleted_appended_and_subtracted(changes: list[Change], config: dict[str, str]) -> None:
    """A list that was not set begins with its default."""
    effects = altered(cluster({"retention.ms": "7", "segment.ms": "9"}), *changes)
    assert effects.writes == (SetOp(PATH, ConfigZnode(config).encode(), 3),)


def test_alter_configs_replaces_the_whole_config() -> None:
    given = [GivenConfig(name="segment.ms", value="9")]
    resource = WholeResource(resource_type=TOPIC, resource_name="t", configs=given)
    demand = ConfigsDemand(resource, lambda old: given_keys(old, given))
    effects = decide(cluster({"retention.ms": "7"}), demand, fits)
    assert effects.writes == (SetOp(PATH, ConfigZnode({"segment.ms": "9"}).encode(), 3),)


def test_a_resource_that_is_named_more_than_once_is_refused_with_one_answer() -> None:
    named = [WholeResource(resource_type=TOPIC, resource_name=name) for name in ("t", "u", "t", "t")]
    context: Any = SimpleNamespace(image=cluster(), store=SimpleNamespace(check_fits=fits))
    outcomes = []

    def decisions() -> Iterator[Effects]:
        outcomes.append((yield from alter_configs(context, AlterConfigsRequest(resources=named), 2)))

    effects = list(decisions())
    answers = [(each.resource_name, each.error_code) for each in outcomes[0].response.responses]
    assert answers == [("t", ErrorCode.INVALID_REQUEST), ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert not any(each.writes for each in effects)


@pytest.mark.parametrize(("name", "broker"), [("7", 7), ("007", 7), ("", None)])
def test_a_broker_config_is_written_and_notified_for_the_same_broker(name: str, broker: int | None) -> None:
    effects = decided(cluster(), ("log.retention.ms", "7"), name=name, kind=BROKER)
    assert [op.path for op in effects.writes] == [paths.broker_config(broker)]
    assert effects.notify == (f"brokers/{'<default>' if broker is None else broker}",)


def test_a_change_that_is_only_validated_has_no_effect() -> None:
    assert decided(cluster(), ("retention.ms", "7"), validate_only=True) == Effects()


@pytest.mark.parametrize(
    ("code", "image", "change", "given"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, cluster(), ("retention.ms", "7"), {"name": "u"}),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, cluster(), ("retention.ms", "7"), {"name": ".."}),
        (ErrorCode.INVALID_REQUEST, cluster(), ("retention.ms", "7"), {"is_repeated": True}),
        (ErrorCode.INVALID_CONFIG, cluster(), ("retention.ms", "many"), {}),
        (ErrorCode.INVALID_CONFIG, cluster(b"{"), ("retention.ms", "7"), {}),
        (ErrorCode.INVALID_CONFIG, cluster(), ("retention.ms", "many"), {"validate_only": True}),
        (ErrorCode.INVALID_CONFIG, cluster(topic=resized(4, 8)), ("enable.ordered.delivery", "false"), {}),
        (ErrorCode.INVALID_CONFIG, cluster(), ("retention.ms", "7"), {"check": too_large}),
    ],
)
def test_a_refusal_has_no_effect_except_its_response(
    code: ErrorCode, image: ClusterImage, change: tuple[str, str], given: dict[str, Any]
) -> None:
    effects = decided(image, change, **given)
    assert effects.response.code == code
    assert effects == Effects(response=effects.response)


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (BROKER, "", [("delete.topic.enable", SET, "false")], ErrorCode.INVALID_CONFIG),
        (BROKER, "1", [("auto.leader.rebalance.enable", SET, "false")], ErrorCode.INVALID_CONFIG),
        (BROKER, "1", [("unclean.leader.election.enable", SET, "true")], ErrorCode.INVALID_CONFIG),
        (BROKER, "", [("advertised.listeners", SET, "PLAINTEXT://h:1")], ErrorCode.INVALID_CONFIG),
        (BROKER, "1", [("advertised.listeners", SET, "h:1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.mss", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("segment.bytes", SET, "13")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "n" * 30_000, [("retention.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", [("log.dirs", SET, "/elsewhere")], ErrorCode.INVALID_CONFIG),
        (BROKER, "one", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (OTHER, "1", [("x", SET, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_invalid_change_is_refused_with_a_reason(
    kind: int, name: str, changes: list[Change], code: ErrorCode
) -> None:
    effects = altered(cluster(), *changes, kind=kind, name=name)
    assert effects == Effects(response=effects.response)
    assert effects.response.code == code and effects.response.message


def test_a_key_of_the_controllers_file_is_refused_with_the_place_where_it_is_set() -> None:
    error = decided(cluster(), ("auto.leader.rebalance.enable", "false"), kind=BROKER, name="1").response
    assert "a controller reads it from its file when it starts" in error.message


@pytest.mark.parametrize(
    ("listeners", "code"),
    [
        ("PLAINTEXT://elsewhere:9", ErrorCode.NONE),
        ("plaintext://[::1]:9", ErrorCode.NONE),
        ("OTHER://elsewhere:9", ErrorCode.INVALID_CONFIG),
        ("PLAINTEXT://elsewhere:9,OTHER://elsewhere:10", ErrorCode.INVALID_CONFIG),
        ("PLAINTEXT://0.0.0.0:9", ErrorCode.INVALID_CONFIG),
        ("PLAINTEXT://elsewhere:99999", ErrorCode.INVALID_CONFIG),
        ("", ErrorCode.INVALID_CONFIG),
    ],
)
def test_advertised_listeners_must_name_the_running_brokers_listeners_with_valid_addresses(
    listeners: str, code: ErrorCode
) -> None:
    error = decided(cluster(), ("advertised.listeners", listeners), kind=BROKER, name="1").response
    assert (error.code if error is not None else ErrorCode.NONE) == code


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_config_too_large_for_zookeeper_is_refused_with_the_limit(validate_only: bool) -> None:
    """A server closes the connection on a longer request, so a retry would never get a response."""
    check = functools.partial(check_fits, limit=3000)
    effects = decided(cluster(), (LIST_KEY, "1:1," * 999 + "1:1"), check=check, validate_only=validate_only)
    assert effects == Effects(response=effects.response)
    assert effects.response.code == ErrorCode.INVALID_CONFIG
    assert f"{LIST_KEY} with 3999 characters" in effects.response.message
    assert "ZooKeeper accepts 3000 (jute.maxbuffer)" in effects.response.message
    assert decided(cluster(), (LIST_KEY, "1:1"), check=check).response is None


def test_ordered_delivery_cannot_be_altered_after_the_first_resize() -> None:
    for value in ("false", "true"):
        assert decided(cluster(), (ORDERED, value)).response is None
    later = cluster(topic=resized(4, 6))
    assert decided(later, (ORDERED, "false")).response.code == ErrorCode.INVALID_CONFIG
    assert decided(later, ("retention.ms", "1000")).response is None


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"autoscale.target.bytes.per.second": "0"}, ["autoscale.target.bytes.per.second", "0"]),
        (
            {"autoscale.min.partitions": "9", "autoscale.max.partitions": "8"},
            ["autoscale.min.partitions: 9", "autoscale.max.partitions", "8"],
        ),
        ({"autoscale.min.partitions": "65"}, ["autoscale.min.partitions: 65", "64"]),
        (
            {"autoscale.enable": "true", "autoscale.min.partitions": "5", "autoscale.max.partitions": "7"},
            ["autoscale.min.partitions=5", "autoscale.max.partitions=7", "with 4 partitions"],
        ),
        ({"autoscale.enable": "true", "autoscale.max.partitions": "3"}, ["autoscale.max.partitions=3"]),
        ({"autoscale.enable": "true", "cleanup.policy": "compact"}, ["autoscale.enable", "cleanup.policy=compact"]),
        ({"autoscale.enable": "true", ORDERED: "false"}, ["autoscale.enable", "enable.ordered.delivery=false"]),
        ({"autoscale.target.bytes": "1"}, ["autoscale.target.bytes"]),
        ({"autoscale.window.ms": "1"}, ["autoscale.window.ms", "1"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_autoscaling_configs_are_refused(config: dict[str, str], named: list[str]) -> None:
    error = decided(cluster(), *config.items()).response
    assert error.code == ErrorCode.INVALID_CONFIG
    assert all(word in error.message for word in named), error.message


def test_autoscaling_of_an_internal_topic_is_refused() -> None:
    image = cluster()
    image.topics["__consumer_offsets"] = image.topics["t"]
    error = decided(image, ("autoscale.enable", "true"), name="__consumer_offsets").response
    assert error.code == ErrorCode.INVALID_CONFIG and "internal" in error.message


def journal(image: ClusterImage, done: list[Any], *, stale: bool = False) -> Any:
    """Return a context that records in ``done`` the image's config at each write and notification."""

    async def write(ops: Sequence[ZkOp]) -> list[int]:
        if stale:
            raise ImageStaleError("changed")
        done.append(("write", dict(image.config(PATH).values)))
        return [4 for _ in ops]

    async def notify(_prefix: str, data: bytes) -> str:
        done.append((ConfigChange.decode("/c", data).entity_path, dict(image.config(PATH).values)))
        return f"{paths.CONFIG_CHANGE_PREFIX}0000000001"

    return SimpleNamespace(image=image, store=SimpleNamespace(write=write, notify=notify))


@pytest.mark.trio
async def test_the_image_has_the_config_before_brokers_are_notified() -> None:
    image, done = cluster({"segment.ms": "9"}), list[Any]()
    await carry_out(journal(image, done), decided(image, ("segment.ms", "8")))
    assert done == [("write", {"segment.ms": 9}), ("topics/t", {"segment.ms": 8})]
    assert image.config(PATH).version == 4


@pytest.mark.trio
async def test_a_write_that_fails_changes_nothing() -> None:
    image, done = cluster({"segment.ms": "9"}), list[Any]()
    with pytest.raises(ImageStaleError):
        await carry_out(journal(image, done, stale=True), decided(image, ("segment.ms", "8")))
    assert (image.config(PATH).version, image.config(PATH).values, done) == (3, {"segment.ms": 9}, [])
