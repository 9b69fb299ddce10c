"""``/features`` of a cluster (KIP-584): controllers in virtual time, brokers that support what a test gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio

from controller.feature_updates import UpgradeType
from protocol.errors import ErrorCode
from protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from protocol.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from runtime.env import BadVersionError, CheckOp, NoNodeError, ZkOp
from tests.controller_world import FakeBroker, World
from zk_schemas import paths
from zk_schemas.broker_registration import VersionRange
from zk_schemas.features import (
    CONSUMER_OFFSETS_TOPIC_SCHEMA,
    GROUP_COORDINATOR,
    ORDERED_RESIZE,
    SUPPORTED,
    Features,
    FeaturesStatus,
    IncompatibleFeaturesError,
)

pytestmark = pytest.mark.trio
HIGHEST = {name: levels.max_version for name, levels in SUPPORTED.items()}
PREVIOUS = {CONSUMER_OFFSETS_TOPIC_SCHEMA: VersionRange(1, 1), GROUP_COORDINATOR: VersionRange(1, 1)}
"""What a release before ordered resize supports."""
UPGRADE, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


@pytest.fixture
def world(nursery: trio.Nursery, autojump_clock: object) -> World:
    return World(nursery)


async def finalized(world: World) -> Features:
    return Features.decode(Features.PATH, (await world.store.get(Features.PATH)).data)


async def levels(world: World) -> dict[str, int]:
    try:
        found = await finalized(world)
    except NoNodeError:
        return {}
    return {name: found.level(name) for name in found.features}


async def ask(
    world: World, wanted: Mapping[str, int], kind: UpgradeType = UPGRADE, **more: Any
) -> UpdateFeaturesResponse:
    keys = [FeatureUpdateKey(feature=n, max_version_level=level, upgrade_type=kind) for n, level in wanted.items()]
    response = await world.request(UpdateFeaturesRequest(feature_updates=keys, **more))
    assert isinstance(response, UpdateFeaturesResponse)
    return response


def codes(response: UpdateFeaturesResponse) -> dict[str, int]:
    assert response.error_code == ErrorCode.NONE
    assert all(result.error_message for result in response.results if result.error_code)
    return {result.feature: result.error_code for result in response.results}


async def start(world: World, *supported: Mapping[str, VersionRange]) -> list[FakeBroker]:
    """Brokers that registered before there was a controller, then a controller that has read them."""
    brokers = []
    for broker_id, ranges in enumerate(supported, 1):
        broker = world.brokers[broker_id] = FakeBroker(world, broker_id, None)
        broker.features = dict(ranges)
        await world.nursery.start(broker.serve)
        await broker.register()
        brokers.append(broker)
    await world.start_controller()
    await world.until(lambda: read(world))
    return brokers


async def read(world: World) -> bool:
    try:
        await world.store.get(Features.PATH)
    except NoNodeError:
        return False
    return True


async def older_cluster(world: World, *supported: Mapping[str, VersionRange]) -> list[FakeBroker]:
    """A cluster with a topic, and without ``/features``: of a release from before feature versions."""
    await world.start_controller()
    brokers = [await world.start_broker(1)]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    response = await world.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    assert response.topics[0].error_code == ErrorCode.NONE
    world.kill_controller(1000)
    await world.store.delete(Features.PATH)
    brokers[0].leave()
    brokers[0].features = dict(supported[0])
    await brokers[0].register()
    await world.start_controller(1001)
    await world.until(lambda: read(world))
    return brokers


# ---------------------------------------------------------------- the first start


async def test_a_new_cluster_starts_with_everything_finalized(world: World) -> None:
    await start(world, SUPPORTED, SUPPORTED)
    assert await levels(world) == HIGHEST


async def test_a_new_cluster_is_finalized_before_its_first_broker_registers(world: World) -> None:
    await start(world)
    assert await levels(world) == HIGHEST


async def test_a_cluster_with_topics_and_without_features_is_disabled_until_the_first_update(world: World) -> None:
    await older_cluster(world, SUPPORTED)
    assert await finalized(world) == Features(FeaturesStatus.DISABLED)
    assert codes(await ask(world, {GROUP_COORDINATOR: 1})) == {GROUP_COORDINATOR: ErrorCode.NONE}
    assert (await finalized(world)).status is FeaturesStatus.ENABLED
    assert await levels(world) == {GROUP_COORDINATOR: 1}


async def test_a_new_cluster_with_a_broker_of_the_previous_release_finalizes_nothing(world: World) -> None:
    await start(world, SUPPORTED, PREVIOUS)
    assert await finalized(world) == Features(FeaturesStatus.DISABLED)


# ---------------------------------------------------------------- updates


async def test_levels_go_down_and_up_again_and_the_znodes_version_is_the_epoch(world: World) -> None:
    await start(world, SUPPORTED)
    before = (await world.store.get(Features.PATH)).version
    down = await ask(world, {ORDERED_RESIZE: 0, CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}, SAFE)
    assert set(codes(down).values()) == {ErrorCode.NONE}
    assert await levels(world) == {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
    assert down.features_epoch == (await world.store.get(Features.PATH)).version == before + 1
    up = await ask(world, HIGHEST)
    assert up.features_epoch == before + 2
    assert await levels(world) == HIGHEST


async def test_validation_alone_answers_the_same_and_writes_nothing(world: World) -> None:
    await start(world, SUPPORTED)
    before = await world.store.get(Features.PATH)
    response = await ask(world, {ORDERED_RESIZE: 0, "unknown": 1}, SAFE, validate_only=True)
    assert codes(response) == {ORDERED_RESIZE: ErrorCode.NONE, "unknown": ErrorCode.INVALID_REQUEST}
    assert response.features_epoch == -1
    assert await world.store.get(Features.PATH) == before


async def test_version_0_allows_a_downgrade_by_its_flag(world: World) -> None:
    await start(world, SUPPORTED)
    for allowed, code in ((False, ErrorCode.INVALID_REQUEST), (True, ErrorCode.NONE)):
        key = FeatureUpdateKey(feature=ORDERED_RESIZE, max_version_level=0, allow_downgrade=allowed)
        response = await world.request(UpdateFeaturesRequest(feature_updates=[key]), version=0)
        assert codes(response) == {ORDERED_RESIZE: code}
    assert ORDERED_RESIZE not in await levels(world)


@pytest.mark.parametrize(
    ("wanted", "kind", "code"),
    [
        ({"unknown": 1}, UPGRADE, ErrorCode.INVALID_REQUEST),
        ({GROUP_COORDINATOR: 9}, UPGRADE, ErrorCode.INVALID_REQUEST),
        ({GROUP_COORDINATOR: 1}, UPGRADE, ErrorCode.INVALID_REQUEST),
        ({"": 1}, UPGRADE, ErrorCode.INVALID_REQUEST),
        ({GROUP_COORDINATOR: 1}, UNSAFE, ErrorCode.FEATURE_UPDATE_FAILED),
    ],
    ids=["unknown", "out of range", "downgrade without permission", "no name", "needed"],
)
async def test_an_update_that_is_refused_leaves_the_znode(
    world: World, wanted: Mapping[str, int], kind: UpgradeType, code: ErrorCode
) -> None:
    await start(world, SUPPORTED)
    before = await world.store.get(Features.PATH)
    assert codes(await ask(world, wanted, kind)) == dict.fromkeys(wanted, code)
    assert await world.store.get(Features.PATH) == before


async def test_a_request_without_features_or_with_an_unknown_type_is_refused_as_a_whole(world: World) -> None:
    await start(world, SUPPORTED)
    assert (await ask(world, {})).error_code == ErrorCode.INVALID_REQUEST
    key = FeatureUpdateKey(feature=GROUP_COORDINATOR, max_version_level=1, upgrade_type=9)
    response = await world.request(UpdateFeaturesRequest(feature_updates=[key]))
    assert response.error_code == ErrorCode.INVALID_REQUEST and "9" in response.error_message


async def test_a_level_is_refused_while_a_broker_without_features_is_registered(world: World) -> None:
    await start(world, SUPPORTED, {})
    response = await ask(world, {GROUP_COORDINATOR: 1})
    assert codes(response) == {GROUP_COORDINATOR: ErrorCode.FEATURE_UPDATE_FAILED}
    assert "broker 2 supports none of it" in response.results[0].error_message


async def test_a_downgrade_below_the_minimum_of_a_broker_is_refused(world: World) -> None:
    await start(world, SUPPORTED, {**SUPPORTED, GROUP_COORDINATOR: VersionRange(2, 2)})
    response = await ask(world, {GROUP_COORDINATOR: 1, ORDERED_RESIZE: 0}, SAFE)
    assert codes(response)[GROUP_COORDINATOR] == ErrorCode.FEATURE_UPDATE_FAILED
    assert (await levels(world))[GROUP_COORDINATOR] == 2


async def test_a_controller_that_is_not_active_says_so(world: World) -> None:
    await start(world, SUPPORTED)
    await world.start_controller(1001)
    key = FeatureUpdateKey(feature=ORDERED_RESIZE, max_version_level=0, upgrade_type=SAFE)
    response = await world.request(UpdateFeaturesRequest(feature_updates=[key]), controller_id=1001)
    assert response.error_code == ErrorCode.NOT_CONTROLLER


# ---------------------------------------------------------------- at the same time


async def test_of_two_updates_at_the_same_time_the_second_is_judged_by_the_first(world: World) -> None:
    await start(world, SUPPORTED)
    answers: list[dict[str, int]] = []

    async def one() -> None:
        answers.append(codes(await ask(world, {ORDERED_RESIZE: 0}, SAFE)))

    async with trio.open_nursery() as both:
        both.start_soon(one)
        both.start_soon(one)
    assert sorted(answer[ORDERED_RESIZE] for answer in answers) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


async def test_a_successor_goes_on_from_what_was_written(world: World) -> None:
    await start(world, SUPPORTED)
    assert codes(await ask(world, {ORDERED_RESIZE: 0}, SAFE)) == {ORDERED_RESIZE: ErrorCode.NONE}
    await world.start_controller(1001)
    world.kill_controller(1000)

    async def moved() -> bool:
        active = await world.active()
        return active is not None and active.controller_id == 1001

    await world.until(moved)
    assert codes(await ask(world, {ORDERED_RESIZE: 1})) == {ORDERED_RESIZE: ErrorCode.NONE}
    assert await levels(world) == HIGHEST


async def test_an_update_meets_a_broker_that_registers_meanwhile(world: World) -> None:
    """Model: off_controller_checks. The broker registers after the controller has looked at the brokers."""
    await start(world, PREVIOUS)
    session = world.sessions[1000]
    multi = session.multi
    joined: list[FakeBroker] = []

    async def multi_after_a_registration(ops: Sequence[ZkOp]) -> list[int]:
        if any(op.path == Features.PATH for op in ops) and not joined:
            joined.append(await world.start_broker(2))
            await world.store.set(paths.REGISTRATIONS, b"")
        return await multi(ops)

    session.multi = multi_after_a_registration  # type: ignore[method-assign]
    world.features = {}
    response = await ask(world, {GROUP_COORDINATOR: 1})
    assert codes(response) == {GROUP_COORDINATOR: ErrorCode.FEATURE_UPDATE_FAILED}
    assert await levels(world) == {}


async def test_each_write_of_the_features_sets_the_lock_of_registrations(world: World) -> None:
    """Model: off_controller_sets. A broker that looked before it does not register with what it saw."""
    await start(world, SUPPORTED)
    before = (await world.store.get(paths.REGISTRATIONS)).version
    await ask(world, {ORDERED_RESIZE: 0}, SAFE)
    with pytest.raises(BadVersionError):
        await world.store.multi([CheckOp(paths.REGISTRATIONS, before)])


# ---------------------------------------------------------------- minimum levels


async def test_the_minimum_level_rises_once_every_broker_left_a_level_behind(world: World) -> None:
    await start(world, SUPPORTED, SUPPORTED)
    newer = {**SUPPORTED, GROUP_COORDINATOR: VersionRange(2, 2)}

    async def minimum() -> int:
        return (await finalized(world)).features[GROUP_COORDINATOR].min_version_level

    for broker_id in (1, 2):
        assert await minimum() == 1
        await restart(world, broker_id, newer)
    await world.until(lambda: risen(world))
    assert await minimum() == 2
    refused = await ask(world, {GROUP_COORDINATOR: 1, ORDERED_RESIZE: 0}, UNSAFE)
    assert codes(refused)[GROUP_COORDINATOR] == ErrorCode.INVALID_REQUEST


async def restart(world: World, broker_id: int, supported: Mapping[str, VersionRange]) -> None:
    """Register with other ranges, and return when the controller has read them."""
    broker = world.brokers[broker_id]
    broker.leave()
    broker.features = dict(supported)
    await broker.register()
    await ask(world, {"unknown": 1}, validate_only=True)  # decided behind the change of the registrations


async def risen(world: World) -> bool:
    return (await finalized(world)).features[GROUP_COORDINATOR].min_version_level == 2


# ---------------------------------------------------------------- what the levels switch


async def resize(world: World, count: int) -> tuple[int, str]:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=count, assignments=None)], timeout_ms=60_000
    )
    [result] = (await world.request(request)).results
    return result.error_code, result.error_message or ""


async def test_a_topic_is_resized_only_while_ordered_resize_is_finalized(world: World) -> None:
    await older_cluster(world, SUPPORTED)
    code, message = await resize(world, 2)
    assert code == ErrorCode.POLICY_VIOLATION and "ordered_resize" in message
    assert set(codes(await ask(world, HIGHEST)).values()) == {ErrorCode.NONE}
    assert (await resize(world, 2))[0] == ErrorCode.NONE


async def test_a_downgrade_that_loses_the_order_of_resized_topics_needs_force(world: World) -> None:
    await older_cluster(world, SUPPORTED)
    await ask(world, HIGHEST)
    assert (await resize(world, 2))[0] == ErrorCode.NONE
    everything = {ORDERED_RESIZE: 0, CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
    refused = await ask(world, everything, SAFE)
    assert set(codes(refused).values()) == {ErrorCode.FEATURE_UPDATE_FAILED}
    assert all("t" in result.error_message for result in refused.results)
    assert await levels(world) == HIGHEST
    assert set(codes(await ask(world, everything, UNSAFE)).values()) == {ErrorCode.NONE}
    assert await levels(world) == {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}


# ---------------------------------------------------------------- bad content


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version":1,"status":7,"features":{}}', b"\xff"])
async def test_features_that_cannot_be_read_are_left_alone_and_named(world: World, content: bytes) -> None:
    await start(world, SUPPORTED)
    await world.store.set(Features.PATH, content, -1)

    async def noticed() -> bool:
        return (await ask(world, {ORDERED_RESIZE: 0}, SAFE)).error_code != ErrorCode.NONE

    await world.until(noticed)
    response = await ask(world, {GROUP_COORDINATOR: 1}, SAFE)
    assert response.error_code == ErrorCode.FEATURE_UPDATE_FAILED and Features.PATH in response.error_message
    assert (await world.store.get(Features.PATH)).data == content


async def test_a_controller_that_does_not_support_what_is_finalized_does_not_stand(autojump_clock: object) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(IncompatibleFeaturesError, match=ORDERED_RESIZE), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            await start(world, SUPPORTED)
            world.kill_controller(1000)
            ranges = "group_coordinator:1-2,consumer_offsets_topic_schema:1-2"
            await world.start_controller(1001, supported_features=ranges)
            await trio.sleep_forever()
