"""A response that is filled in later reaches one listener, and is not kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from anabranch.broker.deferred import Deferred


class Response:
    """A response that weak references may point to."""


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("filled_first", [True, False])
def test_neither_the_response_nor_its_listener_is_kept(filled_first: bool) -> None:
    answer: Deferred[Response] = Deferred()
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    seen = 0

    def listen() -> None:
        def take(response: Response) -> None:
            nonlocal seen
            assert answer.filled
            alive.add(response)
            seen += 1

        alive.add(take)
        answer.then(take)

    if filled_first:
        answer.fill(Response())
        listen()
    else:
        answer.on_abandoned = lambda: answer.fill(Response())
        listen()
        answer.fill(Response())
    assert (seen, len(alive)) == (1, 0)
    assert answer.on_abandoned is None


@pytest.mark.parametrize("filled", [True, False])
def test_a_second_listener_is_refused(filled: bool) -> None:
    answer: Deferred[int] = Deferred()
    found: list[int] = []
    answer.then(found.append)
    if filled:
        answer.fill(1)
    with pytest.raises(RuntimeError, match="one listener"):
        answer.then(found.append)


def test_a_response_is_filled_once() -> None:
    answer: Deferred[int] = Deferred()
    answer.fill(1)
    with pytest.raises(RuntimeError, match="filled twice"):
        answer.fill(2)
