"""The registrations of running controllers in ``/controllers``."""

from __future__ import annotations

import pytest
import trio

from anabranch.broker.link.registered_controllers import RegisteredControllers
from anabranch.controller.registration import ControllerRegistration
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import ControllerZnode
from sim.zk import FakeSession, FakeZk
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


def register(session: FakeSession, nursery: trio.Nursery, port: int) -> None:
    nursery.start_soon(ControllerRegistration(session, ControllerZnode(1000, "h", port)).run)


async def registered_port(session: FakeSession) -> int:
    path = paths.controller_id(1000)
    return ControllerZnode.decode(path, (await session.get(path)).data).port


async def test_active_and_standby_controllers_register_and_leave(nursery: trio.Nursery) -> None:
    cluster = ControllerCluster(nursery)
    await cluster.start_controller(1000)
    await cluster.start_controller(1001)

    async def registered() -> list[str]:
        return await cluster.store.children(paths.CONTROLLERS)

    async def both() -> bool:
        return await registered() == ["1000", "1001"]

    async def one() -> bool:
        return await registered() == ["1001"]

    await cluster.until(cluster.active)
    await cluster.until(both)
    cluster.kill_controller(1000)
    await cluster.until(one)


async def test_a_controller_registers_again_after_an_expiry(nursery: trio.Nursery) -> None:
    zk = FakeZk()
    session, reader = zk.session(), zk.session()
    register(session, nursery, 9090)
    await trio.testing.wait_all_tasks_blocked()
    first = (await reader.get(paths.controller_id(1000))).ephemeral_owner
    session.expire()
    with trio.fail_after(60):
        while (found := await reader.exists(paths.controller_id(1000))) is None or found.ephemeral_owner == first:
            await trio.sleep(0.1)  # polls: the next session; virtual time
    assert found.ephemeral_owner == session.session_id


async def test_a_restarted_controller_replaces_the_registration_of_its_earlier_session(nursery: trio.Nursery) -> None:
    zk = FakeZk()
    earlier, later = zk.session(), zk.session()
    await earlier.create(paths.controller_id(1000), b"{}", ephemeral=True, make_parents=True)
    register(later, nursery, 9091)
    await trio.testing.wait_all_tasks_blocked()
    assert await registered_port(later) == 9091
    earlier.close()
    await trio.testing.wait_all_tasks_blocked()
    assert await registered_port(later) == 9091


async def test_two_controllers_with_one_id_do_not_take_turns(nursery: trio.Nursery) -> None:
    zk = FakeZk()
    first, second, reader = zk.session(), zk.session(), zk.session()
    register(first, nursery, 9091)
    await trio.testing.wait_all_tasks_blocked()
    register(second, nursery, 9092)
    await trio.testing.wait_all_tasks_blocked()
    assert await registered_port(reader) == 9092
    second.close()
    await trio.testing.wait_all_tasks_blocked()
    assert await registered_port(reader) == 9091


async def test_a_broker_follows_the_registrations(nursery: trio.Nursery) -> None:
    zk = FakeZk()
    controllers = RegisteredControllers(reader := zk.session())
    nursery.start_soon(controllers.run)
    await trio.testing.wait_all_tasks_blocked()
    assert controllers.znodes == [], "/controllers is missing"
    register(session := zk.session(), nursery, 9090)
    await session.create(f"{paths.CONTROLLERS}/0", b"not JSON", ephemeral=True, make_parents=True)

    async def until(ports: list[int]) -> None:
        with trio.fail_after(60):
            while [znode.port for znode in controllers.znodes or ()] != ports:
                await trio.sleep(0.1)  # polls: the broker reads it again; virtual time

    await until([9090])
    mended = ControllerZnode(0, "h", 9000).encode()
    await session.set(f"{paths.CONTROLLERS}/0", mended)
    await until([9000, 9090])
    await session.delete(f"{paths.CONTROLLERS}/0")
    await until([9090])
    reader.disconnect()
    session.close()
    await trio.testing.wait_all_tasks_blocked()
    assert [znode.port for znode in controllers.znodes or ()] == [9090], "the last ones that were read"
    reader.reconnect()
    await until([])
