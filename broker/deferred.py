"""A response that is filled in later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Deferred(Generic[T]):
    """A place for one response. It is filled exactly once, when the awaited condition holds.

    A handler returns a ``Deferred`` instead of the response if the answer must wait (for the high watermark, for other
    members, for the controller). The connection keeps its place in the queue, so responses are sent in request order.
    """

    __slots__ = ("_filled", "_has_listener", "_listener", "_value", "on_abandoned")

    def __init__(self) -> None:
        self._filled = False
        self._value: T | None = None
        """The value, until the listener has it."""
        self._has_listener = False
        self._listener: Callable[[T], None] | None = None
        self.on_abandoned: Callable[[], None] | None = None
        """Called when the connection ends before the response is there."""

    @property
    def filled(self) -> bool:
        return self._filled

    def fill(self, value: T) -> None:
        """Set the value and call the listener. Raises ``RuntimeError`` when it was set before."""
        if self._filled:
            raise RuntimeError("a response was filled twice")
        self._filled = True
        self.on_abandoned = None
        listener, self._listener = self._listener, None
        if listener is None:
            self._value = value
        else:
            listener(value)

    async def value(self) -> T:
        """Wait for the value. No other listener is allowed."""
        arrived = trio.Event()
        found: list[T] = []

        def keep(value: T) -> None:
            found.append(value)
            arrived.set()

        self.then(keep)
        await arrived.wait()
        return found[0]

    def then(self, listener: Callable[[T], None]) -> None:
        """Call ``listener`` with the value; at once if the value is set already. One listener only.

        Neither of them is kept afterwards: a listener often refers to this object, and a long response would stay in
        memory until the next garbage collection.
        """
        if self._has_listener:
            raise RuntimeError("a response may have one listener only")
        self._has_listener = True
        if self._filled:
            value, self._value = self._value, None
            listener(value)  # type: ignore[arg-type]
        else:
            self._listener = listener
