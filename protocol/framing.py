"""Frames and headers, sans IO: bytes in, requests or responses out.

A frame is an int32 size and that many bytes. Bytes are received straight into a buffer of this module (``buffer()``,
then ``received(n)``), and the messages are views of the buffer. A connection that waits holds a buffer only for a large
partial frame. A buffer is used again only when it has no views any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from struct import Struct
from typing import Any, ClassVar, Final, NamedTuple

from anabranch.protocol import steps
from anabranch.protocol.api_keys import API_BY_NUMBER, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.message import Message
from anabranch.protocol.message_limits import DEFAULT_LIMITS, RequestLimits, response_budget
from anabranch.protocol.primitives import DecodeError, EncodeError, bad_length, skip_tags
from anabranch.protocol.types import Part

BUFFER_BYTES: Final = 64 * 1024
LARGE_BUFFER_BYTES: Final = 4 * BUFFER_BYTES
"""The size of the buffers for connections whose frames fit into it, and not into ``BUFFER_BYTES``."""
GROWTH: Final = 16
"""A buffer grows to the size of its frame, but at most to this many times the bytes that have arrived."""
SMALL_PARTIAL_BYTES: Final = BUFFER_BYTES // GROWTH
"""A partial frame of at most this many bytes is kept as it is, without a buffer of ``BUFFER_BYTES``."""
MOST_GROWTH_BYTES: Final = 4 * 1024 * 1024
"""A buffer grows at most by this much at once: memory that is not mapped yet takes 0.5 ms for a mebibyte."""
_ZEROS: Final = memoryview(bytes(MOST_GROWTH_BYTES))
SIZE_BYTES: Final = 4
LARGE_FRAME_BYTES: Final = steps.LARGE_BYTES
"""A frame of this size is decoded in steps."""
MANY_ITEMS: Final = 1_000
"""A message with more array items than this is encoded in steps."""
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The default of ``socket.response.max.bytes``."""
HEALTH_CHECK: Final = "anabranch-health"
"""The software name in the ApiVersions request of a health check."""

_API_VERSIONS: Final = ApiKey.API_VERSIONS.value
_UNSUPPORTED_VERSION: Final = ErrorCode.UNSUPPORTED_VERSION.value

ASKS_TAG: Final = 10287
"""The tag with which a request header asks for own tags (``own_tags``)."""
_ASKS_FOR_OWN_TAGS: Final = bytes((1, ASKS_TAG & 0x7F | 0x80, ASKS_TAG >> 7, 0))
"""The tagged fields of a request header: one, with this tag and no bytes."""

_read_size = Struct(">i").unpack_from
_read_header = Struct(">hhi").unpack_from
_read_int16 = Struct(">h").unpack_from
_write_size = Struct(">i").pack_into
_size_and_correlation = Struct(">ii").pack
_size_and_header = Struct(">ihhih").pack


class FrameError(ValueError):
    """The peer does not speak the protocol: close the connection."""


_HTTP: Final = frozenset(
    (b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PATC", b"TRAC", b"PRI ")
)
"""The first bytes of HTTP's answers and requests. As sizes they are above 1 GB."""
_TLS_RECORDS: Final = range(20, 25)


def _other_protocol(first: bytes) -> str | None:
    """If the first four bytes of a stream show another protocol, the protocol's name; else None."""
    if first in _HTTP:
        return "HTTP"
    is_tls = first[0] in _TLS_RECORDS and first[1] == 3 and first[2] <= 4
    return "TLS" if is_tls else None


class TooLargeError(EncodeError):
    """A response is larger than the process may send."""


class UnsupportedRequestError(FrameError):
    """The request's API or version is not implemented, so no response can be encoded."""


class BufferPool:
    """Buffers of ``BUFFER_BYTES`` and ``LARGE_BUFFER_BYTES`` for the connections of one process.

    The buffers of each size take at most the memory of ``max_buffers`` small buffers. A buffer may be given back while
    it still has views; ``take`` skips it until the views are released.
    """

    _TRIES = 4

    def __init__(self, max_buffers: int = 64) -> None:
        self._buffers: dict[int, deque[bytearray]] = {
            size: deque(maxlen=max_buffers * BUFFER_BYTES // size) for size in (BUFFER_BYTES, LARGE_BUFFER_BYTES)
        }

    def take(self, size: int = BUFFER_BYTES) -> bytearray:
        """A buffer of ``size`` bytes that has no views: the last one given, which is probably in the CPU's cache."""
        buffers = self._buffers.get(size)
        tries = self._TRIES
        while buffers and tries:
            buffer = buffers.pop()
            if _is_unused(buffer):
                return buffer
            buffers.appendleft(buffer)
            tries -= 1
        return bytearray(size)

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back. A buffer of another size is dropped; a full pool drops its oldest buffer."""
        buffers = self._buffers.get(len(buffer))
        if buffers is not None:
            buffers.append(buffer)


def _is_unused(buffer: bytearray) -> bool:
    """Whether no view of the buffer is left: Python resizes a bytearray only then."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True


_NOTHING: Final = memoryview(b"")
"""The view of a reader without a buffer."""


class FrameReader:
    """Cuts a byte stream into frames without copying them."""

    __slots__ = (
        "_buffer",
        "_buffer_bytes",
        "_end",
        "_max_frame_bytes",
        "_pool",
        "_small_partial",
        "_start",
        "_unchecked_bytes",
        "_view",
    )

    limited_by: ClassVar[str] = ""
    """The config key of ``max_frame_bytes``, if it has one."""

    def __init__(self, max_frame_bytes: int, pool: BufferPool | None = None) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._unchecked_bytes = max_frame_bytes
        """A frame of at most this size is accepted without ``_check_size``."""
        self._pool = pool or BufferPool(max_buffers=16)
        self._buffer: bytearray | None = None
        self._small_partial = b""
        self._view = _NOTHING
        self._start = 0
        self._end = 0
        self._buffer_bytes = BUFFER_BYTES
        """The size of the next buffer: a connection's next frames are probably as large as its last ones."""

    @property
    def idle(self) -> bool:
        """Whether there is no buffer: wait until there are bytes to receive."""
        return self._buffer is None

    @property
    def has_partial(self) -> bool:
        """Whether a part of a frame has arrived."""
        return self._buffer is not None or bool(self._small_partial)

    def buffer(self, moves: int | None = None) -> memoryview:
        """The memory to receive the next bytes into, never empty. Frames that were returned earlier stay valid.

        ``moves`` is what ``moves()`` returned, if the caller has asked.
        """
        if self._buffer is None:
            self._buffer = self._pool.take(self._buffer_bytes)
            self._view = memoryview(self._buffer)
            if not self._small_partial:
                return self._view
            self._fill(self._small_partial)
            self._small_partial = b""
            return self._view[self._end :]
        if size := self.moves() if moves is None else moves:
            self._move(size)
        return self._view[self._end :]

    def moves(self) -> int:
        """The size of the buffer that ``buffer()`` will move a partial frame to, in bytes; 0: it moves nothing.

        Moving takes time in proportion: where many connections are served, each takes a turn for it.
        """
        if self._buffer is None:
            return 0
        held = self._end - self._start
        needed = SIZE_BYTES
        if held >= SIZE_BYTES:
            needed += self._frame_size()
        capacity = len(self._buffer)
        if self._end < capacity and (not self._start or self._start + needed <= capacity):
            return 0
        return max(min(needed, GROWTH * held, held + MOST_GROWTH_BYTES), BUFFER_BYTES)

    def received(self, count: int) -> None:
        """Note that ``count`` bytes were received into the last ``buffer()``."""
        self._end += count

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size, or None: receive more. Raises FrameError."""
        held = self._end - self._start
        if held < SIZE_BYTES:
            self._keep_small(held)
            return None
        size: int = _read_size(self._view, self._start)[0]
        if not 0 <= size <= self._unchecked_bytes:
            self._check_size(size)
        if held < SIZE_BYTES + size:
            if GROWTH * held <= self._buffer_bytes:
                self._keep_small(held)
            return None
        begin = self._start + SIZE_BYTES
        self._start = begin + size
        return self._view[begin : self._start]

    def close(self) -> None:
        """Give the buffer back and drop the received bytes."""
        self._small_partial = b""
        if self._buffer is not None:
            self._let_go()

    def _frame_size(self) -> int:
        size: int = _read_size(self._view, self._start)[0]
        self._check_size(size)
        return size

    def _check_size(self, size: int) -> None:
        """Raise FrameError for the size of a frame that is not accepted. The frame begins at ``_start``."""
        if size < 0 or size > self._max_frame_bytes:
            other = _other_protocol(bytes(self._view[self._start : self._start + SIZE_BYTES]))
            if other is not None:
                raise FrameError(f"the other side speaks {other}, not Kafka's protocol")
            key = f" ({self.limited_by})" if self.limited_by else ""
            raise FrameError(f"frame of {size} bytes; 0 to {self._max_frame_bytes} are accepted{key}")

    def _keep_small(self, held: int) -> None:
        """Give the buffer back, and keep only the partial frame in it, if there is one."""
        if self._buffer is not None:
            if held:
                self._small_partial = bytes(self._view[self._start : self._end])
            elif self._end <= BUFFER_BYTES:
                self._buffer_bytes = BUFFER_BYTES
            self._let_go()

    def _move(self, size: int) -> None:
        """Grow the buffer, or copy the partial frame to another buffer."""
        if self._start == 0 and self._grow(size):
            return
        partial = self._view[self._start : self._end]
        is_large = BUFFER_BYTES < size <= LARGE_BUFFER_BYTES
        self._buffer_bytes = LARGE_BUFFER_BYTES if is_large else BUFFER_BYTES
        if size < self._buffer_bytes <= GROWTH * len(partial):
            size = self._buffer_bytes
        target = self._pool.take(size)
        self._let_go()
        self._buffer, self._view = target, memoryview(target)
        self._fill(partial)
        partial.release()

    def _grow(self, size: int) -> bool:
        """Grow a large buffer in place; False if it is a small one, or has other views."""
        buffer = self._buffer
        assert buffer is not None
        if len(buffer) <= LARGE_BUFFER_BYTES:
            return False
        self._view.release()
        try:
            buffer += _ZEROS[: size - len(buffer)]
        except BufferError:
            return False
        finally:
            self._view = memoryview(buffer)
        return True

    def _fill(self, partial: bytes | memoryview) -> None:
        self._end = len(partial)
        self._view[: self._end] = partial

    def _let_go(self) -> None:
        assert self._buffer is not None
        self._view.release()
        self._pool.give(self._buffer)
        self._buffer = None
        self._view = _NOTHING
        self._start = self._end = 0


# ---------------------------------------------------------------- headers


class RequestHeader(NamedTuple):
    """The fields of Kafka's RequestHeader, versions 1 and 2, and whether a tag asks for own tags (``own_tags``)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    asks_for_own_tags: bool = False


class Request(NamedTuple):
    """A decoded request. ``size`` is the length of its frame in bytes, without the size field.

    ``unsupported`` is set for an ApiVersions request of a version that is not implemented. Its ``body`` is then an
    empty request, and the response is version 0 with UNSUPPORTED_VERSION (KIP-511). ``large_arrays`` are the body's
    arrays with many items, for ``free_in_steps``. ``decoded_bytes``: the memory of the objects of a large request.
    """

    header: RequestHeader
    body: Message
    size: int
    unsupported: bool = False
    large_arrays: list[list[Any]] | None = None
    decoded_bytes: int = 0


def decode_request(frame: memoryview) -> Request:
    """Header and body of a request frame. Raises FrameError or DecodeError."""
    header, pos, supported = _request_header(frame)
    cls = API_BY_NUMBER[header.api_key].request
    if not supported:
        return Request(header, cls(), len(frame), unsupported=True)
    # Kafka ignores bytes after a request: librdkafka's request for all topics is three bytes too long.
    return Request(header, cls.decode_prefix(frame[pos:], header.api_version)[0], len(frame))


def decode_request_in_steps(frame: memoryview, limits: RequestLimits = DEFAULT_LIMITS) -> steps.Steps[Request]:
    """``decode_request`` for a large frame, within a budget: yields after each item of an array."""
    header, pos, supported = _request_header(frame)
    cls = API_BY_NUMBER[header.api_key].request
    if not supported:
        return Request(header, cls(), len(frame), unsupported=True)
    budget = limits.budget(header.api_key, len(frame))
    body, _ = yield from steps.decode_prefix(cls, frame[pos:], header.api_version, budget)
    return Request(header, body, len(frame), large_arrays=budget.large_arrays or None, decoded_bytes=budget.used_memory)


def _request_header(frame: memoryview) -> tuple[RequestHeader, int, bool]:
    """The header, the position of the body, and whether the body's version is implemented."""
    size = len(frame)
    if size < 8:
        raise DecodeError(f"request header: {size} bytes where 8 are needed")
    api_key, version, correlation_id = _read_header(frame, 0)
    api = API_BY_NUMBER.get(api_key)
    if api is None:
        raise UnsupportedRequestError(f"API {api_key} is not implemented")
    supported = api.min_version <= version <= api.max_version
    if not supported and api_key != _API_VERSIONS:
        raise UnsupportedRequestError(
            f"{api.name} version {version} is not implemented ({api.min_version} to {api.max_version} are)"
        )
    client_id, pos = _client_id(frame)
    asks = False
    if supported and version >= api.first_flexible:
        end = pos + len(_ASKS_FOR_OWN_TAGS)
        asks = bytes(frame[pos:end]) == _ASKS_FOR_OWN_TAGS
        pos = end if asks else _skip_header_tags(frame, pos)
    return RequestHeader(api_key, version, correlation_id, client_id, asks), pos, supported


def _client_id(frame: memoryview) -> tuple[str | None, int]:
    """The client id of a request header (an int16 string in both header versions) and the position after it."""
    size = len(frame)
    if size < 10:
        raise DecodeError("request header: cut short in client_id")
    length: int = _read_int16(frame, 8)[0]
    end = 10 + length
    if not 10 <= end <= size:
        if length == -1:
            return None, 10
        raise bad_length("request header: client_id", length, 10, size)
    try:
        return str(frame[10:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise DecodeError(f"request header: client_id: {error}") from error


def _skip_header_tags(frame: memoryview, pos: int) -> int:
    try:
        count = frame[pos]
        return skip_tags(frame, pos + 1, count) if count else pos + 1
    except IndexError as error:
        raise DecodeError("header: cut short in its tagged fields") from error


def encode_request(header: RequestHeader, body: Message) -> list[Part]:
    """A request as parts to send, with its size in front. Raises EncodeError."""
    return _framed(_encoded_request_header(header), body, header.api_version)


def encode_request_in_steps(header: RequestHeader, body: Message) -> Generator[None, None, list[Part]]:
    """``encode_request`` for a body of many items: yields after each item."""
    return _framed_in_steps(_encoded_request_header(header), body, header.api_version)


def _encoded_request_header(header: RequestHeader) -> bytearray:
    client_id = None if header.client_id is None else header.client_id.encode()
    length = -1 if client_id is None else len(client_id)
    out = bytearray(_size_and_header(0, header.api_key, header.api_version, header.correlation_id, length))
    out += client_id or b""
    if header.api_version >= API_BY_NUMBER[header.api_key].first_flexible:
        out += _ASKS_FOR_OWN_TAGS if header.asks_for_own_tags else b"\0"
    return out


def encode_response(api_key: int, api_version: int, correlation_id: int, response: Message) -> list[Part]:
    """A response as parts to send, with its size in front. Raises EncodeError."""
    return _framed(_encoded_response_header(api_key, api_version, correlation_id), response, api_version)


def encode_response_in_steps(
    api_key: int, api_version: int, correlation_id: int, response: Message, most_bytes: int = MAX_ANSWER_BYTES
) -> Generator[None, None, list[Part]]:
    """``encode_response`` for many items: yields after each item. The response must not change meanwhile.

    Raises TooLargeError for more than ``most_bytes``; records do not count.
    """
    header = _encoded_response_header(api_key, api_version, correlation_id)
    return _framed_in_steps(header, response, api_version, most_bytes)


def frame_in_pieces(api_key: int, api_version: int, correlation_id: int, pieces: list[bytearray]) -> list[bytearray]:
    """A response whose body is encoded already, with its size and header in front."""
    found = [_encoded_response_header(api_key, api_version, correlation_id), *pieces]
    _write_size(found[0], 0, sum(map(len, found)) - SIZE_BYTES)
    return found


def _encoded_response_header(api_key: int, api_version: int, correlation_id: int) -> bytearray:
    out = bytearray(_size_and_correlation(0, correlation_id))
    if api_key != _API_VERSIONS and api_version >= API_BY_NUMBER[api_key].first_flexible:
        out.append(0)
    return out


def _framed(out: bytearray, message: Message, version: int) -> list[Part]:
    parts: list[Part] = []
    message.encode_into(version, out, parts)
    _write_size(out, 0, sum(map(len, parts)) - SIZE_BYTES)
    return parts


def _framed_in_steps(
    out: bytearray, message: Message, version: int, most_bytes: int = 2**31 - 1
) -> Generator[None, None, list[Part]]:
    parts: list[Part] = []
    for pause in steps.encode_into(message, version, out, parts):
        if len(out) > most_bytes:
            raise TooLargeError(f"{type(message).__name__} of more than {most_bytes} bytes")
        yield pause
    _write_size(out, 0, sum(map(len, parts)) - SIZE_BYTES)
    return parts


def decode_response(api_key: int, api_version: int, frame: memoryview) -> tuple[int, Message]:
    """Correlation id and body of a response frame. Raises DecodeError.

    A broker that does not know the version of an ApiVersions request responds in version 0; that is decoded too.
    """
    correlation_id, pos, api_version = _response_header(api_key, api_version, frame)
    return correlation_id, API_BY_NUMBER[api_key].response.decode(frame[pos:], api_version)


def decode_response_in_steps(api_key: int, api_version: int, frame: memoryview) -> steps.Steps[tuple[int, Message]]:
    """``decode_response`` for a large frame, within a budget: yields after each item of an array."""
    correlation_id, pos, api_version = _response_header(api_key, api_version, frame)
    cls = API_BY_NUMBER[api_key].response
    body, end = yield from steps.decode_prefix(cls, frame[pos:], api_version, response_budget(len(frame)))
    if end != len(frame) - pos:
        raise DecodeError(f"{cls.__name__} v{api_version}: {len(frame) - pos - end} bytes are left over")
    return correlation_id, body


def _response_header(api_key: int, api_version: int, frame: memoryview) -> tuple[int, int, int]:
    """The correlation id, the position of the body, and the body's version."""
    if len(frame) < 4:
        raise DecodeError(f"response header: {len(frame)} bytes where 4 are needed")
    correlation_id: int = _read_size(frame, 0)[0]
    api = API_BY_NUMBER[api_key]
    pos = 4
    if api_key == _API_VERSIONS:
        if len(frame) >= 6 and _read_int16(frame, 4)[0] == _UNSUPPORTED_VERSION:
            api_version = 0
    elif api_version >= api.first_flexible:
        pos = _skip_header_tags(frame, pos)
    return correlation_id, pos, api_version


# ---------------------------------------------------------------- connections


class ServerConnection(FrameReader):
    """The broker's side of a connection: bytes in, requests out, in order.

    ``limits`` bound the requests by API: decoding one of many small parts takes a hundred times as long as decoding a
    Produce request of the same size.
    """

    __slots__ = ("_limits",)

    limited_by: ClassVar[str] = "socket.request.max.bytes"

    def __init__(self, limits: RequestLimits = DEFAULT_LIMITS, pool: BufferPool | None = None) -> None:
        super().__init__(limits.max_bytes, pool)
        self._limits = limits
        self._unchecked_bytes = min(limits.smallest, limits.max_bytes)

    def _check_size(self, size: int) -> None:
        super()._check_size(size)
        if size > self._unchecked_bytes and self._end - self._start >= SIZE_BYTES + 2:
            api_key: int = _read_int16(self._view, self._start + SIZE_BYTES)[0]
            most, config_key = self._limits.of_bytes(api_key)
            if size > most:
                api = API_BY_NUMBER.get(api_key)
                name = f"API {api_key}" if api is None else ApiKey(api_key).name
                raise FrameError(f"{name} request of {size} bytes; {most} are accepted ({config_key})")

    def next_request(self) -> Request | None:
        """The next whole request, or None: receive more. FrameError and DecodeError mean: close the connection.

        A view in the request stays valid as long as it is held, and keeps the whole receive buffer in memory.
        """
        frame = self.next_frame()
        return None if frame is None else decode_request(frame)


class ClientConnection(FrameReader):
    """The client's side of a connection: response frames, for :func:`decode_response` once the request is known."""

    __slots__ = ()

    def __init__(self, max_frame_bytes: int = 2**31 - 1, pool: BufferPool | None = None) -> None:
        super().__init__(max_frame_bytes, pool)
