"""Registration, producer ids and the cluster id, against the fake ZooKeeper."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from anabranch.broker.link.producer_ids import ProducerIds
from anabranch.broker.link.registration import DuplicateBrokerError, Registrar
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.producer_id_block import BLOCK_SIZE
from sim.zk import FakeSession, FakeZk

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


async def server() -> FakeZk:
    zk = FakeZk()
    await zk.session().create("/brokers/ids", b"", make_parents=True)
    return zk


async def admit() -> None:
    """Accept every set of finalized features."""


def registration(session: FakeSession, wait_s: float = 30.0, admit: Callable[[], Awaitable[None]] = admit) -> Registrar:
    return Registrar(session, 1, lambda: BrokerRegistration([Endpoint("PLAINTEXT", "h", 1)]), admit, wait_s)


def losing_one_answer(session: FakeSession) -> Callable[[], Awaitable[None]]:
    """Return an ``admit`` after which the response to the first registration is lost."""
    lose = iter([session.lose_next_answer])

    async def admit() -> None:
        next(lose, lambda: None)()

    return admit


async def test_registration_waits_for_the_end_of_the_old_session() -> None:
    """KAFKA-7165, 14845: a restarted broker does not adopt the registration of its old session, which expires."""
    zk = await server()
    old, new = zk.session(), zk.session()
    await registration(old).register()
    successor = registration(new)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(successor.register)
        await trio.testing.wait_all_tasks_blocked()
        assert successor.epoch == -1
        old.expire()
    stat = await new.exists("/brokers/ids/1")
    assert stat is not None
    assert (stat.ephemeral_owner, stat.czxid) == (new.session_id, successor.epoch)


async def test_a_registration_whose_response_was_lost_is_recognized() -> None:
    """KAFKA-13407: the existing znode is the broker's own."""
    zk = await server()
    session = zk.session()
    ours = registration(session, admit=losing_one_answer(session))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.register)
        await trio.testing.wait_all_tasks_blocked()
        session.reconnect()
    assert ours.epoch > 0


async def test_a_second_broker_with_the_same_id_gives_up() -> None:
    zk = await server()
    await registration(zk.session()).register()
    with pytest.raises(DuplicateBrokerError, match=r"broker\.id"):
        await registration(zk.session(), wait_s=5).register()


async def test_a_broker_registers_again_after_expiry_and_deletion() -> None:
    zk = await server()
    session, admin = zk.session(), zk.session()
    ours = registration(session)
    await ours.register()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.run)
        for disturb in (session.expire, lambda: None):
            await trio.testing.wait_all_tasks_blocked()
            before = ours.epoch
            disturb()
            if ours.epoch == before and await admin.exists("/brokers/ids/1") is not None:
                await admin.delete("/brokers/ids/1")
            with trio.fail_after(60):
                while ours.epoch == before:
                    await trio.sleep(0.1)  # polls: the next epoch
        nursery.cancel_scope.cancel()


class Described:
    """A registration whose endpoint follows ``host``."""

    def __init__(self, session: FakeSession, admit: Callable[[], Awaitable[None]] = admit) -> None:
        self.host = "before"
        self.session = session
        self.described = 0
        self.registration = Registrar(session, 1, self.describe, admit, 30.0)

    def describe(self) -> BrokerRegistration:
        self.described += 1
        return BrokerRegistration([Endpoint("PLAINTEXT", self.host, 1)], timestamp_ms=self.described)

    async def shown(self) -> str:
        found = await self.session.get("/brokers/ids/1")
        return BrokerRegistration.decode("/brokers/ids/1", found.data).endpoints[0].host

    def move(self, host: str) -> None:
        self.host = host
        self.registration.refresh()


async def test_a_changed_registration_is_written_and_keeps_the_broker_epoch() -> None:
    """The broker keeps its epoch when it rewrites its znode.

    KIP-226: a new czxid is a new broker epoch, and the controller would treat the broker as restarted.
    """
    zk = await server()
    ours = Described(zk.session())
    await ours.registration.register()
    before = await ours.session.get("/brokers/ids/1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.registration.run)
        await trio.testing.wait_all_tasks_blocked()
        assert (await ours.session.get("/brokers/ids/1")).version == before.version, "only the time differs"
        ours.move("after")
        await trio.testing.wait_all_tasks_blocked()
        after = await ours.session.get("/brokers/ids/1")
        assert (await ours.shown(), after.version) == ("after", before.version + 1)
        assert after.czxid == before.czxid == ours.registration.epoch
        nursery.cancel_scope.cancel()


async def test_a_change_during_the_registration_is_written() -> None:
    zk = await server()
    session = zk.session()
    ours = Described(session, losing_one_answer(session))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.registration.register)
        await trio.testing.wait_all_tasks_blocked()
        ours.move("after")
        ours.session.reconnect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.registration.run)
        await trio.testing.wait_all_tasks_blocked()
        assert await ours.shown() == "after"
        nursery.cancel_scope.cancel()


async def test_a_change_without_a_zookeeper_connection_is_written_later() -> None:
    zk = await server()
    ours = Described(zk.session())
    await ours.registration.register()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.registration.run)
        await trio.testing.wait_all_tasks_blocked()
        ours.session.disconnect()
        ours.move("after")
        await trio.testing.wait_all_tasks_blocked()
        ours.session.reconnect()
        with trio.fail_after(60):
            while await ours.shown() != "after":
                await trio.sleep(0.1)  # polls: the registration
        nursery.cancel_scope.cancel()


async def test_two_brokers_never_give_out_the_same_producer_id() -> None:
    zk = await server()
    brokers = [ProducerIds(zk.session(), broker_id) for broker_id in (1, 2)]
    taken = [await brokers[turn % 2].take_or_claim() for turn in range(3 * BLOCK_SIZE)]
    assert len(set(taken)) == len(taken)
