"""The decision on a config change from an image, and its effects once it is carried out."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.controller import config_writes
from anabranch.controller.admin.alter_configs import Demand, decide
from anabranch.controller.admin.incremental_alter_configs import changed_keys
from anabranch.controller.effects import Effects, carry_out
from anabranch.controller.image import ClusterImage
from anabranch.controller.store import ImageStaleError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.incremental_alter_configs import AlterableConfig, AlterConfigsResource
from anabranch.runtime.env import CreateOp, SetOp, ZkOp, ZkRequestTooLargeError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from tests.support.controller.topic_images import image_of, resized
from tests.support.resize.resized_topic import Topic

PATH = paths.topic_config("t")
TOPIC, BROKER = 2, 4


def cluster(config: dict[str, str] | bytes | None = None, topic: Topic | None = None) -> ClusterImage:
    """Return an image of the topic ``t``, with a config znode of version 3 or without one."""
    image = ClusterImage(1000, 4, topics={"t": image_of(topic or Topic(4))})
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
    configs = [AlterableConfig(name=key, config_operation=0, value=value) for key, value in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return decide(image, Demand(resource, lambda old: changed_keys(old, configs), **given), check)


def test_a_key_is_added_to_the_existing_config() -> None:
    image = cluster({"segment.ms": "9"})
    effects = decided(image, ("retention.ms", "7"))
    data = ConfigZnode({"segment.ms": "9", "retention.ms": "7"}).encode()
    assert effects == Effects(writes=(SetOp(PATH, data, 3),), notify=("topics/t",))
    assert image.config(PATH).values == {"segment.ms": 9}  # a decision does not change the image


def test_a_config_that_does_not_exist_is_created() -> None:
    effects = decided(cluster(), ("retention.ms", "7"))
    assert effects.writes == (CreateOp(PATH, ConfigZnode({"retention.ms": "7"}).encode()),)


@pytest.mark.parametrize(("name", "broker"), [("7", 7), ("007", 7), ("", None)])
def test_the_broker_whose_config_is_written_is_the_one_notified(name: str, broker: int | None) -> None:
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
def test_a_refusal_has_no_effect_but_its_answer(
    code: ErrorCode, image: ClusterImage, change: tuple[str, str], given: dict[str, Any]
) -> None:
    effects = decided(image, change, **given)
    assert effects.response.code == code
    assert effects == Effects(response=effects.response)


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
async def test_the_image_has_the_config_before_anybody_is_notified() -> None:
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
