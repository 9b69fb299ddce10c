"""Non-blocking TCP for any event loop: ``Waits`` has the loop's functions for waiting.

An operation is tried first, and waits only when the kernel would block. A stream that never has to wait still yields to
other tasks every few operations.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from anabranch.protocol.addresses import join_address
from anabranch.runtime.cold_ranges import WINDOW_BYTES, read_through
from anabranch.runtime.env import DEFAULT_BACKLOG, Buffer, FileRange, Listener, Part, Stream
from anabranch.runtime.staggered import connect_to_one, in_turn
from anabranch.runtime.turns import TRANSFER, turns

SMALL_RANGE_BYTES = 4096
"""A file range up to this size is read, and sent in one call with the buffers around it."""
_MAX_IOVECS = 64
_PARTS_AT_ONCE = 512
"""The number of parts sent before other sockets get their turn: a small range costs some 20 us."""
_OPERATIONS_PER_YIELD = 8
_ACCEPTED_PER_YIELD = 64
"""The number of connections accepted before other sockets get their turn: a burst of connects must not wait long."""
_BUFFERS = (bytes, bytearray, memoryview)
_MSG_MORE = getattr(socket, "MSG_MORE", 0)
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
DEFAULT_KEEP_ALIVE_S = 30.0
"""The default of ``socket.keepalive.timeout.ms``, in seconds."""
_PROBES = 3
_ACCEPT_PAUSE_S = 0.1

AddressInfo = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Waits:
    """The functions of an event loop. A waiter gets one of ``closed_errors`` when its socket is closed meanwhile."""

    readable: Callable[[socket.socket], Awaitable[None]]
    writable: Callable[[socket.socket], Awaitable[None]]
    closing: Callable[[socket.socket], None]
    checkpoint: Callable[[], Awaitable[None]]
    sleep: Callable[[float], Awaitable[None]]
    resolve: Callable[[str, int, bool], Awaitable[AddressInfo]]
    """``(host, port, passive)``: resolve a host. Raises ``OSError``."""
    closed_errors: tuple[type[BaseException], ...]
    in_thread: Callable[..., Awaitable[None]]
    """``(function, *arguments)``: call it in a thread, and wait until it is done."""


class _Socket:
    """A non-blocking socket, and the functions that wait for it; every failure is an ``OSError``."""

    __slots__ = ("_busy_operations", "_socket", "_waits")

    def __init__(self, sock: socket.socket, waits: Waits) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._waits = waits
        self._busy_operations = 0

    def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._waits.closing(self._socket)
        self._socket.close()

    async def _until(self, wait: Callable[[socket.socket], Awaitable[None]]) -> None:
        if self._socket.fileno() < 0:
            raise OSError(errno.EBADF, "the socket was closed")
        self._busy_operations = 0
        try:
            await wait(self._socket)
        except self._waits.closed_errors:
            raise OSError(errno.EBADF, "the socket was closed") from None

    async def _yield_now_and_then(self, most: int = _OPERATIONS_PER_YIELD) -> None:
        self._busy_operations += 1
        if self._busy_operations >= most:
            await self._yield()

    async def _yield(self) -> None:
        self._busy_operations = 0
        await self._waits.checkpoint()


class SocketStream(_Socket):
    """A connected socket."""

    __slots__ = ("_cold", "_looked_at", "_peer", "_turns")

    _peer: str

    def __init__(self, sock: socket.socket, waits: Waits, keep_alive_s: float | None = None) -> None:
        super().__init__(sock, waits)
        self._turns = turns()
        self._cold: FileRange | None = None
        """The next part, if the send waits for the disk and not for the socket."""
        self._looked_at: FileRange | None = None
        """The range that was read in a thread. It is sent without another check, even if it has left the cache."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock, keep_alive_s)
        try:
            self._peer = format_address(sock.getpeername())
        except OSError:  # reset before it was accepted: the first receive will raise
            self._peer = "unknown:0"

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def sock(self) -> socket.socket:
        return self._socket

    async def wait_readable(self) -> None:
        await self._until(self._waits.readable)

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            if self._turns.left <= 0:
                await self._turns.pause(TRANSFER)
            try:
                received = self._socket.recv_into(buffer)
            except BlockingIOError:
                await self._until(self._waits.readable)
            except InterruptedError:
                continue
            else:
                self._turns.left -= received
                self._busy_operations += 1
                if self._busy_operations >= _OPERATIONS_PER_YIELD:
                    await self._yield()
                return received

    def has_ended(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    async def send(self, parts: Sequence[Part]) -> None:
        left = _not_empty(parts)
        await self._turns.take(TRANSFER)
        while not self._pushed(left):
            if self._cold is None:
                await self._until(self._waits.writable)
            else:
                await self._read_through(self._cold)
        await self._yield_now_and_then()

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        left = _not_empty(parts)
        try:
            return () if self._pushed(left) else tuple(left)
        except OSError:  # the next send meets it again
            return tuple(left)

    def _pushed(self, left: deque[Part]) -> bool:
        """Send parts and remove them from ``left``. False if parts are left: a send would wait, or the turn is over.

        ``_cold`` is then the part that waits for the disk. ``_cold`` is None if the send does not wait for the disk.
        """
        self._cold = None
        enough = max(0, len(left) - _PARTS_AT_ONCE)
        while len(left) > enough:
            part = left[0]
            try:
                if isinstance(part, _BUFFERS):
                    self._send_buffers(left)
                elif self._is_cold(part):
                    self._cold = cast(FileRange, part)
                    return False
                elif (fd := _descriptor(part)) is None:
                    self._send_buffers(left)
                else:
                    self._send_file(fd, left)
            except BlockingIOError:
                return False
            except InterruptedError:
                continue
        return not left

    def _send_buffers(self, left: deque[Part]) -> None:
        """Send the parts in front of the first range for ``sendfile`` in one call."""
        flags = 0
        buffers: list[Buffer] = []
        for part in left:
            if len(buffers) == _MAX_IOVECS:
                flags = _MSG_MORE
                break
            if not isinstance(part, _BUFFERS):
                if _descriptor(part) is not None or (buffers and self._is_cold(part)):
                    flags = _MSG_MORE
                    break
                part = buffer_of(part)
            buffers.append(cast(Buffer, part))
        sent = self._socket.sendmsg(buffers, (), flags)
        self._turns.left -= sent
        for buffer in buffers:
            size = buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
            if sent < size:
                left[0] = memoryview(buffer).cast("B")[sent:]
                return
            sent -= size
            left.popleft()

    def _send_file(self, fd: int, left: deque[Part]) -> None:
        part = cast(FileRange, left[0])
        sent = os.sendfile(self._socket.fileno(), fd, part.offset, min(part.length, WINDOW_BYTES))
        self._turns.left -= sent
        if sent == 0:
            raise OSError(errno.EIO, f"the file ends {part.length} bytes before the end of the range to send")
        if sent < part.length:
            left[0] = part.behind(sent)
        else:
            left.popleft()

    def _is_cold(self, part: Part) -> bool:
        """Whether a range of a file, which is not a buffer, waits for the disk."""
        descriptor = getattr(part, "descriptor", None)
        if descriptor is None or descriptor.is_never_cold or part is self._looked_at:
            return False
        file_range = cast(FileRange, part)
        return bool(descriptor.is_cold(file_range.offset, min(file_range.length, WINDOW_BYTES)))

    async def _read_through(self, part: FileRange) -> None:
        """Read the next bytes to send from the disk in a thread, while other connections are served."""
        self._busy_operations = 0
        descriptor = cast(Any, part).descriptor
        await self._waits.in_thread(read_through, descriptor.fd, part.offset, min(part.length, WINDOW_BYTES))
        self._looked_at = part


def _not_empty(parts: Sequence[Part]) -> deque[Part]:
    """The parts that are not empty: after MSG_MORE the kernel waits for more bytes, so each part must have some."""
    return deque(filter(len, parts))


def _descriptor(part: Part) -> int | None:
    """The descriptor to send a range from; None for ranges that are read."""
    descriptor = getattr(part, "descriptor", None)
    return None if descriptor is None or len(part) <= SMALL_RANGE_BYTES else cast(int, descriptor.fd)


def buffer_of(part: Part) -> Buffer:
    """The bytes of a part: a buffer itself, or a range's bytes. Raises ``OSError`` if the file has become shorter."""
    if isinstance(part, _BUFFERS):
        return cast(Buffer, part)
    data = cast(FileRange, part).read()
    if len(data) != len(part):
        raise OSError(errno.EIO, f"the file ends {len(part) - len(data)} bytes before the end of the range to send")
    return data


class SocketListener(_Socket):
    """A listening socket."""

    __slots__ = ("_host", "_port")

    _host: str
    _port: int

    def __init__(self, sock: socket.socket, waits: Waits) -> None:
        super().__init__(sock, waits)
        self._host, self._port = sock.getsockname()[:2]

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    async def accept(self) -> Stream:
        """The next connection. Without a free descriptor, ``accept`` waits until a descriptor may be free."""
        while True:
            try:
                sock, _address = self._socket.accept()
            except BlockingIOError:
                await self._until(self._waits.readable)
            except (InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                await self._waits.sleep(_ACCEPT_PAUSE_S)
            else:
                stream = SocketStream(sock, self._waits)
                try:
                    await self._yield_now_and_then(_ACCEPTED_PER_YIELD)
                except BaseException:
                    stream.close()
                    raise
                return stream


class SocketNetwork:
    """TCP through the kernel. The kernel ends a connection made here if the peer is silent for ``keep_alive_s``."""

    __slots__ = ("_keep_alive_s", "_waits")

    def __init__(self, waits: Waits, keep_alive_s: float = DEFAULT_KEEP_ALIVE_S) -> None:
        self._waits = waits
        self._keep_alive_s = keep_alive_s

    async def listen(
        self,
        host: str,
        port: int,
        *,
        backlog: int = DEFAULT_BACKLOG,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
    ) -> Listener:
        addresses = await self._waits.resolve(host, port, True)
        family, kind, protocol, _name, address = addresses[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            for option, size in ((socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes)):
                if size >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)  # accepted sockets inherit it
            sock.listen(backlog)
            return SocketListener(sock, self._waits)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"listen on {format_address(address)}: {error.strerror}") from error
        except BaseException:
            sock.close()
            raise

    async def connect(self, host: str, port: int, *, attempt: int = 0) -> Stream:
        addresses = in_turn(await self._waits.resolve(host, port, False), attempt)
        if not addresses:
            raise OSError(errno.EADDRNOTAVAIL, f"{join_address(host, port)} has no address")
        if len(addresses) == 1:
            return await self._connect_to(addresses[0])
        return await connect_to_one(addresses, self._connect_to)

    async def _connect_to(self, found: tuple[Any, ...]) -> SocketStream:
        family, kind, protocol, _name, address = found
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            status = sock.connect_ex(address)
            if status == errno.EINPROGRESS:
                await self._waits.writable(sock)
                status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            else:
                await self._waits.checkpoint()
            if status:
                raise OSError(status, f"connect to {format_address(address)}: {os.strerror(status)}")
            return SocketStream(sock, self._waits, self._keep_alive_s)
        except BaseException:
            with contextlib.suppress(OSError):
                sock.close()
            raise


def keep_alive(sock: socket.socket, timeout_s: float | None) -> None:
    """Let the kernel probe an idle connection, and end it once the peer has acknowledged nothing for ``timeout_s``.

    None: at the system's times. Half of the time passes before the first probe. Data that is not acknowledged ends the
    connection after the same time. An option that the system does not have is left out.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if timeout_s is None:
        return
    idle_s = max(1, round(timeout_s / 2))
    options = {
        "TCP_KEEPIDLE": idle_s,
        "TCP_KEEPALIVE": idle_s,  # macOS
        "TCP_KEEPINTVL": max(1, round((timeout_s - idle_s) / _PROBES)),
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": max(1, round(timeout_s * 1000)),
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def format_address(address: Any) -> str:
    """``host:port`` of a socket address, IPv6 in brackets."""
    host, port = str(address[0]), int(address[1])
    return join_address(host, port)


def passive_host(host: str) -> str | None:
    """The host to bind to; an empty one means every interface."""
    return host or None
