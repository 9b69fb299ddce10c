"""Connecting to a host with several addresses, one of which does not answer."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.runtime.staggered import STAGGER_S, connect_to_one, in_turn

V4, V6 = socket.AF_INET, socket.AF_INET6
ADDRESSES = [(V4, name) for name in ("a", "b", "c")]


class Connection:
    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Host:
    """Addresses that answer after some seconds: with a connection, with an error, or never."""

    def __init__(self, **answers: float | OSError) -> None:
        self.answers = answers
        self.began: dict[str, float] = {}
        self.made: list[Connection] = []

    async def connect(self, address: tuple[Any, ...]) -> Connection:
        name = address[1]
        self.began[name] = trio.current_time()
        answer = self.answers.get(name)
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, OSError):
            await trio.lowlevel.checkpoint()
            raise answer
        await trio.sleep(answer or 0)  # virtual time: the answer of this address
        self.made.append(Connection(name))
        return self.made[-1]


def refused(name: str) -> OSError:
    return OSError(errno.ECONNREFUSED, f"connect to {name}: refused")


@pytest.mark.trio
async def test_an_address_that_does_not_answer_delays_the_next_a_little(
    autojump_clock: trio.testing.MockClock,
) -> None:
    host, began = Host(b=0.1), trio.current_time()
    assert (await connect_to_one(ADDRESSES, host.connect)).name == "b"
    assert {name: at - began for name, at in host.began.items()} == pytest.approx({"a": 0, "b": STAGGER_S})


@pytest.mark.trio
async def test_a_slow_address_may_still_be_the_first_to_answer(autojump_clock: trio.testing.MockClock) -> None:
    host = Host(a=1.5 * STAGGER_S)
    connection = await connect_to_one(ADDRESSES, host.connect)
    assert (connection.name, connection.closed, list(host.began)) == ("a", False, ["a", "b"])


@pytest.mark.trio
async def test_after_a_refusal_the_next_address_is_tried_at_once(autojump_clock: trio.testing.MockClock) -> None:
    host, began = Host(a=refused("a"), b=refused("b"), c=0), trio.current_time()
    assert (await connect_to_one(ADDRESSES, host.connect)).name == "c"
    assert trio.current_time() - began < STAGGER_S


@pytest.mark.trio
async def test_the_error_names_each_address_that_refused(autojump_clock: trio.testing.MockClock) -> None:
    host = Host(a=refused("a"), b=refused("b"), c=refused("c"))
    with pytest.raises(ConnectionRefusedError, match="connect to a: refused; connect to b: refused; connect to c"):
        await connect_to_one(ADDRESSES, host.connect)


@pytest.mark.trio
async def test_a_second_connection_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    host = Host(a=2 * STAGGER_S, b=STAGGER_S)
    connection = await connect_to_one(ADDRESSES, host.connect)
    assert not connection.closed
    assert [one.closed for one in host.made if one is not connection] in ([], [True])


@pytest.mark.trio
async def test_a_deadline_ends_every_try(autojump_clock: trio.testing.MockClock) -> None:
    host = Host()
    with trio.move_on_after(5) as waited:
        await connect_to_one(ADDRESSES, host.connect)
    assert waited.cancelled_caught and len(host.began) == 3


def test_families_alternate_and_each_attempt_begins_with_another_address() -> None:
    found = [(V6, "1"), (V6, "2"), (V6, "3"), (V4, "4")]
    assert [name for _, name in in_turn(found, 0)] == ["1", "4", "2", "3"]
    assert [in_turn(found, attempt)[0][1] for attempt in range(5)] == ["1", "4", "2", "3", "1"]
    assert in_turn([], 3) == []
