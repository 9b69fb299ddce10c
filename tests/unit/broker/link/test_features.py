"""A broker starts only if it supports the finalized features, and stops if new features are not supported (KIP-584)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from anabranch.broker.config import BrokerConfig
from anabranch.broker.link.features import FinalizedFeatureCache
from anabranch.broker.link.registration import Registrar
from anabranch.broker.log.paths import CLEAN_SHUTDOWN_MARKER
from anabranch.broker.process import run
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Env
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint, VersionRange
from anabranch.zk_schemas.features import Features, FeaturesStatus, FinalizedFeature, IncompatibleFeaturesError
from sim.clock import SimClock
from sim.network import SimFabric
from sim.storage import SimDisk
from sim.zk import FakeSession, FakeZk

pytestmark = pytest.mark.trio
GROUPS = "group_coordinator"
OWN: Mapping[str, VersionRange] = {GROUPS: VersionRange(1, 2)}


def levels(maximum: int, minimum: int = 1, status: FeaturesStatus = FeaturesStatus.ENABLED) -> bytes:
    return Features(status, {GROUPS: FinalizedFeature(minimum, maximum)}).encode()


async def server(content: bytes | None = None) -> FakeSession:
    """Return a session of a ZooKeeper with this ``/features``."""
    session = FakeZk().session()
    await session.create(paths.BROKER_IDS, b"", make_parents=True)
    await session.create(paths.REGISTRATIONS, b"")
    if content is not None:
        await session.create(paths.FEATURES, content)
    return session


@asynccontextmanager
async def following(features: FinalizedFeatureCache) -> AsyncIterator[None]:
    await features.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(features.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def test_the_finalized_levels_and_their_epoch_are_those_of_the_znode() -> None:
    zk = await server(levels(2))
    await zk.set(paths.FEATURES, levels(1))
    features = FinalizedFeatureCache(zk, OWN)
    await features.load()
    assert (features.level(GROUPS), features.level("other"), features.epoch) == (1, 0, 1)
    [key] = features.finalized_keys()
    assert (key.name, key.min_version_level, key.max_version_level) == (GROUPS, 1, 1)
    [own] = features.supported_keys()
    assert (own.name, own.min_version, own.max_version) == (GROUPS, 1, 2)


@pytest.mark.parametrize("content", [None, levels(2, status=FeaturesStatus.DISABLED)], ids=["no znode", "disabled"])
async def test_without_features_and_while_they_are_disabled_nothing_is_finalized(content: bytes | None) -> None:
    features = FinalizedFeatureCache(await server(content), {})
    await features.load()
    assert (features.level(GROUPS), features.epoch, features.finalized_keys()) == (0, -1, [])


@pytest.mark.parametrize(
    "own",
    [{}, {GROUPS: VersionRange(1, 1)}, {GROUPS: VersionRange(3, 4)}],
    ids=["no feature", "levels 1 to 1", "levels 3 to 4"],
)
async def test_a_broker_without_the_finalized_level_does_not_register(own: Mapping[str, VersionRange]) -> None:
    """Model: off_look."""
    zk = await server(levels(2))
    registration = registering(zk, FinalizedFeatureCache(zk, own))
    with pytest.raises(IncompatibleFeaturesError, match="level 2"):
        await registration.register()
    assert await zk.children(paths.BROKER_IDS) == []


async def test_a_broker_that_cannot_read_the_features_znode_does_not_register() -> None:
    zk = await server(b"{")
    with pytest.raises(IncompatibleFeaturesError, match=paths.FEATURES):
        await registering(zk, FinalizedFeatureCache(zk, OWN)).register()


async def test_a_broker_follows_updates_of_the_finalized_features() -> None:
    zk = await server()
    features = FinalizedFeatureCache(zk, OWN)
    async with following(features):
        for content, level in ((None, 0), (levels(1), 1), (levels(2), 2), (levels(1), 1)):
            if content is not None and await zk.exists(paths.FEATURES) is None:
                await zk.create(paths.FEATURES, content)
            elif content is not None:
                await zk.set(paths.FEATURES, content)
            await trio.testing.wait_all_tasks_blocked()
            assert features.level(GROUPS) == level


async def test_the_features_read_last_count_while_the_znode_cannot_be_read() -> None:
    zk = await server(levels(2))
    features = FinalizedFeatureCache(zk, OWN)
    async with following(features):
        await zk.set(paths.FEATURES, b"{")
        await trio.testing.wait_all_tasks_blocked()
        assert features.level(GROUPS) == 2


async def test_a_broker_that_no_longer_supports_the_finalized_level_stops() -> None:
    zk = await server(levels(1))
    features = FinalizedFeatureCache(zk, OWN)
    with pytest.RaisesGroup(pytest.RaisesExc(IncompatibleFeaturesError, match="level 3")):
        async with following(features):
            await zk.set(paths.FEATURES, levels(3))
            with trio.fail_after(60):
                await trio.sleep_forever()


async def test_updates_are_noticed_after_a_lost_session(autojump_clock: trio.testing.MockClock) -> None:
    server = FakeZk()
    admin, session = server.session(), server.session()
    await admin.create(paths.FEATURES, levels(1))
    features = FinalizedFeatureCache(session, OWN)
    async with following(features):
        session.expire()
        await admin.set(paths.FEATURES, levels(2))
        with trio.fail_after(60):
            await features.wait_until(lambda: features.level(GROUPS) == 2, 60)
        assert features.level(GROUPS) == 2


def registering(zk: FakeSession, features: FinalizedFeatureCache) -> Registrar:
    described = BrokerRegistration([Endpoint("PLAINTEXT", "h", 1)], features=dict(features.supported))
    return Registrar(zk, 1, lambda: described, features.load, 30.0)


async def test_a_broker_checks_the_features_again_when_they_change_before_it_registers() -> None:
    """Model: off_broker_checks. The features change between the broker's check and its registration."""
    zk = await server(levels(1))
    features = FinalizedFeatureCache(zk, {GROUPS: VersionRange(1, 1)})
    looks = 0

    async def look_and_be_overtaken() -> None:
        nonlocal looks
        looks += 1
        await features.load()
        if looks == 1:
            await zk.set(paths.FEATURES, levels(2))
            await zk.set(paths.REGISTRATIONS, b"")

    described = BrokerRegistration([Endpoint("PLAINTEXT", "h", 1)])
    registration = Registrar(zk, 1, lambda: described, look_and_be_overtaken, 30.0)
    with pytest.raises(IncompatibleFeaturesError):
        await registration.register()
    assert (looks, await zk.children(paths.BROKER_IDS)) == (2, [])


async def test_each_registration_bumps_the_version_of_the_registrations_znode() -> None:
    """Each registration bumps the znode's version. Model: off_broker_sets.

    A controller that checked the brokers earlier then fails to write its decision.
    """
    zk = await server(levels(1))
    before = await zk.get(paths.REGISTRATIONS)
    await registering(zk, FinalizedFeatureCache(zk, OWN)).register()
    assert (await zk.get(paths.REGISTRATIONS)).version == before.version + 1


# ---------------------------------------------------------------- a whole broker


class Broker:
    """A broker that supports ``group_coordinator`` 1 to 2, in virtual time; ``admin`` edits the finalized features."""

    def __init__(self, content: bytes | None = None) -> None:
        rng, zk = random.Random(1), FakeZk()
        self._fabric = SimFabric(rng, delay_s=lambda: 0.0)
        self.disk, self.admin, self._content = SimDisk(rng), zk.session(), content
        self._env = Env(
            SimClock(), self._fabric.node("b"), rng, storage=self.disk.mount(), zk=zk.session(), propagate_bugs=True
        )

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        if self._content is not None:
            await self.admin.create(paths.FEATURES, self._content)
        given = {
            "broker.id": "1",
            "zookeeper.connect": "simulated",
            "listeners": "PLAINTEXT://b:1",
            "log.dirs": "/logs",
            "supported.features": f"{GROUPS}:1-2",
            "request.timeout.ms": "1000",
        }
        await run(BrokerConfig.from_given(given), self._env, on_ready=lambda _: task_status.started())

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Channel]:
        async with Channel.open(self._fabric.node("client"), "b", 1, "client") as channel:
            yield channel

    async def api_versions(self, version: int) -> ApiVersionsResponse:
        async with self.channel() as channel:
            body = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            return await channel.request(body, version=version)


async def test_only_version_3_of_api_versions_has_the_features(autojump_clock: object) -> None:
    """The response has the supported features, the finalized features and the epoch as tagged fields of version 3."""
    broker = Broker(levels(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        await broker.admin.set(paths.FEATURES, levels(2))
        await trio.testing.wait_all_tasks_blocked()
        found = await broker.api_versions(3)
        assert [(key.name, key.min_version, key.max_version) for key in found.supported_features] == [(GROUPS, 1, 2)]
        finalized = [(key.name, key.min_version_level, key.max_version_level) for key in found.finalized_features]
        assert (finalized, found.finalized_features_epoch) == ([(GROUPS, 1, 2)], 1)
        for version in range(3):
            older = await broker.api_versions(version)
            assert older.api_keys
            assert (older.supported_features, older.finalized_features, older.finalized_features_epoch) == ([], [], -1)
        nursery.cancel_scope.cancel()


async def test_api_versions_has_no_epoch_and_no_level_while_nothing_is_finalized(autojump_clock: object) -> None:
    """The broker supports features, in a cluster where feature versioning is disabled or absent."""
    for content in (None, levels(2, status=FeaturesStatus.DISABLED)):
        broker = Broker(content)
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            found = await broker.api_versions(3)
            assert [key.name for key in found.supported_features] == [GROUPS]
            assert (found.finalized_features, found.finalized_features_epoch) == ([], -1)
            nursery.cancel_scope.cancel()


async def test_a_registration_names_the_supported_version_ranges_of_features(autojump_clock: object) -> None:
    broker = Broker()
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        found = BrokerRegistration.decode("/", (await broker.admin.get(paths.broker_id(1))).data)
        assert found.features == {GROUPS: VersionRange(1, 2)}
        nursery.cancel_scope.cancel()


async def test_a_broker_without_a_newly_finalized_level_shuts_down_cleanly(autojump_clock: object) -> None:
    """The broker deletes its registration, and its next start recovers no log."""
    broker = Broker(levels(2))
    with pytest.RaisesGroup(pytest.RaisesExc(IncompatibleFeaturesError, match="level 3"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            assert await broker.admin.children(paths.BROKER_IDS) == ["1"]
            await broker.admin.set(paths.FEATURES, levels(3))
            with trio.fail_after(60):
                await trio.sleep_forever()
    assert await broker.admin.children(paths.BROKER_IDS) == []
    assert broker.disk.mount().exists(f"/logs/{CLEAN_SHUTDOWN_MARKER}")


async def test_a_feature_update_fails_when_the_broker_finds_no_controller(autojump_clock: object) -> None:
    """A broker is not a controller, so it forwards the request, like requests about topics (KIP-590)."""
    broker = Broker(levels(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        async with broker.channel() as channel:
            key = FeatureUpdateKey(feature=GROUPS, max_version_level=2)
            found = await channel.request(UpdateFeaturesRequest(feature_updates=[key]), version=1, timeout_s=60)
        assert found.error_code == ErrorCode.REQUEST_TIMED_OUT and "no controller" in found.error_message
        assert (await broker.admin.get(paths.FEATURES)).version == 0
        nursery.cancel_scope.cancel()
