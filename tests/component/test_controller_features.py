"""``/features`` of a cluster (KIP-584): controllers in virtual time, and brokers with the levels of each test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from anabranch.protocol.request_kinds import UpgradeType
from anabranch.runtime.env import NoNodeError, SessionState, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.features import (
    CONSUMER_OFFSETS_TOPIC_SCHEMA,
    GROUP_COORDINATOR,
    LINEAGE_LEVEL,
    ORDERED_RESIZE,
    SUPPORTED,
    Features,
    FeaturesStatus,
    FinalizedFeature,
    IncompatibleFeaturesError,
)
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker

pytestmark = pytest.mark.trio
HIGHEST = {name: levels.max_version for name, levels in SUPPORTED.items()}
PREVIOUS = {CONSUMER_OFFSETS_TOPIC_SCHEMA: VersionRange(1, 1), GROUP_COORDINATOR: VersionRange(1, 1)}
"""The levels that a release before ordered resize supports."""
UPGRADE, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


@pytest.fixture
def world(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    return ControllerCluster(nursery)


async def finalized(world: ControllerCluster) -> Features:
    return Features.decode(Features.PATH, (await world.store.get(Features.PATH)).data)


async def levels(world: ControllerCluster) -> dict[str, int]:
    try:
        found = await finalized(world)
    except NoNodeError:
        return {}
    return {name: found.level(name) for name in found.features}


async def ask(
    world: ControllerCluster, wanted: Mapping[str, int], kind: UpgradeType = UPGRADE, **more: Any
) -> UpdateFeaturesResponse:
    keys = [FeatureUpdateKey(feature=n, max_version_level=level, upgrade_type=kind) for n, level in wanted.items()]
    response = await world.request(UpdateFeaturesRequest(feature_updates=keys, **more))
    assert isinstance(response, UpdateFeaturesResponse)
    return response


def codes(response: UpdateFeaturesResponse) -> dict[str, int]:
    assert response.error_code == ErrorCode.NONE
    assert all(result.error_message for result in response.results if result.error_code)
    return {result.feature: result.error_code for result in response.results}


async def start(world: ControllerCluster, *supported: Mapping[str, VersionRange]) -> list[FakeBroker]:
    """Start brokers, then a controller that has read their registrations."""
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


async def read(world: ControllerCluster) -> bool:
    try:
        await world.store.get(Features.PATH)
    except NoNodeError:
        return False
    return True


async def older_cluster(world: ControllerCluster, *supported: Mapping[str, VersionRange]) -> list[FakeBroker]:
    """A cluster with a topic and without ``/features``, as of a release before feature versions."""
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


async def test_a_new_cluster_starts_with_everything_finalized(world: ControllerCluster) -> None:
    await start(world, SUPPORTED, SUPPORTED)
    assert await levels(world) == HIGHEST


async def test_a_cluster_with_topics_and_without_features_is_disabled_until_the_first_update(
    world: ControllerCluster,
) -> None:
    await older_cluster(world, SUPPORTED)
    assert await finalized(world) == Features(FeaturesStatus.DISABLED)
    assert codes(await ask(world, {GROUP_COORDINATOR: 1})) == {GROUP_COORDINATOR: ErrorCode.NONE}
    assert (await finalized(world)).status is FeaturesStatus.ENABLED
    assert await levels(world) == {GROUP_COORDINATOR: 1}


# ---------------------------------------------------------------- updates


async def test_levels_are_lowered_and_raised_and_the_znodes_version_is_the_epoch(world: ControllerCluster) -> None:
    await start(world, SUPPORTED)
    before = (await world.store.get(Features.PATH)).version
    down = await ask(world, {ORDERED_RESIZE: 0, CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}, SAFE)
    assert set(codes(down).values()) == {ErrorCode.NONE}
    assert await levels(world) == {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
    assert down.features_epoch == (await world.store.get(Features.PATH)).version == before + 1
    up = await ask(world, HIGHEST)
    assert up.features_epoch == before + 2
    assert await levels(world) == HIGHEST


RISEN = Features(FeaturesStatus.ENABLED, {GROUP_COORDINATOR: FinalizedFeature(2, 2)}).encode()


async def test_a_controller_that_is_not_active_refuses_an_update(world: ControllerCluster) -> None:
    await start(world, SUPPORTED)
    await world.start_controller(1001)
    before = await world.store.get(Features.PATH)
    key = FeatureUpdateKey(feature=ORDERED_RESIZE, max_version_level=0, upgrade_type=SAFE)
    response = await world.request(UpdateFeaturesRequest(feature_updates=[key]), controller_id=1001)
    assert response.error_code == ErrorCode.NOT_CONTROLLER
    assert "is not active: the znode /controller names" in response.error_message
    assert (response.features_epoch, await world.store.get(Features.PATH)) == (-1, before)


# ---------------------------------------------------------------- at the same time


async def test_of_two_updates_at_the_same_time_the_second_is_judged_after_the_first(world: ControllerCluster) -> None:
    await start(world, SUPPORTED)
    answers: list[dict[str, int]] = []

    async def one() -> None:
        answers.append(codes(await ask(world, {ORDERED_RESIZE: 0}, SAFE)))

    async with trio.open_nursery() as both:
        both.start_soon(one)
        both.start_soon(one)
    assert sorted(answer[ORDERED_RESIZE] for answer in answers) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


async def test_the_next_controller_continues_from_the_written_levels(world: ControllerCluster) -> None:
    await start(world, SUPPORTED)
    assert codes(await ask(world, {ORDERED_RESIZE: 0}, SAFE)) == {ORDERED_RESIZE: ErrorCode.NONE}
    await world.start_controller(1001)
    world.kill_controller(1000)
    await world.until(partial(is_active, world, 1001))
    assert codes(await ask(world, {ORDERED_RESIZE: LINEAGE_LEVEL})) == {ORDERED_RESIZE: ErrorCode.NONE}
    assert await levels(world) == HIGHEST


def before_the_features_are_written(world: ControllerCluster, interrupt: Callable[[], Awaitable[object]]) -> None:
    """Call ``interrupt`` once, when the first controller has judged an update and is about to write it."""
    session = world.sessions[1000]
    multi = session.multi
    left = [interrupt]

    async def interrupted(ops: Sequence[ZkOp]) -> list[int]:
        if not left or all(op.path != Features.PATH for op in ops):
            return await multi(ops)
        with trio.CancelScope(shield=True):  # the write is in progress and cannot be cancelled any more
            await left.pop()()
            return await multi(ops)

    session.multi = interrupted  # type: ignore[method-assign]


async def test_a_controller_that_is_replaced_before_its_write_writes_nothing(world: ControllerCluster) -> None:
    """Model: off_epoch_version. Another controller is active, and has finalized other levels in the meantime."""
    await start(world, SUPPORTED)
    await world.start_controller(1001)

    async def replace() -> None:
        await world.store.delete(paths.CONTROLLER)
        await world.until(partial(is_active, world, 1001))
        everything = {ORDERED_RESIZE: 0, CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
        assert set(codes(await ask(world, everything, SAFE)).values()) == {ErrorCode.NONE}

    before_the_features_are_written(world, replace)
    key = FeatureUpdateKey(feature=ORDERED_RESIZE, max_version_level=0, upgrade_type=SAFE)
    response = await world.request(UpdateFeaturesRequest(feature_updates=[key]), controller_id=1000)
    assert response.error_code == ErrorCode.NOT_CONTROLLER
    assert await levels(world) == {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}


async def test_an_update_whose_znode_is_edited_meanwhile_is_judged_by_the_edit(world: ControllerCluster) -> None:
    """Model: off_epoch_version. The controller overwrites only the version that it has read."""
    await start(world, SUPPORTED)
    before_the_features_are_written(world, lambda: world.store.set(Features.PATH, RISEN, -1))
    response = await ask(world, {ORDERED_RESIZE: 0}, SAFE)
    assert codes(response) == {ORDERED_RESIZE: ErrorCode.INVALID_REQUEST}
    assert "not finalized" in response.results[0].error_message
    assert (await world.store.get(Features.PATH)).data == RISEN


async def test_an_update_whose_answer_from_zookeeper_is_lost_is_made_once(world: ControllerCluster) -> None:
    await start(world, SUPPORTED)
    before = (await world.store.get(Features.PATH)).version

    session = world.sessions[1000]

    async def lose_the_answer() -> None:
        session.lose_next_answer()

    async def reconnect() -> None:
        await world.until(lambda: session.state is SessionState.SUSPENDED)
        session.reconnect()

    world.nursery.start_soon(reconnect)
    before_the_features_are_written(world, lose_the_answer)
    response = await ask(world, {ORDERED_RESIZE: 0}, SAFE)
    assert codes(response) == {ORDERED_RESIZE: ErrorCode.NONE}
    assert response.features_epoch == (await world.store.get(Features.PATH)).version == before + 1


async def is_active(world: ControllerCluster, controller_id: int) -> bool:
    active = await world.active()
    return active is not None and active.controller_id == controller_id


async def test_an_update_is_refused_for_a_broker_that_registers_meanwhile(world: ControllerCluster) -> None:
    """Model: off_controller_checks. The broker registers after the controller has looked at the brokers."""
    await start(world, PREVIOUS)

    async def join() -> None:
        await world.start_broker(2)
        await world.store.set(paths.REGISTRATIONS, b"")

    before_the_features_are_written(world, join)
    world.features = {}
    response = await ask(world, {GROUP_COORDINATOR: 1})
    assert codes(response) == {GROUP_COORDINATOR: ErrorCode.FEATURE_UPDATE_FAILED}
    assert await levels(world) == {}


# ---------------------------------------------------------------- minimum levels


async def test_the_minimum_level_rises_once_no_broker_supports_the_old_level(world: ControllerCluster) -> None:
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


async def restart(world: ControllerCluster, broker_id: int, supported: Mapping[str, VersionRange]) -> None:
    """Register the broker with other ranges, and return when the controller has read them."""
    broker = world.brokers[broker_id]
    broker.leave()
    broker.features = dict(supported)
    await broker.register()
    await ask(world, {"unknown": 1}, validate_only=True)  # decided after the change of the registrations


async def risen(world: ControllerCluster) -> bool:
    return (await finalized(world)).features[GROUP_COORDINATOR].min_version_level == 2


# ---------------------------------------------------------------- effects of the levels


async def resize(world: ControllerCluster, count: int) -> tuple[int, str]:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=count, assignments=None)], timeout_ms=60_000
    )
    [result] = (await world.request(request)).results
    return result.error_code, result.error_message or ""


async def test_a_resized_topic_is_still_served_while_ordered_resize_is_not_finalized(world: ControllerCluster) -> None:
    """Its layout stays, also in an election. Only another resize is refused, until the feature is finalized again."""
    await older_cluster(world, SUPPORTED)
    await ask(world, HIGHEST)
    assert (await resize(world, 2))[0] == ErrorCode.NONE
    before = [(await world.state("t", index)).layout for index in range(2)]
    assert codes(await ask(world, {ORDERED_RESIZE: 0}, UNSAFE)) == {ORDERED_RESIZE: ErrorCode.NONE}
    for leader, change in ((-1, leave), (1, register)):
        await change(world.brokers[1])
        await world.until(partial(all_led_by, world, leader))
    assert [(await world.state("t", index)).layout for index in range(2)] == before
    code, message = await resize(world, 3)
    assert code == ErrorCode.POLICY_VIOLATION and "`anabranch features upgrade --all`" in message
    assert codes(await ask(world, {ORDERED_RESIZE: LINEAGE_LEVEL})) == {ORDERED_RESIZE: ErrorCode.NONE}
    assert (await resize(world, 3))[0] == ErrorCode.NONE


async def leave(broker: FakeBroker) -> None:
    broker.leave()


async def register(broker: FakeBroker) -> None:
    await broker.register()


async def all_led_by(world: ControllerCluster, leader: int) -> bool:
    return all([(await world.state("t", index)).leader == leader for index in range(2)])


# ---------------------------------------------------------------- bad content


async def test_a_repaired_features_znode_is_used_again(world: ControllerCluster) -> None:
    await start(world, SUPPORTED)
    right = (await world.store.get(Features.PATH)).data
    for content, code in ((b"{", ErrorCode.FEATURE_UPDATE_FAILED), (right, ErrorCode.NONE)):
        await world.store.set(Features.PATH, content, -1)
        await world.until(partial(answered, world, code))
        assert (await world.store.get(Features.PATH)).data == content, "left as it was edited"
    assert codes(await ask(world, {ORDERED_RESIZE: 0}, SAFE)) == {ORDERED_RESIZE: ErrorCode.NONE}


async def answered(world: ControllerCluster, code: ErrorCode) -> bool:
    return (await ask(world, {ORDERED_RESIZE: 0}, SAFE, validate_only=True)).error_code == code


async def test_a_controller_that_lacks_a_finalized_feature_does_not_stand_for_election(autojump_clock: object) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(IncompatibleFeaturesError, match=ORDERED_RESIZE), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            world = ControllerCluster(nursery)
            await start(world, SUPPORTED)
            world.kill_controller(1000)
            ranges = "group_coordinator:1-2,consumer_offsets_topic_schema:1-2"
            await world.start_controller(1001, supported_features=ranges)
            await trio.sleep_forever()
