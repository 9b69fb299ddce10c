"""``/features`` of a cluster (KIP-584): controllers in virtual time, and brokers with the levels of each test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from anabranch.controller.admin.update_features import MOST_UPDATES
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

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
HIGHEST = {name: levels.max_version for name, levels in SUPPORTED.items()}
PREVIOUS = {CONSUMER_OFFSETS_TOPIC_SCHEMA: VersionRange(1, 1), GROUP_COORDINATOR: VersionRange(1, 1)}
"""The levels that a release before ordered resize supports."""
UPGRADE, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


@pytest.fixture
def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    return ControllerCluster(nursery)


async def finalized(cluster: ControllerCluster) -> Features:
    return Features.decode(Features.PATH, (await cluster.store.get(Features.PATH)).data)


async def levels(cluster: ControllerCluster) -> dict[str, int]:
    try:
        found = await finalized(cluster)
    except NoNodeError:
        return {}
    return {name: found.level(name) for name in found.features}


async def ask(
    cluster: ControllerCluster, wanted: Mapping[str, int], kind: UpgradeType = UPGRADE, **more: Any
) -> UpdateFeaturesResponse:
    keys = [FeatureUpdateKey(feature=n, max_version_level=level, upgrade_type=kind) for n, level in wanted.items()]
    response = await cluster.request(UpdateFeaturesRequest(feature_updates=keys, **more))
    assert isinstance(response, UpdateFeaturesResponse)
    return response


def codes(response: UpdateFeaturesResponse) -> dict[str, int]:
    assert response.error_code == ErrorCode.NONE
    assert all(result.error_message for result in response.results if result.error_code)
    return {result.feature: result.error_code for result in response.results}


async def start(cluster: ControllerCluster, *supported: Mapping[str, VersionRange]) -> list[FakeBroker]:
    """Start brokers, then a controller that has read their registrations."""
    brokers = []
    for broker_id, ranges in enumerate(supported, 1):
        broker = cluster.brokers[broker_id] = FakeBroker(cluster, broker_id, None)
        broker.features = dict(ranges)
        await cluster.nursery.start(broker.serve)
        await broker.register()
        brokers.append(broker)
    await cluster.start_controller()
    await cluster.until(lambda: read(cluster))
    return brokers


async def read(cluster: ControllerCluster) -> bool:
    try:
        await cluster.store.get(Features.PATH)
    except NoNodeError:
        return False
    return True


async def older_cluster(cluster: ControllerCluster, *supported: Mapping[str, VersionRange]) -> list[FakeBroker]:
    """A cluster with a topic, as a release before feature versions left it: without ``/features``."""
    await cluster.start_controller()
    brokers = [await cluster.start_broker(1)]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    response = await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    assert response.topics[0].error_code == ErrorCode.NONE
    cluster.kill_controller(1000)
    await cluster.store.delete(Features.PATH)
    brokers[0].leave()
    brokers[0].features = dict(supported[0])
    await brokers[0].register()
    await cluster.start_controller(1001)
    await cluster.until(lambda: read(cluster))
    return brokers


# ---------------------------------------------------------------- updates


async def test_levels_are_lowered_and_raised_and_the_znodes_version_is_the_epoch(cluster: ControllerCluster) -> None:
    await start(cluster, SUPPORTED)
    before = (await cluster.store.get(Features.PATH)).version
    down = await ask(cluster, {ORDERED_RESIZE: 0, CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}, SAFE)
    assert set(codes(down).values()) == {ErrorCode.NONE}
    assert await levels(cluster) == {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
    assert down.features_epoch == (await cluster.store.get(Features.PATH)).version == before + 1
    up = await ask(cluster, HIGHEST)
    assert up.features_epoch == before + 2
    assert await levels(cluster) == HIGHEST


async def test_very_many_updates_are_refused_as_a_whole(cluster: ControllerCluster) -> None:
    await start(cluster, SUPPORTED)
    refused = await ask(cluster, {GROUP_COORDINATOR: 1} | {f"f{number}": 1 for number in range(MOST_UPDATES)}, SAFE)
    assert (refused.error_code, refused.results) == (ErrorCode.INVALID_REQUEST, [])
    assert await levels(cluster) == HIGHEST


RISEN = Features(FeaturesStatus.ENABLED, {GROUP_COORDINATOR: FinalizedFeature(2, 2)}).encode()


async def test_a_controller_that_is_not_active_refuses_an_update(cluster: ControllerCluster) -> None:
    await start(cluster, SUPPORTED)
    await cluster.start_controller(1001)
    before = await cluster.store.get(Features.PATH)
    key = FeatureUpdateKey(feature=ORDERED_RESIZE, max_version_level=0, upgrade_type=SAFE)
    response = await cluster.request(UpdateFeaturesRequest(feature_updates=[key]), controller_id=1001)
    assert response.error_code == ErrorCode.NOT_CONTROLLER
    assert "is not active: the znode /controller names" in response.error_message
    assert (response.features_epoch, await cluster.store.get(Features.PATH)) == (-1, before)


# ---------------------------------------------------------------- at the same time


async def test_of_two_updates_at_the_same_time_the_second_is_judged_after_the_first(cluster: ControllerCluster) -> None:
    await start(cluster, SUPPORTED)
    answers: list[dict[str, int]] = []

    async def one() -> None:
        answers.append(codes(await ask(cluster, {ORDERED_RESIZE: 0}, SAFE)))

    async with trio.open_nursery() as both:
        both.start_soon(one)
        both.start_soon(one)
    assert sorted(answer[ORDERED_RESIZE] for answer in answers) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


async def test_the_next_controller_continues_from_the_written_levels(cluster: ControllerCluster) -> None:
    await start(cluster, SUPPORTED)
    assert codes(await ask(cluster, {ORDERED_RESIZE: 0}, SAFE)) == {ORDERED_RESIZE: ErrorCode.NONE}
    await cluster.start_controller(1001)
    cluster.kill_controller(1000)
    await cluster.until(partial(is_active, cluster, 1001))
    assert codes(await ask(cluster, {ORDERED_RESIZE: LINEAGE_LEVEL})) == {ORDERED_RESIZE: ErrorCode.NONE}
    assert await levels(cluster) == HIGHEST


def before_the_features_are_written(cluster: ControllerCluster, interrupt: Callable[[], Awaitable[object]]) -> None:
    """Call ``interrupt`` once, when the first controller has accepted an update and is about to write it."""
    session = cluster.sessions[1000]
    multi = session.multi
    left = [interrupt]

    async def interrupted(ops: Sequence[ZkOp]) -> list[int]:
        if not left or all(op.path != Features.PATH for op in ops):
            return await multi(ops)
        with trio.CancelScope(shield=True):  # the write is in progress and cannot be cancelled any more
            await left.pop()()
            return await multi(ops)

    session.multi = interrupted  # type: ignore[method-assign]


async def test_a_controller_that_is_replaced_before_its_write_writes_nothing(cluster: ControllerCluster) -> None:
    """Model: off_epoch_version. In the meantime another controller became active and finalized other levels."""
    await start(cluster, SUPPORTED)
    await cluster.start_controller(1001)

    async def replace() -> None:
        await cluster.store.delete(paths.CONTROLLER)
        await cluster.until(partial(is_active, cluster, 1001))
        everything = {ORDERED_RESIZE: 0, CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
        assert set(codes(await ask(cluster, everything, SAFE)).values()) == {ErrorCode.NONE}

    before_the_features_are_written(cluster, replace)
    key = FeatureUpdateKey(feature=ORDERED_RESIZE, max_version_level=0, upgrade_type=SAFE)
    response = await cluster.request(UpdateFeaturesRequest(feature_updates=[key]), controller_id=1000)
    assert response.error_code == ErrorCode.NOT_CONTROLLER
    assert await levels(cluster) == {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}


async def test_an_update_whose_znode_is_edited_meanwhile_is_judged_by_the_edit(cluster: ControllerCluster) -> None:
    """Model: off_epoch_version. The controller overwrites only the version that it has read."""
    await start(cluster, SUPPORTED)
    before_the_features_are_written(cluster, lambda: cluster.store.set(Features.PATH, RISEN, -1))
    response = await ask(cluster, {ORDERED_RESIZE: 0}, SAFE)
    assert codes(response) == {ORDERED_RESIZE: ErrorCode.INVALID_REQUEST}
    assert "not finalized" in response.results[0].error_message
    assert (await cluster.store.get(Features.PATH)).data == RISEN


async def test_an_update_whose_answer_from_zookeeper_is_lost_is_made_once(cluster: ControllerCluster) -> None:
    await start(cluster, SUPPORTED)
    before = (await cluster.store.get(Features.PATH)).version

    session = cluster.sessions[1000]

    async def lose_the_answer() -> None:
        session.lose_next_answer()

    async def reconnect() -> None:
        await cluster.until(lambda: session.state is SessionState.SUSPENDED)
        session.reconnect()

    cluster.nursery.start_soon(reconnect)
    before_the_features_are_written(cluster, lose_the_answer)
    response = await ask(cluster, {ORDERED_RESIZE: 0}, SAFE)
    assert codes(response) == {ORDERED_RESIZE: ErrorCode.NONE}
    assert response.features_epoch == (await cluster.store.get(Features.PATH)).version == before + 1


async def is_active(cluster: ControllerCluster, controller_id: int) -> bool:
    active = await cluster.active()
    return active is not None and active.controller_id == controller_id


async def test_an_update_is_refused_for_a_broker_that_registers_meanwhile(cluster: ControllerCluster) -> None:
    """Model: off_controller_checks. The broker registers after the controller has looked at the brokers."""
    await start(cluster, PREVIOUS)

    async def join() -> None:
        await cluster.start_broker(2)
        await cluster.store.set(paths.REGISTRATIONS, b"")

    before_the_features_are_written(cluster, join)
    cluster.features = {}
    response = await ask(cluster, {GROUP_COORDINATOR: 1})
    assert codes(response) == {GROUP_COORDINATOR: ErrorCode.FEATURE_UPDATE_FAILED}
    assert await levels(cluster) == {}


async def test_the_minimum_level_rises_once_no_broker_supports_the_old_level(cluster: ControllerCluster) -> None:
    await start(cluster, SUPPORTED, SUPPORTED)
    newer = {**SUPPORTED, GROUP_COORDINATOR: VersionRange(2, 2)}

    async def minimum() -> int:
        return (await finalized(cluster)).features[GROUP_COORDINATOR].min_version_level

    for broker_id in (1, 2):
        assert await minimum() == 1
        await restart(cluster, broker_id, newer)
    await cluster.until(lambda: risen(cluster))
    assert await minimum() == 2
    refused = await ask(cluster, {GROUP_COORDINATOR: 1, ORDERED_RESIZE: 0}, UNSAFE)
    assert codes(refused)[GROUP_COORDINATOR] == ErrorCode.INVALID_REQUEST


async def restart(cluster: ControllerCluster, broker_id: int, supported: Mapping[str, VersionRange]) -> None:
    """Register the broker with other ranges, and return when the controller has read them."""
    broker = cluster.brokers[broker_id]
    broker.leave()
    broker.features = dict(supported)
    await broker.register()
    await ask(cluster, {"unknown": 1}, validate_only=True)  # decided after the change of the registrations


async def risen(cluster: ControllerCluster) -> bool:
    return (await finalized(cluster)).features[GROUP_COORDINATOR].min_version_level == 2


# ---------------------------------------------------------------- effects of the levels


async def resize(cluster: ControllerCluster, count: int) -> tuple[int, str]:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=count, assignments=None)], timeout_ms=60_000
    )
    [result] = (await cluster.request(request)).results
    return result.error_code, result.error_message or ""


async def test_a_resized_topic_is_still_served_while_ordered_resize_is_not_finalized(
    cluster: ControllerCluster,
) -> None:
    """The topic keeps its layout, also in elections. Only resizes are refused, until the feature is finalized again."""
    await older_cluster(cluster, SUPPORTED)
    await ask(cluster, HIGHEST)
    assert (await resize(cluster, 2))[0] == ErrorCode.NONE
    before = [(await cluster.state("t", index)).layout for index in range(2)]
    assert codes(await ask(cluster, {ORDERED_RESIZE: 0}, UNSAFE)) == {ORDERED_RESIZE: ErrorCode.NONE}
    for leader, change in ((-1, leave), (1, register)):
        await change(cluster.brokers[1])
        await cluster.until(partial(all_led_by, cluster, leader))
    assert [(await cluster.state("t", index)).layout for index in range(2)] == before
    code, message = await resize(cluster, 3)
    assert code == ErrorCode.POLICY_VIOLATION and "`anabranch features upgrade --all`" in message
    assert codes(await ask(cluster, {ORDERED_RESIZE: LINEAGE_LEVEL})) == {ORDERED_RESIZE: ErrorCode.NONE}
    assert (await resize(cluster, 3))[0] == ErrorCode.NONE


async def leave(broker: FakeBroker) -> None:
    broker.leave()


async def register(broker: FakeBroker) -> None:
    await broker.register()


async def all_led_by(cluster: ControllerCluster, leader: int) -> bool:
    return all([(await cluster.state("t", index)).leader == leader for index in range(2)])


# ---------------------------------------------------------------- bad content


async def test_a_repaired_features_znode_is_used_again(cluster: ControllerCluster) -> None:
    await start(cluster, SUPPORTED)
    right = (await cluster.store.get(Features.PATH)).data
    for content, code in ((b"{", ErrorCode.FEATURE_UPDATE_FAILED), (right, ErrorCode.NONE)):
        await cluster.store.set(Features.PATH, content, -1)
        await cluster.until(partial(answered, cluster, code))
        assert (await cluster.store.get(Features.PATH)).data == content, "left as it was edited"
    assert codes(await ask(cluster, {ORDERED_RESIZE: 0}, SAFE)) == {ORDERED_RESIZE: ErrorCode.NONE}


async def answered(cluster: ControllerCluster, code: ErrorCode) -> bool:
    return (await ask(cluster, {ORDERED_RESIZE: 0}, SAFE, validate_only=True)).error_code == code


async def test_a_controller_that_lacks_a_finalized_feature_does_not_stand_for_election() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(IncompatibleFeaturesError, match=ORDERED_RESIZE), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            cluster = ControllerCluster(nursery)
            await start(cluster, SUPPORTED)
            cluster.kill_controller(1000)
            ranges = "group_coordinator:1-2,consumer_offsets_topic_schema:1-2"
            await cluster.start_controller(1001, supported_features=ranges)
            await trio.sleep_forever()
