"""Decodes the requests of a process's connections, within a limit of memory for all large requests together.

Objects take up to 16 times the bytes of a request. Each request has a budget (``protocol/decode_budget``), but many
connections may send one at the same time. So a request of many parts waits, before it is decoded, while the requests
that are decoded or served have taken ``decoded.requests.max.bytes``. A request of few parts, such as a Produce of large
batches, never waits: it is decoded in one piece.

A request counts while it waits for the controller, and the controller's next request may be what it waits for. So half
of the limit is for ``FIRST_APIS``: nothing that waits for another process can hold them back.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.framing import LARGE_FRAME_BYTES, Request, decode_request, decode_request_in_steps
from anabranch.protocol.message_limits import CONTROLLER_APIS, DEFAULT_LIMITS, RequestLimits
from anabranch.runtime.memory_budget import MemoryBudget
from anabranch.runtime.pauses import with_pauses

_PRODUCE = int(ApiKey.PRODUCE)
FIRST_APIS = CONTROLLER_APIS | {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.ALTER_PARTITION}
"""The requests by which partitions are led, followed, written and read. None of them waits for any other request."""


class DecodedRequests:
    """The large requests of one process that are decoded or served. The reader of a request calls ``free`` for it."""

    def __init__(self, limits: RequestLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._first = MemoryBudget(limits.half_of_decoded_bytes)
        self._others = MemoryBudget(limits.half_of_decoded_bytes)

    @property
    def taken_bytes(self) -> int:
        """The memory of the requests. One that is being decoded counts with its whole budget."""
        return self._first.taken_bytes + self._others.taken_bytes

    def _memory_for(self, api_key: int) -> MemoryBudget:
        return self._first if api_key in FIRST_APIS else self._others

    async def read(self, frame: memoryview, has_ended: Callable[[], bool]) -> Request:
        """``decode_request``, with pauses and within the limits where the frame is large.

        Raises ``ConnectionAbortedError`` if the client has closed the connection while its request waited. A Produce
        is decoded all the same: without acknowledgements, a client may close its connection after it.
        """
        if len(frame) < LARGE_FRAME_BYTES:
            return decode_request(frame)
        api_key = int.from_bytes(frame[:2], "big")
        memory = self._memory_for(api_key)
        taken_bytes = 0

        async def wait_for_room() -> None:
            nonlocal taken_bytes
            if memory.limited:
                await memory.wait_for_room(0)
            if api_key != _PRODUCE and has_ended():
                raise ConnectionAbortedError("closed by the client while its request waited to be decoded")
            taken_bytes = self.limits.budget(api_key, len(frame)).memory
            memory.take(taken_bytes)

        try:
            request = await with_pauses(decode_request_in_steps(frame, self.limits), wait_for_room)
            taken_bytes -= request.decoded_bytes
            return request
        finally:
            memory.take(-taken_bytes)

    def free(self, api_key: int, decoded_bytes: int) -> None:
        """Note that a request of ``decoded_bytes`` is not needed any more."""
        self._memory_for(api_key).take(-decoded_bytes)
